"""`retention.policy: Keep`: a row that was sent moves to a second table, in which it stays for replay.

The outbox table itself is as with Delete: it holds what waits, and no more, so neither the reads nor the counting of
the backlog ever meet what was sent. The move is one statement, so a row is in one table or in the other. No transaction
id is stored, and so nothing in it is of the one server alone: a dump of both tables can be restored anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from outboxrelay.config import RelayConfig
from outboxrelay.stores.columns import Forget, Name

SENT_AT: Final = "outbox_sent_at"
"""The column of the second table that the first has not: when the row was moved."""

MOVED_COLUMNS: Final = """
SELECT a.attname, EXISTS (SELECT FROM pg_attribute b WHERE b.attrelid = sent.oid AND b.attname = a.attname
                          AND b.attnum > 0 AND NOT b.attisdropped AND b.attgenerated = ''),
       a.attgenerated <> ''
FROM pg_namespace n
JOIN pg_class outbox ON outbox.relnamespace = n.oid AND outbox.relname = %(outbox)s
JOIN pg_attribute a ON a.attrelid = outbox.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_class sent ON sent.relnamespace = n.oid AND sent.relname = %(sent)s AND sent.relkind IN ('r', 'p')
WHERE n.nspname = %(schema)s
ORDER BY a.attnum
"""
"""Columns of the outbox table, whether the second table can take each, and whether the first computes it."""

_KEEPS_ROWS: Final = """
WITH RECURSIVE below AS (
    SELECT %(oid)s::oid AS oid UNION SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid)
SELECT EXISTS (
    SELECT FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM below) AND tgenabled <> 'D' AND tgtype & 11 = 11)
OR EXISTS (
    SELECT FROM pg_rewrite WHERE ev_class = %(oid)s AND ev_type = '4' AND ev_enabled <> 'D')
"""
"""The bits are those of FOR EACH ROW, BEFORE and DELETE: TRIGGER_TYPE_* in PostgreSQL's catalog/pg_trigger.h; the type
of event is DELETE, and counts only of the table that the statement names."""

# OVERRIDING, for those who made the second table INCLUDING ALL.
_MOVE_WHAT_GOES: Final = sql.SQL(
    "WITH gone AS (DELETE FROM {table} WHERE {condition} RETURNING {columns})"
    " INSERT INTO {sent} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM gone"
)
_COPY_AND_DELETE: Final = sql.SQL(
    "WITH kept AS (INSERT INTO {sent} ({columns}) OVERRIDING SYSTEM VALUE"
    " SELECT {columns} FROM {table} WHERE {condition})"
    " DELETE FROM {table} WHERE {condition}"
)
"""Cheaper, where no row may stay: to put each aside between DELETE and INSERT costs more than the DELETE itself.

Both see the rows through one snapshot, in the order of the index on the id. A row that somebody else deletes at this
moment is kept all the same: it was sent.
"""


class KeepPolicy:
    """`Policy` for one pair of tables."""

    def __init__(
        self,
        *,
        table: Name,
        row_id: Name,
        sent: Name,
        columns: Sequence[str],
        may_stay: bool,
        keep_for_seconds: float | None,
    ) -> None:
        """`columns` are those of the outbox table, all of which are moved.

        `may_stay`: a row that is deleted may stay in the outbox table all the same, see `rows_may_stay`.
        """
        self._table = table
        self._id = row_id
        self._sent = sent
        self._columns = columns
        self._may_stay = may_stay
        self._keep_for = keep_for_seconds

    def unsent(self) -> sql.Composable | None:
        """See `Policy.unsent`."""
        return None

    def settle(self, condition: sql.Composable) -> sql.Composed:
        """See `Policy.settle`."""
        return (_MOVE_WHAT_GOES if self._may_stay else _COPY_AND_DELETE).format(
            table=self._table,
            condition=condition,
            sent=self._sent,
            columns=sql.SQL(", ").join([Name(name) for name in self._columns]),
        )

    def note(self) -> sql.Composed | None:
        """See `Policy.note`."""
        return None

    def cleanup(self) -> Forget | None:
        """See `Policy.cleanup`."""
        if self._keep_for is None:
            return None
        statement = sql.SQL(
            "WITH seen AS MATERIALIZED (SELECT {id} AS i, {time} < {limit} AS old FROM {sent}"
            " WHERE {id} >= %(start)s::int8 ORDER BY {id} LIMIT %(rows)s::int8),"
            " gone AS (DELETE FROM {sent} WHERE {id} = ANY (ARRAY(SELECT i FROM seen WHERE old))"
            " AND {time} < {limit})"
            " SELECT (SELECT count(*) FROM seen), (SELECT max(i) FROM seen)::int8,"
            " (SELECT min(i) FROM seen WHERE NOT old)::int8"
        ).format(
            id=self._id,
            sent=self._sent,
            time=Name(SENT_AT),
            limit=sql.SQL("now() - make_interval(secs => {})").format(sql.Literal(self._keep_for)),
        )
        return Forget(statement, table=self._sent, row_id=self._id)


def sent_table(config: RelayConfig) -> str:
    """Name of the second table, which is in the schema of the first."""
    keep = config.retention.keep
    return f"{config.table.name[:58]}_sent" if keep is None else keep.table


def rows_may_stay(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Whether a trigger of the outbox table or of what is below it, or a rule, can keep a row that is deleted.

    PostgreSQL refuses most rules in a statement that moves only what goes, and that is found before any row is sent.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    found = connection.execute(_KEEPS_ROWS, {"oid": oid}).fetchone()
    return found is not None and bool(found[0])


def moved_columns(connection: psycopg.Connection[Any], config: RelayConfig) -> tuple[list[str], list[str]]:
    """The columns that are moved, and those that should be but that the second table lacks.

    What the outbox table computes by itself can be computed again, and need not be in the second table.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    found = connection.execute(
        MOVED_COLUMNS,
        {"schema": config.table.schema_, "outbox": config.table.name, "sent": sent_table(config)},
    ).fetchall()
    moved = [name for name, there, _ in found if there]
    return moved, [name for name, there, computed in found if not there and not computed]
