"""Rows that no topic takes: they stay in their table for ever unless somebody is told. Pure.

They are measured as if they were a pair of their own. Topics without match take all that is left, so only tables
without such a topic can hold any; other OutboxRelays over the same table may take what this one does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from outboxrelay.config import Match
from outboxrelay.wording import counted
from outboxrelay_operator.conflicts import table_ids
from outboxrelay_operator.display import significant
from outboxrelay_operator.measurements import Backlog
from outboxrelay_operator.pairs import Pair

_ROUTE = 64
_COUNTED = 10_000
"""Above it rows are not counted."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """The unrouted rows of one table, as last measured; None if that failed or is too old."""

    pair: Pair
    backlog: Backlog | None

    @property
    def place(self) -> str:
        """The table, for people."""
        database = self.pair.database
        return f"table {database.table.qualified} in database {database.dbname} on {database.address}"

    @property
    def message(self) -> str | None:
        """What waits there and what to do; None if nothing does."""
        if self.backlog is None or self.backlog.rows == 0:
            return None
        rows = counted(f"{significant(self.backlog.rows, 2):.0f}", "row")
        count = rows if self.backlog.exact else "more than 10000 rows"
        if not self.backlog.exact and self.backlog.rows <= _COUNTED:
            count = "some rows (counting them took too long)"
        seen = ", ".join(_shown(route) for route in self.backlog.routes) or "not known"
        column = self.pair.database.table.columns.route
        return f"{self.place}: no topic takes {count}; {column} is {seen}: add it to a match, or a topic without match"


def _shown(route: str | None) -> str:
    if route is None:
        return "NULL"
    return f"'{route if len(route) <= _ROUTE else route[: _ROUTE - 3] + '...'}'"


def leftovers(pairs: Sequence[Pair], others: Iterable[Pair]) -> tuple[Pair, ...]:
    """For each table that no topic takes wholly: what none takes. `others` are pairs of other OutboxRelays."""
    tables: dict[str, list[Pair]] = {}
    for pair in pairs:
        tables.setdefault(pair.database.name, []).append(pair)
    foreign = list(others)
    found = []
    for name, mine in tables.items():
        here = table_ids(mine[0])
        matches = [pair.match for pair in (*mine, *(pair for pair in foreign if here & table_ids(pair)))]
        if any(match.include is None for match in matches):
            continue
        taken = {route for match in matches for route in match.include or ()}
        found.append(
            replace(
                mine[0], name=f"{mine[0].key.name}/{name}", match=Match(exclude=tuple(sorted(taken))), leftover=True
            )
        )
    return tuple(found)


def unrouted_rows(leftovers: Sequence[Leftover]) -> int | None:
    """How many there are in all; None if there can be none, or that is not known of a table."""
    known = [leftover.backlog.rows for leftover in leftovers if leftover.backlog is not None]
    return sum(min(rows, 10_001) for rows in known) if leftovers and len(known) == len(leftovers) else None
