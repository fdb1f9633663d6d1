"""`outboxrelay drain`: when the loop is ended, and with what result."""

from __future__ import annotations

from outboxrelay.draining import Watch
from outboxrelay.ports import StoreError
from outboxrelay.stop import StopSignal


class Answers:
    """A backlog that answers from a list; the last answer stays."""

    def __init__(self, *answers: bool | StoreError) -> None:
        self._answers = list(answers)
        self.closed = False

    def any(self) -> bool:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


def watch(backlog: Answers, stop: StopSignal, *, within: float | None = None) -> Watch:
    seconds = iter(range(1000))
    return Watch(backlog, stop=stop, within_seconds=within, clock=lambda: float(next(seconds)))


def test_it_ends_the_loop_when_nothing_waits() -> None:
    backlog, stop = Answers(True, StoreError("DatabaseUnreachable", "away"), True, False), StopSignal()
    watching = watch(backlog, stop)
    watching.run()
    assert watching.empty
    assert stop.is_set()
    assert backlog.closed


def test_it_ends_when_the_time_is_over() -> None:
    backlog, stop = Answers(True), StopSignal()
    watching = watch(backlog, stop, within=2.0)
    watching.run()
    assert not watching.empty
    assert stop.is_set()


def test_a_request_to_end_comes_first() -> None:
    backlog, stop = Answers(False), StopSignal()
    stop.set()
    watching = watch(backlog, stop)
    watching.run()
    assert not watching.empty
    assert backlog.closed
