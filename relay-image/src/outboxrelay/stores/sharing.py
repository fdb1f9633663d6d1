"""How many rows to ask for at once, so that the byte bound of a batch holds whatever comes.

Adding sizes up in the server is exact, and costs it as much as reading the rows. As long as rows are small it is
cheaper to give each row an even share of the bytes, and to be told of the rows that need more. Pure: what rows weighed
is told from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FEWEST: Final = 64
"""Below this many rows a read, the sum in the server costs nothing that could be noticed."""


class EvenShare:
    """Chooses between the two kinds of reading from what the last reads brought."""

    def __init__(self, *, rows: int, size: int) -> None:
        """`rows` and `size` (bytes) are the bounds of one batch."""
        self._rows = rows
        self._size = size
        self._quick = rows
        self._exact = rows

    def quick_limit(self, wanted: int) -> int | None:
        """Rows to ask for with an even share each; None when the sizes have to be added up."""
        return min(self._quick, wanted) if self._quick else None

    def exact_limit(self, wanted: int) -> int:
        """Rows to ask for when their sizes are added up. What does not fit is weighed in vain."""
        return min(self._exact, wanted)

    def bytes_of(self, limit: int) -> int:
        """The share of one row."""
        return self._size // max(1, limit)

    def exceeded(self) -> None:
        """A row was larger than its share. A few rows tell how large; more would be weighed in vain."""
        self._quick = 0
        self._exact = min(self._exact, _FEWEST)

    def fitted(self, sizes: Sequence[int]) -> None:
        """No row was larger than its share."""
        if self._quick < self._rows:
            self._quick = self._fitting(sizes, most=2 * max(self._quick, _FEWEST))

    def weighed(self, sizes: Sequence[int], *, within: bool) -> None:
        """The sizes were added up; `within`: the byte bound cut nothing off."""
        self._exact = min(self._rows, self._exact * 4) if within else 2 * len(sizes) + 8
        self._quick = self._fitting(sizes, most=self._rows)

    def _fitting(self, sizes: Sequence[int], *, most: int) -> int:
        """As many rows as have room if each is a quarter larger than the largest; 0 if they are too few."""
        needed = max(sizes, default=0) * 5 // 4 + 1
        limit = min(self._rows, most, self._size // needed)
        return limit if limit >= min(_FEWEST, self._rows) else 0
