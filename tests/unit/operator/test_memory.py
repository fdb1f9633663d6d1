"""What is kept between measuring and reporting: news wakes a resource, sameness does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outboxrelay.report import Holder, LastError
from outboxrelay_operator.measurements import PairId
from outboxrelay_operator.memory import PODS_BELIEVE_SECONDS, Memory
from outboxrelay_operator.pairs import Key
from tests.unit.operator.builders import KEY, NOW, backlog, failure, pod, report, side

PAIR = PairId(KEY, "p")
WHERE = (KEY.namespace, "p")
POLLS = side(False, "NotHeard", "a proxy")


class Woken(list[Key]):
    def take(self) -> list[Key]:
        taken, self[:] = list(self), []
        return taken


def memory() -> tuple[Memory, Woken]:
    woken = Woken()
    kept = Memory(changed=woken.append)
    kept.watch(KEY, [PAIR])
    return kept, woken


def test_a_measurement_is_news_when_it_says_something_else() -> None:
    kept, woken = memory()
    kept.measured(PAIR, backlog(5))
    assert woken.take() == [KEY]
    kept.measured(PAIR, backlog(5, at=NOW + 2, believe_until=NOW + 25))
    assert woken.take() == []
    kept.measured(PAIR, failure("TableMissing"))
    assert woken.take() == [KEY]
    kept.measured(PAIR, failure("TableMissing", at=NOW + 5))
    assert woken.take() == []


def test_a_pod_is_news_when_it_says_something_else() -> None:
    kept, woken = memory()
    kept.pods_listed({WHERE: (pod(),)}, now=NOW)
    assert woken.take() == [KEY]
    kept.pods_listed({WHERE: (pod(report=report(cycles=99, now=NOW + 5)),)}, now=NOW + 5)
    assert woken.take() == []
    kept.pods_listed({WHERE: (pod(ready=False),)}, now=NOW + 10)
    assert woken.take() == [KEY]
    kept.pods_listed({("other", "p"): (pod(),)}, now=NOW + 15)
    assert woken.take() == [KEY]


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ({"wake": POLLS}, {"wake": POLLS.model_copy(update={"since": NOW + 5})}),
        (
            {"last_error": LastError(reason="DatabaseError", message="no grant", at=NOW)},
            {"last_error": LastError(reason="DatabaseError", message="no grant", at=NOW + 5)},
        ),
        (
            {"held_back_by": Holder(what="session", pid=7, age_seconds=60.0)},
            {"held_back_by": Holder(what="session", pid=7, age_seconds=65.0, state="active")},
        ),
    ],
    ids=["wake", "last error", "held back by"],
)
def test_what_an_idle_relay_has_to_say_is_news(said: dict[str, Any], same: dict[str, Any]) -> None:
    """Nothing else of it changes; its time alone is none."""
    kept, woken = memory()
    kept.pods_listed({WHERE: (pod(),)}, now=NOW)
    woken.take()
    kept.pods_listed({WHERE: (pod(report=report(**said)),)}, now=NOW + 5)
    assert woken.take() == [KEY]
    kept.pods_listed({WHERE: (pod(report=report(**same)),)}, now=NOW + 10)
    assert woken.take() == []


def test_that_rates_can_be_told_from_now_on_is_news_once() -> None:
    """With them a resource is known completely, and nobody asks again and again whether it is."""
    kept, woken = memory()
    kept.pods_listed({}, now=NOW)
    woken.take()
    told = []
    for seconds in (0, 2, 5, 10):
        kept.measured(PAIR, backlog(5, at=NOW + seconds))
        told.append((woken.take(), kept.complete(KEY)))
    assert told == [([KEY], False), ([], False), ([KEY], True), ([], True)]


def test_what_cannot_be_measured_is_known_completely() -> None:
    kept, woken = memory()
    kept.pods_listed({}, now=NOW)
    kept.measured(PAIR, failure("TableMissing"))
    assert (woken.take(), kept.complete(KEY)) == ([KEY, KEY], True)


def test_that_there_are_no_pods_is_news_once() -> None:
    kept, woken = memory()
    kept.measured(PAIR, failure("TableMissing"))
    assert (woken.take(), kept.complete(KEY)) == ([KEY], False)
    kept.pods_listed({}, now=NOW)
    assert (woken.take(), kept.complete(KEY)) == ([KEY], True)
    kept.pods_listed({}, now=NOW + 5)
    assert woken.take() == []


def test_the_rate_is_the_sum_of_all_reports() -> None:
    kept, _ = memory()
    kept.pods_listed({WHERE: tuple(pod(report=report(rate_per_second=rate)) for rate in (10.0, 5.5))}, now=NOW)
    assert kept.rates(PAIR, now=NOW).sent == 15.5


def test_without_pods_nothing_is_sent_and_that_is_known() -> None:
    kept, _ = memory()
    assert kept.rates(PAIR, now=NOW).sent is None
    kept.pods_listed({}, now=NOW)
    assert kept.rates(PAIR, now=NOW).sent == 0.0
    assert kept.rates(PAIR, now=NOW + PODS_BELIEVE_SECONDS + 1).sent is None


def test_a_ready_pod_that_does_not_answer_makes_the_rate_unknown() -> None:
    kept, _ = memory()
    kept.pods_listed({WHERE: (pod(), pod(name="b", report=None))}, now=NOW)
    assert kept.rates(PAIR, now=NOW).sent is None
    kept.pods_listed({WHERE: (pod(), pod(name="b", report=None, ready=False))}, now=NOW)
    assert kept.rates(PAIR, now=NOW).sent == 0.0


def test_what_is_no_longer_watched_is_forgotten() -> None:
    kept, woken = memory()
    kept.measured(PAIR, backlog(5))
    kept.watch(KEY, [])
    assert kept.measurement(PAIR) is None
    woken.take()
    kept.pods_listed({WHERE: (pod(),)}, now=NOW)
    assert woken.take() == []


def test_what_is_watched_no_more_is_forgotten_for_good() -> None:
    """A measurement may be under way when its pair goes."""
    kept, woken = memory()
    kept.measured(PAIR, backlog(5))
    kept.watch(KEY, [])
    woken.take()
    kept.measured(PAIR, backlog(6))
    assert kept.measurement(PAIR) is None
    assert woken.take() == []


def test_what_was_measured_of_other_rows_says_nothing_of_these() -> None:
    """A spec may name another table for a pair, while its old one is being looked at."""
    kept, _ = memory()
    before, after = replace(PAIR, rows=("old",)), replace(PAIR, rows=("new",))
    kept.watch(KEY, [before])
    for seconds in (0, 5):
        kept.measured(before, backlog(7, at=NOW + seconds))
    kept.pods_listed({WHERE: (pod(),)}, now=NOW)
    assert kept.rates(before, now=NOW).arrival is not None
    kept.watch(KEY, [after])
    kept.measured(before, backlog(8))
    assert (kept.measurement(before), kept.measurement(after), kept.complete(KEY)) == (None, None, False)
    assert kept.rates(after, now=NOW).arrival is None
    assert kept.pods(after) == (pod(),)
    kept.measured(after, backlog(1))
    assert kept.measurement(after) == backlog(1)


def test_pods_of_a_namespace_that_could_never_be_listed_are_unknown_not_none() -> None:
    kept, _ = memory()
    kept.pods_listed({}, now=NOW, never_listed=frozenset({KEY.namespace}))
    assert kept.rates(PAIR, now=NOW).sent is None
    kept.pods_listed({}, now=NOW)
    assert kept.rates(PAIR, now=NOW).sent == 0
