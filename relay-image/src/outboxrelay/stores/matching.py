"""Which rows of a table are those of a pair: the condition on the route column.

Values are part of the statement, not parameters: only so does the planner see that an index on just these rows will do.
The operator counts with the same condition, so one index serves both.
"""

from __future__ import annotations

from psycopg import sql

from outboxrelay.config import Match
from outboxrelay.stores.columns import Text


def matching(match: Match, route: sql.Composable) -> sql.Composable | None:
    """The condition on `route`; None if every row is the pair's.

    Byte for byte, whatever the column's collation takes for equal: else two pairs would send the same row.
    """
    if match.include is not None:
        return sql.SQL('{route}::text COLLATE "C" = ANY ({values})').format(route=route, values=_texts(match.include))
    if match.exclude:
        return sql.SQL('({route} IS NULL OR {route}::text COLLATE "C" <> ALL ({values}))').format(
            route=route, values=_texts(match.exclude)
        )
    return None


def _texts(values: tuple[str, ...]) -> sql.Composable:
    return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join([Text(value) for value in values]))
