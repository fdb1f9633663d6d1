"""Whether the server has room for a pair's locks: one for each lane, and one for the relay itself.

They come from one table of fixed size that all sessions of all databases share. Who fills it makes other people's
transactions fail, so what could never fit is refused, and what comes near is told before.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import errors

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.ports import StoreError
from outboxrelay.stores.errors import place
from outboxrelay.stores.session import application_name

_CAPACITY: Final = """
SELECT current_setting('max_locks_per_transaction')::int8
       * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8)
"""
"""https://www.postgresql.org/docs/current/runtime-config-locks.html"""

_USED: Final = """
SELECT count(*) FROM pg_locks l WHERE NOT l.fastpath AND l.locktype <> 'virtualxid'
AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = l.pid AND a.application_name = %s)
"""
"""Without the locks of this pair's own relays."""

_MUCH: Final = 0.5
"""Share of the table above which there is little room for the applications."""

_REMEDY: Final = "raise max_locks_per_transaction (it takes a restart of the server), or use fewer lanes"


def capacity(connection: psycopg.Connection[Any]) -> int:
    """How many locks the server's table has room for.

    Raises:
        psycopg.Error: the server could not be asked.
    """
    row = connection.execute(_CAPACITY).fetchone()
    return 0 if row is None else int(row[0])


def used(connection: psycopg.Connection[Any], config: RelayConfig) -> int | None:
    """How many locks others hold; None where the server hides other sessions from applications.

    Raises:
        psycopg.Error: the server could not be asked.
    """
    try:
        row = connection.execute(_USED, (application_name(config),)).fetchone()
    except errors.InsufficientPrivilege:
        return None
    return None if row is None else int(row[0])


def needed(config: RelayConfig) -> int:
    """Locks that one relay of a pair needs if it is alone."""
    return config.lanes + 1


def require_room(connection: psycopg.Connection[Any], config: RelayConfig) -> None:
    """Refuse to work where the locks could never all be had.

    Raises:
        StoreError: DatabaseError.
        psycopg.Error: the server could not be asked.
    """
    there = capacity(connection)
    if needed(config) > there:
        raise StoreError(
            "DatabaseError",
            f"{config.lanes} lanes are as many locks, and the server has room for {there} in all"
            f" ({place(config)}); {_REMEDY}",
        )


def examine_locks(connection: psycopg.Connection[Any], config: RelayConfig) -> list[Finding]:
    """Judge the room for the lanes' locks.

    Raises:
        psycopg.Error: the server could not be asked.
    """
    there, others, wanted = capacity(connection), used(connection, config), needed(config)
    message = f"{wanted} are needed, and the server has room for {there}"
    if others is not None:
        message += f", of which {others} are in use"
    if wanted > there:
        return [Finding(level="error", subject="locks", message=message, remedy=_REMEDY)]
    if (others or 0) + wanted > _MUCH * there:
        return [Finding(level="warning", subject="locks", message=f"{message}, for everybody", remedy=_REMEDY)]
    return [Finding(level="ok", subject="locks", message=message)]
