"""Back-off: doubling, bounds, jitter, and when the next attempt is due."""

from __future__ import annotations

import random

from outboxrelay.retry import Backoff, delay


class Fixed(random.Random):
    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


def test_the_delay_doubles_up_to_the_maximum() -> None:
    least = [delay(attempt=n, minimum=0.25, maximum=5, rng=Fixed(0.0)) for n in range(1, 8)]
    assert least == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_up_to_half_as_much_is_added_at_random() -> None:
    assert delay(attempt=3, minimum=1, maximum=60, rng=Fixed(1.0)) == 6.0
    assert delay(attempt=3, minimum=1, maximum=60, rng=Fixed(0.5)) == 5.0


def test_many_failures_do_not_overflow() -> None:
    assert delay(attempt=10**6, minimum=1, maximum=300, rng=Fixed(0.0)) == 300


def test_the_next_attempt_is_due_after_the_delay() -> None:
    backoff = Backoff(minimum=1, maximum=8, rng=Fixed(0.0))
    assert backoff.due(10.0)
    assert backoff.failed(10.0) == 1.0
    assert backoff.failed(10.0) == 2.0
    assert not backoff.due(11.9)
    assert backoff.due(12.0)


def test_success_starts_from_the_minimum() -> None:
    backoff = Backoff(minimum=1, maximum=8, rng=Fixed(0.0))
    for _ in range(5):
        backoff.failed(0.0)
    backoff.succeeded()
    assert backoff.due(0.0)
    assert backoff.failed(0.0) == 1.0
