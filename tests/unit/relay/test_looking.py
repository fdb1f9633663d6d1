"""/status?look: a look at the table when somebody asks, no more often than it may cost, and off the loop's thread."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from outboxrelay.looking import Looker
from outboxrelay.ports import StoreError
from outboxrelay.report import WaitingRows
from tests.unit.relay.world import Clock

WAITING = WaitingRows(rows=3, exact=True, oldest_id=7, highest_id=9, clock=1_000.0, indexed=True)
LONG = 30.0
"""More than a look of this file can take."""


class Meter:
    """Answers from a list, the last answer again and again; each look costs some seconds."""

    def __init__(self, clock: Clock, *answers: WaitingRows | Exception, cost: float = 0.001) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.cost = cost
        self.looks = 0
        self.closed = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def look(self) -> WaitingRows:
        assert self.gate.wait(timeout=LONG)
        self.looks += 1
        self._clock.sleep(self.cost)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(clock: Clock) -> Iterator[Callable[[Meter], Looker]]:
    """Starts a looker, and ends it with the test."""
    made: list[Looker] = []

    def begin(meter: Meter) -> Looker:
        looker = Looker(meter, monotonic=clock, wall=lambda: clock() + 1e9, rng=random.Random(1))
        looker.start()
        made.append(looker)
        return looker

    yield begin
    for looker in made:
        looker.stop()


def test_nobody_asks_and_nobody_looks(clock: Clock, start: Callable[[Meter], Looker]) -> None:
    meter = Meter(clock, WAITING)
    looker = start(meter)
    looker.stop()
    assert meter.looks == 0
    assert meter.closed.is_set()


def test_whoever_asks_gets_a_fresh_look(clock: Clock, start: Callable[[Meter], Looker]) -> None:
    looker = start(Meter(clock, WAITING))
    look = looker.newest(within=LONG)
    assert look is not None
    assert (look.waiting, look.reason, look.at, look.repeat_seconds) == (WAITING, "", 1_000_001_000.0, 1.0)


def test_a_dear_look_is_not_repeated_soon(clock: Clock, start: Callable[[Meter], Looker]) -> None:
    """However many ask: a scan of 0.4 s every second would be half a server process for a number."""
    meter = Meter(clock, WAITING, cost=0.4)
    looker = start(meter)
    first = looker.newest(within=LONG)
    assert first is not None
    assert first.repeat_seconds == pytest.approx(20.0)
    for _ in range(100):
        assert looker.newest(within=LONG) is first
    clock.sleep(first.repeat_seconds)
    assert looker.newest(within=LONG) is not first
    assert meter.looks == 2


def test_a_failure_is_told_and_repeated_ever_later(clock: Clock, start: Callable[[Meter], Looker]) -> None:
    meter = Meter(clock, *[StoreError("TableMissing", "there is no table t")] * 4, WAITING)
    looker = start(meter)
    pauses = []
    for _ in range(4):
        look = looker.newest(within=LONG)
        assert look is not None
        assert (look.waiting, look.reason, look.message) == (None, "TableMissing", "there is no table t")
        pauses.append(look.repeat_seconds)
        clock.sleep(look.repeat_seconds)
    assert pauses == sorted(pauses)
    assert pauses[0] < 2 < pauses[-1] <= 12.1
    mended = looker.newest(within=LONG)
    assert mended is not None
    assert mended.waiting == WAITING


def test_a_database_that_hangs_keeps_nobody_waiting(clock: Clock, start: Callable[[Meter], Looker]) -> None:
    meter = Meter(clock, WAITING)
    meter.gate.clear()
    looker = start(meter)
    assert looker.newest(within=0.01) is None
    meter.gate.set()
    assert looker.newest(within=LONG) is not None


def test_a_fault_of_our_own_ends_one_look_and_not_all_of_them(clock: Clock, start: Callable[[Meter], Looker]) -> None:
    meter = Meter(clock, ValueError("a payload"), WAITING)
    looker = start(meter)
    look = looker.newest(within=LONG)
    assert look is not None
    assert (look.waiting, look.reason) == (None, "DatabaseError")
    assert "payload" not in look.message
    assert meter.closed.is_set()
    clock.sleep(look.repeat_seconds)
    mended = looker.newest(within=LONG)
    assert mended is not None
    assert mended.waiting == WAITING
