"""Statements and parameters in the form in which libpq sends them.

Parameters travel as text, which the server reads into arrays several times faster than psycopg would dump a list.
What comes from a row is never part of a statement; what comes from the configuration may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import sql

_PLACEHOLDER = re.compile(rb"%(?:\((\w+)\)s|%)")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with numbered placeholders, and the names of what goes there."""

    text: bytes
    names: tuple[str, ...]

    @classmethod
    def of(cls, composed: sql.Composed) -> Statement:
        """From psycopg's named placeholders."""
        names: list[str] = []

        def number(match: re.Match[bytes]) -> bytes:
            if match[1] is None:
                return b"%"
            name = match[1].decode()
            if name not in names:
                names.append(name)
            return b"$%d" % (names.index(name) + 1)

        return cls(text=_PLACEHOLDER.sub(number, composed.as_bytes(None)), names=tuple(names))


def array(ids: Iterable[int]) -> bytes:
    """An array literal of numbers."""
    return ("{" + ",".join(map(str, ids)) + "}").encode()
