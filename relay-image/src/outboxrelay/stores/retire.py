"""Whole partitions of the second table of `retention.policy: Keep`, emptied once all that is in them is old enough.

Only a table that is partitioned by range of the time of sending says so by itself: the upper bound of a partition is a
promise about each of its rows. An emptied partition stays. To drop it, as to create those to come, takes the owner of
the table, which a relay is not; TRUNCATE can be granted.

A partition is locked first and looked at again then: what was detached meanwhile, to be archived, is left alone, and of
several relays one empties it. The lock is hardly waited for: a partition of the past has no writers, but may have
readers, and those that come behind us would have to wait as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import psycopg
from psycopg import errors, sql

from outboxrelay.config import RelayConfig
from outboxrelay.stores.errors import raised_by_function
from outboxrelay.stores.keep import SENT_AT, sent_table
from outboxrelay.stores.session import Connection, acting_user, wait_briefly
from outboxrelay.stores.table import ROW_SECURITY_REMEDY

_SHAPE: Final = """
SELECT c.relkind = 'p',
       coalesce(p.partstrat = 'r' AND p.partnatts = 1 AND EXISTS (
           SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = p.partattrs[0]
             AND a.attname = %(sent_at)s AND a.atttypid = 'timestamptz'::regtype), false),
       EXISTS (
           SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND a.attname = %(id)s),
       row_security_active(c.oid)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
WHERE n.nspname = %(schema)s AND c.relname = %(sent)s AND c.relkind IN ('r', 'p')
"""

_PARTITIONS: Final = """
WITH partition AS (
    SELECT n.nspname, c.relname, c.oid, pg_get_expr(c.relpartbound, c.oid) AS bounds
    FROM pg_class parent
    JOIN pg_namespace of_parent ON of_parent.oid = parent.relnamespace
    JOIN pg_inherits i ON i.inhparent = parent.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE of_parent.nspname = %(schema)s AND parent.relname = %(sent)s
), bounded AS (
    SELECT *, coalesce(substring(bounds FROM 'FROM [(]''([^'']*)''[)]')::timestamptz, '-infinity') AS lower,
           CASE bounds WHEN 'DEFAULT' THEN NULL
           ELSE coalesce(substring(bounds FROM 'TO [(]''([^'']*)''[)]')::timestamptz, 'infinity') END AS upper
    FROM partition
)
SELECT nspname, relname, has_table_privilege(%(user)s, oid, 'TRUNCATE'), upper IS NOT NULL,
       CASE WHEN upper IS NULL THEN true ELSE lower <= now() AND now() < upper END,
       CASE WHEN upper <= now() - make_interval(secs => %(keep_for)s)
            THEN (SELECT sum(pg_relation_size(relid)) > 0 FROM pg_partition_tree(oid)) ELSE false END
FROM bounded ORDER BY upper, oid
"""
"""The server spells and reads the bounds in one and the same session. A partition may itself be partitioned. What a
backslash means depends on standard_conforming_strings, so there is none."""

Outcome = Literal["emptied", "busy", "nothing"]
"""One partition was emptied, by us or by another relay just before; somebody uses it; there is none to empty."""


class Shape(NamedTuple):
    """What the clean-up of a second table can make use of."""

    partitioned: bool
    by_time: bool
    """It is partitioned by range of the time of sending, and by nothing else."""

    indexed: bool
    """An index begins with the id."""

    hidden: bool
    """Row-level security applies to the session's user."""


class Partition(NamedTuple):
    """A partition of a table that is partitioned by time."""

    schema: str
    name: str
    may_truncate: bool
    ends: bool
    """It is not the default partition, in which rows of any age may be."""

    current: bool
    """It takes rows that are sent now."""

    due: bool
    """There is something in it, all of which was kept long enough."""

    @property
    def identifier(self) -> sql.Identifier:
        """Its quoted name."""
        return sql.Identifier(self.schema, self.name)


def shape_of(connection: psycopg.Connection[Any], config: RelayConfig) -> Shape | None:
    """The second table, or None if there is none.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    where = _where(config) | {"sent_at": SENT_AT, "id": config.table.columns.id}
    found = connection.execute(_SHAPE, where).fetchone()
    return None if found is None else Shape(*found)


def partitions(connection: psycopg.Connection[Any], config: RelayConfig, *, user: str) -> Sequence[Partition]:
    """The partitions, the oldest first, of a table that is partitioned by time, as `user` may use them.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    given = _where(config) | {"user": user, "keep_for": config.retention.keep_for_seconds}
    return [Partition(*row) for row in connection.execute(_PARTITIONS, given).fetchall()]


class Retirement:
    """Empties the partitions of one second table."""

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._tried: dict[tuple[str, str], str | None] = {}
        """Partitions that could not be emptied, the one that was tried longest ago first: the SQLSTATE with which the
        server refused; None if somebody used it, or it took too long."""

        self.indexed = False
        """Whether an index begins with the id, as of the last look: without it no rows can be removed one by one."""
        self.complaint: str | None = None
        """Why rows stay, or take more work than they need, as of the last look."""

    def run(self, connection: Connection) -> Outcome:
        """Empty the oldest partition that is due.

        One that cannot be emptied keeps no other from it: it is tried again when all others were.

        Raises:
            psycopg.Error: the session is lost, or the server is slow.
        """
        try:
            with connection.transaction():
                wait_briefly(connection)
                shape = shape_of(connection, self._config)
                due = self._due(connection) if shape is not None and shape.by_time else []
        except errors.LockNotAvailable:
            return "busy"
        if shape is None:
            return "nothing"
        self.indexed = shape.indexed
        outcome = self._empty_one(connection, due)
        self.complaint = self._about(shape, due)
        return outcome

    def _empty_one(self, connection: Connection, due: Sequence[Partition]) -> Outcome:
        names = {(each.schema, each.name): each for each in due if each.may_truncate}
        self._tried = {name: why for name, why in self._tried.items() if name in names}
        for name in [*(name for name in names if name not in self._tried), *self._tried]:
            again = name in self._tried
            outcome = self._empty(connection, names[name])
            if outcome != "nothing":
                return outcome
            if again:
                # Each attempt keeps everybody else out for a moment.
                break
        return "nothing"

    def _empty(self, connection: Connection, partition: Partition) -> Outcome:
        """Nothing if the server refuses it."""
        name = partition.schema, partition.name
        self._tried.pop(name, None)
        try:
            with connection.transaction():
                wait_briefly(connection)
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(partition.identifier))
                if partition in self._due(connection):
                    connection.execute(sql.SQL("TRUNCATE {}").format(partition.identifier))
                return "emptied"
        except psycopg.Error as error:
            if raised_by_function(error) or isinstance(error, errors.FeatureNotSupported):
                self._tried[name] = error.sqlstate
                return "nothing"
            self._tried[name] = None
            if isinstance(error, errors.LockNotAvailable | errors.UndefinedTable):
                return "busy"
            # A trigger that is slow must not be met again soon: that is for the caller.
            raise

    def _due(self, connection: Connection) -> list[Partition]:
        return [each for each in partitions(connection, self._config, user=acting_user(connection)) if each.due]

    def _about(self, shape: Shape, due: Sequence[Partition]) -> str | None:
        name = sent_table(self._config)
        if shape.hidden:
            return f"row-level security applies to {name}, so old rows may be hidden, and stay; {ROW_SECURITY_REMEDY}"
        if not shape.by_time and not shape.indexed:
            return f"no index of {name} begins with {self._config.table.columns.id}, so nothing is removed from it"
        refused = next((why for why in self._tried.values() if why is not None), None)
        if refused is not None:
            return (
                f"an old partition of {name} cannot be truncated (SQLSTATE {refused}): a foreign key refers to it or a"
                f" trigger forbids it, so {self._how()}"
            )
        if all(each.may_truncate for each in due):
            return None
        lacking = f"the grant TRUNCATE is missing on old partitions of {name}"
        return f"{lacking}, so {self._how()}; `outboxrelay sql` prints it"

    def _how(self) -> str:
        return "rows are removed one by one" if self.indexed else "their rows stay"


def _where(config: RelayConfig) -> dict[str, Any]:
    return {"schema": config.table.schema_, "sent": sent_table(config)}
