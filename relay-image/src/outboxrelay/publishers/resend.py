"""In which order the rows of a refused batch are sent again, so that only the culprits stay behind.

A broker refuses a record batch as a whole, innocent neighbours included, and with it everything behind it in the
partition is given up. Sent again in waves that hold at most one row of a key, a row can only be refused because of
itself or a neighbour, never overtake a lower row of its key. A refused wave is halved until the culprits are alone.

Pure: sending is the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from outboxrelay.ports import Row


class Resend:
    """The rows still to be sent, and the groups in which to do it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """`rows` in the order in which those of one key must arrive."""
        self._rest: Sequence[Row] = rows
        self._groups: deque[list[Row]] = deque()

    def next_group(self, stuck_keys: Collection[bytes]) -> tuple[list[Row], list[Row]]:
        """The rows to send now, none when all is done; and rows left out for good since their key is stuck."""
        if self._groups:
            return self._groups.popleft(), []
        wave: list[Row] = []
        rest: list[Row] = []
        left_out: list[Row] = []
        keys: set[bytes] = set()
        for row in self._rest:
            if row.key is None:
                wave.append(row)
            elif row.key in stuck_keys:
                left_out.append(row)
            elif row.key in keys:
                rest.append(row)
            else:
                keys.add(row.key)
                wave.append(row)
        self._rest = rest
        return wave, left_out

    def refused(self, group: Sequence[Row], refused: Sequence[Row]) -> Row | None:
        """Take note that `refused` of `group` were refused; returns the culprit if it stood alone."""
        if len(group) == 1:
            return refused[0]
        if len(refused) < len(group):
            self._groups.appendleft(list(refused))
        else:
            middle = len(refused) // 2
            self._groups.extendleft((list(refused[middle:]), list(refused[:middle])))
        return None
