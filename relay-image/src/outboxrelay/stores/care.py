"""After a read that failed: how many rows to read, each looked into before it is made text, until the culprit is past.

A value may be far larger as text than it is stored: a hundred thousand digits take ten bytes in jsonb. Making its text
may fail, take too long, or take the server down, and with the read of one row that of all. To look into each value
beforehand costs more than reading it, so it is done only where a read failed or such a row is known to be. Pure: what
became of the reads is told from outside.
"""

from __future__ import annotations

from typing import Final

FIRST_ROWS: Final = 64
"""Rows of the first careful read: few enough to be quick, however much there is to look into."""

_FEWER: Final = 8
"""By how much each further failure divides the rows; each one may have cost the server a gigabyte."""


class Care:
    """Says whether to read carefully, and how many rows at a time."""

    def __init__(self, *, rows: int) -> None:
        """`rows` is the bound of one batch."""
        self._rows = rows
        self._limit = min(FIRST_ROWS, rows)
        self._left = 0
        """Rows to pass until the next read may be a usual one."""
        self._up_to: int | None = None
        """The highest id that was found too large: it is still in the table as a rule, and tried again."""
        self._blind = False

    @property
    def blind(self) -> bool:
        """Whether the one row to be read is to be read without its content."""
        return self._blind

    def limit(self, wanted: int, *, start: int) -> int | None:
        """Rows to ask for carefully, in a read from the id `start` on; None if it may be a usual one."""
        if not self._left and (self._up_to is None or start > self._up_to):
            return None
        return 1 if self._blind else min(self._limit, wanted)

    def failed(self, limit: int, *, careful: bool) -> None:
        """A read of so many rows failed, or its answer outgrew what was reckoned."""
        self._left = max(self._left, limit)
        self._blind = False
        if careful:
            self._limit = max(1, limit // _FEWER)

    def refused(self) -> None:
        """The content of a single row, which is the next one, cannot be had."""
        self._blind = True

    def passed(self, rows: int, *, too_large: int | None, complete: bool) -> None:
        """A careful read went through; `too_large` is the highest id of a row that is."""
        self._blind = False
        self._limit = min(self._rows, 2 * self._limit)
        self._left = 0 if complete else max(0, self._left - rows)
        if too_large is not None:
            # Where one is there may be more.
            self._left = 0 if complete else self._rows
            self._up_to = too_large if self._up_to is None else max(too_large, self._up_to)
