"""Rows written and sent a second, from a few measurements in a row. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from outboxrelay_operator.measurements import Backlog, Rates

WINDOW_SECONDS = 30.0
_SHORTEST_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class _Sample:
    backlog: Backlog
    sent: float | None


class RateTracker:
    """The last half minute of one pair."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add(self, backlog: Backlog, *, sent: float | None) -> None:
        """Note a measurement and the rate that the relays reported at that time (None: unknown)."""
        if self._samples and backlog.at < self._samples[-1].backlog.at:
            # The clock was set back: what was measured before cannot be compared, and would never grow old.
            self._samples.clear()
        self._samples.append(_Sample(backlog=backlog, sent=sent))
        while backlog.at - self._samples[0].backlog.at > WINDOW_SECONDS:
            # Costly looks are further apart than the window; two of them are needed all the same.
            if len(self._samples) == 2 and backlog.at <= self._samples[0].backlog.believe_until:
                break
            self._samples.popleft()

    @property
    def settled(self) -> bool:
        """Whether it was measured for long enough to tell rates, if they can be told at all."""
        return _long_enough(self._told() or self._samples)

    def _told(self) -> list[_Sample]:
        """The newest in a row for which the relays have told what they sent."""
        return list(takewhile(lambda sample: sample.sent is not None, reversed(self._samples)))[::-1]

    def rates(self, *, sent: float | None) -> Rates:
        """The rates now; `sent` is what the relays report."""
        return Rates(arrival=self._arrival(), sent=sent)

    def _arrival(self) -> float | None:
        moved, told = None, self._told()
        if _long_enough(told):
            first, last = told[0].backlog, told[-1].backlog
            sent = [sample.sent for sample in told if sample.sent is not None]
            moved = max(0.0, sum(sent) / len(sent) + (last.rows - first.rows) / (last.at - first.at))
            if first.exact and last.exact:
                return moved
        if not _long_enough(self._samples):
            return None
        first, last = self._samples[0].backlog, self._samples[-1].backlog
        if first.highest_id is None or last.highest_id is None:
            return None
        # Ids are drawn for rows that are rolled back, too: rather too many than too few.
        drawn = max(0.0, (last.highest_id - first.highest_id) / (last.at - first.at))
        if last.whole_table:
            return drawn
        # Of a part of a table the ids tell only the most that it can be; how an estimate moves is better than nothing.
        return None if moved is None else min(moved, drawn)


def _long_enough(samples: Sequence[_Sample]) -> bool:
    return len(samples) > 1 and samples[-1].backlog.at - samples[0].backlog.at >= _SHORTEST_SECONDS
