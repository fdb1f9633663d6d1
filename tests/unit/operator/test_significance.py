"""When a status is written (OL-08): conditions at once, numbers seldom, noise never."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from outboxrelay_operator.policies import judge
from outboxrelay_operator.scale import Calm
from outboxrelay_operator.significance import (
    CONFIRM_SECONDS,
    FAR_INTERVAL_SECONDS,
    NEAR_INTERVAL_SECONDS,
    delay,
)
from outboxrelay_operator.status import next_status
from tests.unit.operator.builders import NOW, backlog, facts, last_error, observed, pod, report, scale, side


def status(**changes: Any) -> dict[str, Any]:
    pair = facts(**changes)
    return next_status(observed(), [(pair, judge(pair))], now=changes.get("now", NOW))


def wait(before: dict[str, Any], after: dict[str, Any], *, since: float = 3.0, now: float = NOW) -> float | None:
    return delay(before, after, now=now, last_write=now - since)


def test_the_first_status_is_written_at_once() -> None:
    assert wait({}, status()) == 0


def test_ol_08_nothing_new_is_not_written() -> None:
    """cases.md OL-08."""
    assert wait(status(), status()) is None
    later = status(now=NOW + 15, measurement=backlog(at=NOW + 15, believe_until=NOW + 35))
    assert wait(status(), later, now=NOW + 15) is None


def test_a_clock_that_was_set_back_holds_no_write_back() -> None:
    assert wait(status(), status(measurement=backlog(9000)), since=-3600.0) == 0


def test_what_stays_equal_is_never_written_again() -> None:
    assert wait(status(), status(), now=NOW + 86_400) is None


def test_a_wait_to_be_scaled_down_is_confirmed_after_a_while() -> None:
    waiting = status(scale=scale(2), calm=(Calm(0, NOW - 60),))
    now = NOW + CONFIRM_SECONDS
    assert wait(waiting, waiting, now=now) == 0
    assert wait(waiting, waiting, now=now - 1) is None


@pytest.mark.parametrize("since", [0.0, 3.0, 4.9])
@pytest.mark.parametrize(
    ("before", "after", "interval"),
    [
        (0, 100, FAR_INTERVAL_SECONDS),
        (7186, 0, FAR_INTERVAL_SECONDS),
        (1000, 1400, FAR_INTERVAL_SECONDS),
        (1000, 1100, NEAR_INTERVAL_SECONDS),
    ],
)
def test_ol_08_numbers_are_written_at_most_once_in_the_interval(
    before: int, after: int, interval: float, since: float
) -> None:
    """cases.md OL-08."""
    old, new = status(measurement=backlog(before)), status(measurement=backlog(after))
    assert wait(old, new, since=since) == pytest.approx(interval - since)
    assert wait(old, new, since=interval) == 0


@pytest.mark.parametrize("count", ["replicas", "readyReplicas"])
def test_pods_that_come_one_by_one_are_written_together(count: str) -> None:
    after = deepcopy(status())
    after[count] += 1
    after["pairs"][0][count] += 1
    assert wait(status(), after, since=3.0) == FAR_INTERVAL_SECONDS - 3
    assert wait(status(), after, since=FAR_INTERVAL_SECONDS) == 0


def test_a_flip_does_not_wait() -> None:
    broken = status(pods=(pod(ready=False, report=report(broker=side(False, "TopicMissing"))),))
    assert wait(status(), broken, since=0.0) == 0


def test_small_movements_are_noise() -> None:
    assert wait(status(measurement=backlog(1000)), status(measurement=backlog(1049))) is None
    assert wait(status(measurement=backlog(1000)), status(measurement=backlog(1060))) is not None
    assert wait(status(measurement=backlog(lag_seconds=0.2)), status(measurement=backlog(lag_seconds=1.2))) is None


def test_the_last_row_is_no_noise() -> None:
    assert wait(status(measurement=backlog(1)), status(measurement=backlog(0))) is not None


def test_an_error_that_only_repeats_itself_is_not_news() -> None:
    def failing(at: float) -> dict[str, Any]:
        return status(pods=(pod(report=report(last_error=last_error(at=at))),))

    assert wait(failing(NOW), failing(NOW + 5)) is None


def test_an_explanation_waits_for_what_was_decided_does_not() -> None:
    def scaled(count: int = 2, **changes: Any) -> dict[str, Any]:
        return status(desired_replicas=count, scale=scale(count, rate_per_pod=1000.0, **changes))

    assert wait(scaled(), scaled(reason="Maximum"), since=3.0) == NEAR_INTERVAL_SECONDS - 3
    assert wait(scaled(), scaled(count=3), since=0.0) == 0
    assert wait(scaled(), status(desired_replicas=2, scale=scale(2, rate_per_pod=1020.0))) is None


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another reason": lambda after: after["conditions"][0].update(reason="RowsParked"),
    "another generation": lambda after: after.update(observedGeneration=2),
    "a pair more": lambda after: after["pairs"].append(after["pairs"][0]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_what_people_wait_for_is_written_at_once(edit: Callable[[dict[str, Any]], Any]) -> None:
    after = deepcopy(status())
    edit(after)
    assert wait(status(), after, since=0.0) == 0
