"""When which ids were first seen: the age of a row in a table that does not say when it was written. Pure."""

from __future__ import annotations

from bisect import bisect_left

_MOST = 512
_PRECISION = 0.1


class IdHistory:
    """Times (seconds of the database's clock) at which the highest id of a table had grown."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []

    @property
    def highest(self) -> int | None:
        """The highest id ever seen."""
        return self._highest[-1] if self._highest else None

    def observe(self, *, clock: float, highest: int | None) -> None:
        """Note the highest id in the table at a time; None if the table is empty."""
        if highest is None or (self._highest and highest <= self._highest[-1]):
            return
        self._times.append(clock)
        self._highest.append(highest)
        if len(self._times) > _MOST:
            self._thin(now=clock)

    def _thin(self, *, now: float) -> None:
        """Drop entries whose loss makes no age wrong by more than a tenth: old rows need less precision."""
        kept = [0]
        for index in range(1, len(self._times) - 1):
            if self._times[index + 1] - self._times[kept[-1]] > _PRECISION * (now - self._times[index + 1]):
                kept.append(index)
        kept.append(len(self._times) - 1)
        self._times = [self._times[index] for index in kept]
        self._highest = [self._highest[index] for index in kept]

    def age(self, row_id: int, *, clock: float) -> float | None:
        """Seconds since the id was first seen, a lower bound of the row's age; None if it never was."""
        position = bisect_left(self._highest, row_id)
        if position == len(self._highest):
            return None
        return max(0.0, clock - self._times[position])

    def lag(self, *, oldest_id: int | None, oldest_age: float | None, clock: float) -> tuple[float | None, bool]:
        """Age of the oldest row that waits, and whether it is exact; None if it cannot be told."""
        if oldest_id is None:
            return 0.0, True
        if oldest_age is not None:
            return max(0.0, oldest_age), True
        # A row that was there before the first look has no known age yet.
        return self.age(oldest_id, clock=clock) or None, False
