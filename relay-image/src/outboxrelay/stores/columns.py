"""Names and types of columns, and other small parts that the policies' statements are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql
from psycopg.abc import AdaptContext


class Name(sql.Identifier):
    """A quoted identifier for statements with parameters, in which psycopg takes every % for a placeholder."""

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        """See `Identifier.as_bytes`."""
        return super().as_bytes(context).replace(b"%", b"%%")


class Text(sql.Literal):
    """A quoted value for statements with parameters; its type is that of what it is compared with."""

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        """See `Literal.as_bytes`."""
        return super().as_bytes(context).replace(b"%", b"%%")


class ColumnType(NamedTuple):
    """A column's base type: `kind` as PostgreSQL's `format_type` spells it, or "enum"; then its name in the catalog."""

    kind: str
    schema: str
    name: str
    length: int | None = None
    """The most characters of a varchar that has a limit."""


@dataclass(frozen=True, slots=True)
class Forget:
    """One step of a clean-up: see `cleanup.Cleanup`.

    The statement takes %(start)s, the lowest id to look at, and %(rows)s, how many. It removes those of them that are
    old enough, and returns how many it saw, the highest id it saw, and the lowest one that is too young.
    """

    statement: sql.Composed
    table: Name
    row_id: Name
