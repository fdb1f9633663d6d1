"""Measuring through the relays, where the operator reads no Secrets: who is asked, and what is made of the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outboxrelay.report import Look, RelayReport, WaitingRows
from outboxrelay_operator.kube import Object
from outboxrelay_operator.measure.relays import RelayMeasurer
from outboxrelay_operator.measure.server import GRACE_SECONDS
from outboxrelay_operator.measurements import Backlog, Failure, Measurement, PairId
from outboxrelay_operator.names import PAIR_LABEL, TEMPLATE_DIGEST_ANNOTATION
from outboxrelay_operator.pairs import Key
from tests.unit.operator.builders import KEY, NOW, pair, report

PAIR = pair()
WAITING = WaitingRows(
    rows=3, exact=True, oldest_id=7, oldest_age_seconds=4.0, highest_id=9, clock=NOW - 1000, indexed=True
)


def pod(name: str, *, pair_name: str = PAIR.name, namespace: str = KEY.namespace, **status: Any) -> Object:
    """The first letter of the name says of which template it is."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {PAIR_LABEL: pair_name},
            "annotations": {TEMPLATE_DIGEST_ANNOTATION: name[0]},
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1"} | status,
    }


def looked(waiting: WaitingRows | None = WAITING, *, ago: float = 0.0, **changes: Any) -> RelayReport:
    """A relay whose clock is an hour ahead, and what it saw some seconds ago."""
    now = NOW + 3600
    look = Look(**({"at": now - ago, "repeat_seconds": 1.0, "waiting": waiting} | changes))
    return report(now=now, look=look)


class World:
    """A measurer of one pair."""

    def __init__(self) -> None:
        self.told: list[tuple[PairId, Measurement]] = []
        self.measurer = RelayMeasurer(report=lambda pair_id, found: self.told.append((pair_id, found)))
        self.measurer.measure(KEY, [PAIR])

    def round(self, answers: dict[str, RelayReport | None], *, now: float = NOW, **pods: Any) -> str:
        """Ask the pods, of which each answers with a report or not at all; the name of the one that had to look."""
        listed = [pod(name, **pods) for name in answers]
        [chosen] = self.measurer.choose(listed)
        name = chosen.removeprefix("uid-")
        reports = [
            answer if answer is None or its_name == name else answer.model_copy(update={"look": None})
            for its_name, answer in answers.items()
        ]
        self.measurer.take(listed, reports, now=now, pause=5.0)
        return name

    @property
    def newest(self) -> Measurement:
        return self.told[-1][1]


@pytest.fixture
def world() -> World:
    return World()


def test_what_a_relay_sees_is_a_measurement(world: World) -> None:
    world.round({"a": looked(ago=2.0)})
    assert world.told == [
        (
            PairId.of(PAIR),
            Backlog(
                rows=3,
                exact=True,
                lag_seconds=4.0,
                lag_exact=True,
                highest_id=9,
                whole_table=True,
                index_missing=False,
                at=NOW - 2.0,
                believe_until=NOW - 2.0 + 5.0 + GRACE_SECONDS,
            ),
        )
    ]


def test_a_look_that_is_not_repeated_soon_is_believed_for_longer(world: World) -> None:
    world.round({"a": looked(repeat_seconds=60.0)})
    assert world.newest.believe_until == NOW + 60.0 + GRACE_SECONDS


def test_the_same_look_again_is_no_news(world: World) -> None:
    """Rates are made of measurements that differ; one that hangs must grow old."""
    answer = looked()
    for _ in range(3):
        world.round({"a": answer})
    assert len(world.told) == 1


def test_one_pod_is_asked_and_it_stays_the_same(world: World) -> None:
    for number in range(3):
        assert world.round({"b": looked(ago=number), "a": looked(ago=number)}) == "a"
    assert world.round({"b": looked(), "c": looked()}) == "b"


@pytest.mark.parametrize("answer", [None, report(), looked(None, reason="TlsFailed", message="no")])
def test_another_pod_is_asked_after_one_that_saw_nothing(world: World, answer: RelayReport | None) -> None:
    asked = [world.round({"a": answer, "b": answer}) for _ in range(4)]
    assert asked == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("reason", "told"), [("PermissionDenied", "PermissionDenied"), ("OfANewerRelay", "DatabaseError")]
)
def test_why_nothing_was_seen_is_told(world: World, reason: str, told: str) -> None:
    world.round({"a": looked(None, reason=reason, message="grant SELECT", repeat_seconds=8.0)})
    assert world.newest == Failure(
        reason=told,  # type: ignore[arg-type]
        message="grant SELECT",
        at=NOW,
        believe_until=NOW + 8.0 + GRACE_SECONDS,
    )


def test_pods_that_cannot_answer_are_not_asked(world: World) -> None:
    pods = [pod("a", phase="Pending"), pod("b", podIP=""), pod("c"), pod("d", pair_name="other"), pod("e")]
    pods[2]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.measurer.choose(pods) == {"uid-e"}
    assert world.measurer.choose([pod("a", namespace="other")]) == frozenset()


def test_a_pair_that_left_is_measured_no_more(world: World) -> None:
    world.measurer.measure(KEY, [])
    assert world.measurer.choose([pod("a")]) == frozenset()
    world.measurer.take([pod("a")], [looked()], now=NOW, pause=5.0)
    assert world.told == []


def test_pairs_of_another_resource_stay(world: World) -> None:
    world.measurer.measure(Key(KEY.namespace, "other"), [])
    assert world.measurer.choose([pod("a")]) == {"uid-a"}


def test_the_age_of_a_row_without_a_time_does_not_depend_on_who_looks(world: World) -> None:
    """A table without createdAt: the operator remembers when it saw which ids, whichever pod told it."""

    def seen(clock: float, *, oldest: int, highest: int) -> WaitingRows:
        return WAITING.model_copy(
            update={"oldest_age_seconds": None, "oldest_id": oldest, "highest_id": highest, "clock": clock}
        )

    world.round({"a": looked(seen(100.0, oldest=5, highest=5), ago=20.0)})
    world.round({"b": looked(seen(110.0, oldest=5, highest=9), ago=10.0)})
    first = world.newest
    assert isinstance(first, Backlog)
    assert (first.lag_seconds, first.lag_exact, first.highest_id) == (10.0, False, 9)
    world.round({"c": looked(seen(130.0, oldest=9, highest=9))})
    second = world.newest
    assert isinstance(second, Backlog)
    assert second.lag_seconds == 20.0


def test_a_changed_pair_starts_anew(world: World) -> None:
    answer = looked()
    world.round({"a": answer})
    world.measurer.measure(KEY, [replace(PAIR, topic=PAIR.topic.model_copy(update={"topic": "elsewhere"}))])
    world.round({"a": answer})
    assert len(world.told) == 2


def test_what_a_relay_sees_of_rows_that_the_pair_had_before_is_not_told_of_those_it_has(world: World) -> None:
    """A relay serves what it started with until it ends, and that may be never if no new one gets ready."""
    before, changed = pod("b"), replace(PAIR, database=PAIR.database.model_copy(update={"dbname": "elsewhere"}))
    world.round({"b": looked()})
    world.measurer.measure(KEY, [changed])
    assert world.measurer.choose([before]) == frozenset()
    world.measurer.take([before], [looked()], now=NOW, pause=5.0)
    assert len(world.told) == 1
    later = WAITING.model_copy(update={"highest_id": 7})
    answers = {"b-evicted": looked(), "c1": looked(None), "c2": looked(later)}
    assert [world.round({"b": looked(), **answers}) for _ in range(2)] == ["c1", "c2"]
    pair_id, found = world.told[-1]
    # Of the rows of before the highest id was 9.
    assert (pair_id, getattr(found, "highest_id", None)) == (PairId.of(changed), 7)
    # What was edited may be edited back, and then the first ones see what they should.
    world.measurer.measure(KEY, [PAIR])
    assert world.measurer.choose([before, pod("c1")]) == {"uid-b"}
