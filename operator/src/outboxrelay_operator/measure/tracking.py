"""What is remembered of a pair from one measurement to the next, so that none scans what the last one saw gone."""

from __future__ import annotations

from dataclasses import dataclass

from outboxrelay_operator.measure.sql import COUNT_LIMIT, LOWEST_ID

SWEEP_SECONDS = 60.0
"""How often to look from the true start: a transaction that ends late may leave a row below the floor."""

DUTY = 50.0
"""A measurement that took d seconds is not repeated before DUTY * d: at most 2 % of a server process."""

LONGEST_SECONDS = 60.0
"""However much it costs, the numbers are not to be older than this."""


@dataclass(slots=True)
class Track:
    """The floor of one pair, and when it is looked at next. Times are seconds of one monotonic clock."""

    floor: int = LOWEST_ID
    next_look: float = 0.0
    next_sweep: float = 0.0

    def start(self, now: float) -> int:
        """The floor to look from now."""
        return LOWEST_ID if now >= self.next_sweep else self.floor

    def looked(self, *, began: float, ended: float, swept: bool, interval: float) -> None:
        """Plan the next look by what this one cost."""
        cost = ended - began
        self.next_look = began + max(interval, min(LONGEST_SECONDS, DUTY * cost))
        if swept:
            self.next_sweep = ended + max(SWEEP_SECONDS, 4 * DUTY * cost)

    def found(self, *, oldest_id: int | None, highest_id: int | None) -> None:
        """Move the floor: everything of the pair below it is gone."""
        if oldest_id is not None:
            self.floor = oldest_id
        elif highest_id is not None:
            self.floor = highest_id


def is_exact(counted: int | None) -> bool:
    """Whether a bounded count was made and reached the end."""
    return counted is not None and counted <= COUNT_LIMIT
