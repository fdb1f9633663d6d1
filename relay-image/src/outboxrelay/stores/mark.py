"""`retention.policy: Mark`: a row that was sent stays, and a status or time column says that it was.

Rows with the failed value were not sent: they are read again, so that they keep holding back their key when another
relay takes over, and are sent once what was wrong with them is mended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from psycopg import sql

from outboxrelay.config import Mark
from outboxrelay.stores.columns import ColumnType, Forget, Name, Text

WITH_ZONE: Final = "timestamp with time zone"
TIME_TYPES: Final = (WITH_ZONE, "timestamp without time zone")
"""Without a time zone it is taken to be UTC, in which the relay writes it."""


class MarkPolicy:
    """`Policy` for one table."""

    def __init__(
        self,
        mark: Mark,
        *,
        table: Name,
        row_id: Name,
        types: Mapping[str, ColumnType],
        keep_for_seconds: float | None,
    ) -> None:
        self._mark = mark
        self._table = table
        self._id = row_id
        self._types = types
        self._keep_for = keep_for_seconds

    def unsent(self) -> sql.Composable | None:
        """See `Policy.unsent`."""
        return unsent(self._mark)

    def settle(self, condition: sql.Composable) -> sql.Composed:
        """See `Policy.settle`."""
        mark = self._mark
        sent: sql.Composable = self._now(mark.column) if mark.sent is None else Text(mark.sent)
        changes: list[sql.Composable] = [sql.SQL("{} = {}").format(Name(mark.column), sent)]
        if mark.sent_at_column is not None:
            changes.append(sql.SQL("{} = {}").format(Name(mark.sent_at_column), self._now(mark.sent_at_column)))
        if mark.error_column is not None:
            changes.append(sql.SQL("{} = NULL").format(Name(mark.error_column)))
        return sql.SQL("UPDATE {table} SET {changes} WHERE {condition} AND {unsent}").format(
            table=self._table, changes=sql.SQL(", ").join(changes), condition=condition, unsent=unsent(mark)
        )

    def note(self) -> sql.Composed | None:
        """See `Policy.note`. Nothing is written when the row says so already."""
        mark = self._mark
        written: list[tuple[Name, sql.Composable]] = []
        if mark.failed is not None:
            written.append((Name(mark.column), Text(mark.failed)))
        if mark.error_column is not None:
            written.append((Name(mark.error_column), self._message(mark.error_column)))
        if not written:
            return None
        differs = [sql.SQL("{} IS DISTINCT FROM {}").format(name, value) for name, value in written]
        return sql.SQL(
            "UPDATE {table} SET {changes} WHERE {id} = (SELECT {id} FROM {table} WHERE {id} = %(id)s::int8"
            " AND {unsent} AND ({differs}) FOR UPDATE SKIP LOCKED) AND {unsent}"
        ).format(
            table=self._table,
            id=self._id,
            changes=sql.SQL(", ").join([sql.SQL("{} = {}").format(name, value) for name, value in written]),
            differs=sql.SQL(" OR ").join(differs),
            unsent=unsent(mark),
        )

    def _message(self, column: str) -> sql.Composable:
        """As much of the message as the column holds."""
        length = self._types[column].length
        message = sql.SQL("%(message)s::text")
        return message if length is None else sql.SQL("left({}, {})").format(message, sql.Literal(length))

    def cleanup(self) -> Forget | None:
        """See `Policy.cleanup`."""
        time_column = self._mark.time_column
        if self._keep_for is None or time_column is None:
            return None
        # A time column says by itself that the row was sent. Whatever is neither pending nor failed was dealt with by
        # somebody, but only what has the sent value was sent.
        sent = (
            sql.SQL("true")
            if self._mark.sent is None
            else sql.SQL("{} = {}").format(Name(self._mark.column), Text(self._mark.sent))
        )
        statement = sql.SQL(
            "WITH seen AS MATERIALIZED (SELECT {id} AS i, {sent} AND {time} < {limit} AS old,"
            " {sent} AND {time} >= {limit} AS young"
            " FROM {table} WHERE {id} >= %(start)s::int8 ORDER BY {id} LIMIT %(rows)s::int8),"
            " gone AS (DELETE FROM {table} WHERE {id} = ANY (ARRAY(SELECT i FROM seen WHERE old))"
            " AND {sent} AND {time} < {limit})"
            " SELECT (SELECT count(*) FROM seen), (SELECT max(i) FROM seen)::int8,"
            " (SELECT min(i) FROM seen WHERE young)::int8"
        ).format(
            id=self._id,
            table=self._table,
            sent=sent,
            time=Name(time_column),
            limit=sql.SQL("{} - make_interval(secs => {})").format(self._now(time_column), sql.Literal(self._keep_for)),
        )
        return Forget(statement, table=self._table, row_id=self._id)

    def _now(self, column: str) -> sql.Composable:
        """The present time, of the column's type."""
        if self._types[column].kind == WITH_ZONE:
            return sql.SQL("now()")
        return sql.SQL("(now() AT TIME ZONE 'UTC')")


def unsent(mark: Mark) -> sql.Composable:
    """The condition for rows that were not sent; also the predicate of the index that the reads need."""
    column = Name(mark.column)
    pending: sql.Composable = (
        sql.SQL("{} IS NULL").format(column)
        if mark.pending is None
        else sql.SQL("{} = {}").format(column, Text(mark.pending))
    )
    if mark.failed is None:
        return pending
    return sql.SQL("({} OR {} = {})").format(pending, column, Text(mark.failed))
