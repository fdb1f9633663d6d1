"""Back-off with jitter: how long to wait after a failure, and how long when there is nothing to do.

Pure: the random source is given by the caller, time is passed in.
"""

from __future__ import annotations

import random


def delay(*, attempt: int, minimum: float, maximum: float, rng: random.Random) -> float:
    """Seconds to wait before attempt number `attempt` + 1, doubling from `minimum` up to `maximum`.

    Up to half as much is added at random, so that many relays that lost one server do not come back at the same
    instant; and added only, so that in the end there is at most one attempt in `maximum` seconds. `attempt` counts
    failures so far and starts at 1.
    """
    # 2.0**60 is beyond any bound that makes sense and still a float.
    ceiling = min(maximum, minimum * 2.0 ** min(attempt - 1, 60))
    return ceiling * (1 + rng.random() / 2)


class Backoff:
    """The failures of one thing in a row, and when it may be tried again."""

    def __init__(self, *, minimum: float, maximum: float, rng: random.Random) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._rng = rng
        self.failures = 0
        self.not_before = 0.0

    def failed(self, now: float) -> float:
        """Record a failure at `now` (monotonic seconds); returns the delay in seconds."""
        self.failures += 1
        seconds = delay(attempt=self.failures, minimum=self._minimum, maximum=self._maximum, rng=self._rng)
        self.not_before = now + seconds
        return seconds

    def succeeded(self) -> None:
        """Start again from the minimum."""
        self.failures = 0
        self.not_before = 0.0

    def due(self, now: float) -> bool:
        """Whether the next attempt may start."""
        return now >= self.not_before
