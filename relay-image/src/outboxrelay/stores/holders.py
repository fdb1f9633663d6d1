"""Who holds vacuum back or locks the table: other sessions, prepared transactions and replication slots.

While a snapshot is held, no dead row younger than it can be cleared away, and the table grows. Looks into views that
everybody may read, but without pg_read_all_stats (or pg_monitor) the server hides when another user's session began.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from outboxrelay.report import Holder
from outboxrelay.stores.encoding import UNCONVERTIBLE

_VACUUM: Final = """
SELECT what, pid, {named}, application, state, seconds FROM (
    SELECT 'session' AS what, pid, NULL::text AS name, datname::text AS database, application_name AS application,
           state, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
           age(coalesce(backend_xmin, backend_xid)) AS distance
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type IN ('client backend', 'walsender', 'parallel worker')
      -- A snapshot matters to its own database, a transaction that writes to the snapshots of all.
      AND (backend_xid IS NOT NULL
           OR backend_xmin IS NOT NULL AND (datname = current_database() OR datname IS NULL))
    UNION ALL
    SELECT 'prepared transaction', NULL, gid, database::text, NULL, NULL,
           extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
    FROM pg_prepared_xacts
    UNION ALL
    SELECT 'replication slot', active_pid, slot_name::text, database::text, NULL, NULL, NULL, age(xmin)
    FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS holder
WHERE seconds IS NULL OR seconds >= %(at_least)s
ORDER BY distance DESC, seconds DESC LIMIT %(limit)s
"""
_NAMED: Final = sql.SQL(_VACUUM).format(named=sql.SQL("name, database"))
_NAMELESS: Final = sql.SQL(_VACUUM).format(named=sql.SQL("NULL, NULL"))

_LOCKS = """
SELECT DISTINCT ON (l.pid) 'lock', l.pid, l.mode, current_database()::text, a.application_name, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = %(oid)s::int8::oid
  AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
ORDER BY l.pid LIMIT 10
"""
"""Modes that keep a writer or the relay's removal out: see table "Conflicting Lock Modes" of the manual."""


def holding_vacuum_back(connection: psycopg.Connection[Any], *, at_least: float, limit: int) -> list[Holder]:
    """Whoever keeps dead rows from being cleared away for `at_least` seconds, the worst first.

    Raises:
        psycopg.Error: the views could not be read.
    """
    given = {"at_least": at_least, "limit": limit}
    try:
        found = connection.execute(_NAMED, given).fetchall()
    except (UnicodeDecodeError, *UNCONVERTIBLE):
        # Names that all databases share are in the encoding of the one in which they were given.
        found = connection.execute(_NAMELESS, given).fetchall()
    return [_holder(row) for row in found]


def locking(connection: psycopg.Connection[Any], oid: int) -> list[Holder]:
    """Whoever has the whole table locked against writers or removals.

    Raises:
        psycopg.Error: the views could not be read.
    """
    return [_holder(row) for row in connection.execute(_LOCKS, {"oid": oid}).fetchall()]


def sees_all_sessions(connection: psycopg.Connection[Any], *, role: str) -> bool:
    """Whether the server tells this role about other users' sessions; False if there is no such role.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    row = connection.execute(
        "SELECT rolsuper OR pg_has_role(oid, 'pg_read_all_stats', 'USAGE') FROM pg_roles WHERE rolname = %s", (role,)
    ).fetchone()
    return row is not None and bool(row[0])


def words(holder: Holder) -> str:
    """For messages: who it is, where, and for how long."""
    parts = [holder.what if holder.name is None else f"{holder.what} {holder.name}"]
    if holder.pid is not None:
        parts.append(f"of process {holder.pid}" if holder.what == "lock" else f"process {holder.pid}")
    if holder.application is not None:
        parts.append(f"({holder.application})")
    if holder.database is not None:
        parts.append(f"in database {holder.database}")
    if holder.state is not None:
        parts.append(f"{holder.state},")
    parts.append("since when is unknown" if holder.age_seconds is None else f"for {holder.age_seconds:.1f} s")
    return " ".join(parts)


def _holder(row: tuple[Any, ...]) -> Holder:
    what, pid, name, database, application, state, seconds = row
    return Holder(
        what=what,
        pid=pid,
        name=name,
        database=database,
        application=application or None,
        state=state,
        age_seconds=None if seconds is None else round(max(0.0, seconds), 1),
    )
