"""How many rows are settled by one statement: all of a batch, unless that takes longer than a statement may.

A trigger, or a foreign key whose table has no index on it, can make each row cost so much that the whole batch never
gets through: it would be cancelled, undone and begun anew for ever. Pure: the times are told from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FEWER: Final = 4
"""By how much each cancelled statement divides the rows, and how much of the time must be left to double them."""


class Piece:
    """The size of the next piece."""

    def __init__(self, *, rows: int, seconds: float) -> None:
        """`rows` is the bound of a batch; `seconds` is how long a statement may take."""
        self._most = rows
        self._seconds = seconds
        self._rows: int | None = None

    def of(self, ids: Sequence[int], *, start: int) -> Sequence[int]:
        """The ids from the position `start` on that are to be settled by one statement."""
        if self._rows is None:
            return ids[start:] if start else ids
        return ids[start : start + self._rows]

    def took_too_long(self, rows: int) -> None:
        """A statement about so many rows was cancelled."""
        self._rows = max(1, rows // _FEWER)

    def took(self, seconds: float, *, rows: int, gone: int) -> None:
        """So many rows were settled in this time; `gone` of them were there. Of others nothing is learnt."""
        if self._rows is None or gone < rows or seconds > self._seconds / _FEWER:
            return
        self._rows = 2 * rows if 2 * rows < self._most else None
