"""The statements that measure, composed from quoted identifiers. All of them read only, and all are bounded.

`LIMIT` inside a subquery is what bounds a count; `ORDER BY id` makes the planner walk the index on id from the
floor, so that what was deleted below it costs nothing.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg import sql
from psycopg.abc import AdaptContext

from outboxrelay.basetype import BASE_TYPE
from outboxrelay_operator.api.retention import Mark
from outboxrelay_operator.pairs import Pair

COUNT_LIMIT: Final = 10_000
"""Up to here the backlog is counted; above it is estimated."""

SHOWN_ROUTES: Final = 5
"""Of rows that no topic takes."""

LOWEST_ID: Final = -(2**63)

ID_TYPES: Final = frozenset({"smallint", "integer", "bigint"})
TIME_TYPES: Final = frozenset({"timestamp with time zone"})
"""Without a time zone nobody can tell how old a row is."""

INSPECT: Final = f"""
SELECT has_schema_privilege(n.oid, 'USAGE'),
       has_any_column_privilege(c.oid, 'SELECT'),
       EXISTS (
           SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
           WHERE i.indrelid = c.oid AND i.indisvalid AND a.attname = %(id)s
             -- Where rows that were sent stay, an index of all rows leads over all of them.
             AND (i.indpred IS NOT NULL) = %(partial)s
       ),
       (SELECT json_object_agg(a.attname, format_type(under.oid, NULL))
        FROM pg_attribute a CROSS JOIN LATERAL {BASE_TYPE} AS under
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           -- Since PostgreSQL 16.
           - coalesce(current_setting('reserved_connections', true)::int, 0),
       (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
       (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
       current_user::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p', 'f', 'v', 'm')
"""  # noqa: S608  of constants
"""The catalogues can be read without any grant on the table."""


def parameters(pair: Pair, *, floor: int) -> dict[str, Any]:
    """The parameters of `measure` and `estimate`."""
    routes = pair.match.include if pair.match.include is not None else pair.match.exclude
    return {"floor": floor, "routes": list(routes)}


def measure(pair: Pair, *, count: bool) -> sql.Composed:
    """Count (up to the limit and one more, or NULL), oldest id and its age, highest id, the database's clock."""
    columns = pair.database.table.columns
    age: sql.Composable = sql.SQL("NULL::float8")
    if columns.created_at is not None:
        # An infinite time has no age: before PostgreSQL 17 even asking for it is an error.
        age = sql.SQL(
            "CASE WHEN isfinite({created}) THEN extract(epoch FROM clock_timestamp() - {created})::float8 END"
        ).format(created=sql.Identifier(columns.created_at))
    counted: sql.Composable = sql.SQL("NULL::bigint")
    if count:
        counted = sql.SQL(
            "(SELECT count(*) FROM (SELECT FROM {table} WHERE {waiting} ORDER BY {id} LIMIT {limit}) AS bounded)"
        ).format(
            id=sql.Identifier(columns.id),
            table=_table(pair),
            waiting=_waiting(pair),
            limit=sql.Literal(COUNT_LIMIT + 1),
        )
    return sql.SQL(
        """
        WITH oldest AS (SELECT {id} AS id, {age} AS age FROM {table} WHERE {waiting} ORDER BY {id} LIMIT 1)
        SELECT {counted},
               (SELECT id FROM oldest),
               (SELECT age FROM oldest),
               (SELECT max({id}) FROM {table} WHERE {id} >= %(floor)s),
               extract(epoch FROM clock_timestamp())::float8
        """
    ).format(
        id=sql.Identifier(columns.id),
        age=age,
        table=_table(pair),
        waiting=_waiting(pair),
        counted=counted,
    )


def routes(pair: Pair) -> sql.Composed:
    """The most frequent routes among the oldest rows that wait, each cut to what a status shows."""
    return sql.SQL(
        """
        SELECT route
        FROM (SELECT left({route}::text, 128) AS route FROM {table} WHERE {waiting} ORDER BY {id} LIMIT 1000) AS oldest
        GROUP BY route ORDER BY count(*) DESC, route LIMIT {shown}
        """
    ).format(
        route=sql.Identifier(pair.database.table.columns.route),
        table=_table(pair),
        waiting=_waiting(pair),
        id=sql.Identifier(pair.database.table.columns.id),
        shown=sql.Literal(SHOWN_ROUTES),
    )


def estimate(pair: Pair) -> sql.Composed:
    """The planner's idea of how many rows wait."""
    return sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE {waiting}").format(
        table=_table(pair), waiting=_waiting(pair)
    )


def _table(pair: Pair) -> sql.Identifier:
    return sql.Identifier(pair.database.table.schema_, pair.database.table.name)


def _waiting(pair: Pair) -> sql.Composable:
    conditions = [sql.SQL("{} >= %(floor)s").format(sql.Identifier(pair.database.table.columns.id))]
    return sql.SQL(" AND ").join([*conditions, *_unsent(pair.retention.mark), *_routed(pair)])


def _unsent(mark: Mark | None) -> list[sql.Composable]:
    """The condition of the relay's own reads, so that one index serves both. Without a mark each row there waits."""
    if mark is None:
        return []
    column = sql.Identifier(mark.column)
    pending = _equals(column, mark.pending)
    if mark.failed is None:
        return [pending]
    return [sql.SQL("({} OR {})").format(pending, _equals(column, mark.failed))]


class _Text(sql.Literal):
    """A quoted value, which takes the type of its column, for statements in which % begins a placeholder."""

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        return super().as_bytes(context).replace(b"%", b"%%")


def _equals(column: sql.Identifier, value: str | None) -> sql.Composable:
    if value is None:
        return sql.SQL("{} IS NULL").format(column)
    return sql.SQL("{} = {}").format(column, _Text(value))


def _routed(pair: Pair) -> list[sql.Composable]:
    """The condition of the relay's own reads, so that one index serves both, and no row is counted for two pairs."""
    columns, match = pair.database.table.columns, pair.match
    if match.everything:
        return []
    route = sql.SQL('{}::text COLLATE "C"').format(sql.Identifier(columns.route))
    if match.include is not None:
        return [sql.SQL("{} = ANY (%(routes)s)").format(route)]
    return [
        sql.SQL("({} IS NULL OR {} <> ALL (%(routes)s))").format(sql.Identifier(columns.route), route),
    ]
