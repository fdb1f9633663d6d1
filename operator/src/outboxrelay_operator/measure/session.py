"""One read-only session to one PostgreSQL database: the only module of the operator that uses psycopg.

Every error leaves as `MeasureError`, whose message holds neither password nor row, and every call ends within
`CALL_SECONDS` even if the server stops answering; only connecting takes longer where there are several hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import AsyncConnection

from outboxrelay.dberrors import POOLER, Place, cause, classify, describe
from outboxrelay.report import DatabaseReason
from outboxrelay_operator.api.database import Database
from outboxrelay_operator.measure import sql
from outboxrelay_operator.measurements import ConnectionLimits
from outboxrelay_operator.pairs import Pair

APPLICATION_NAME = "outboxrelay-operator"

STATEMENT_SECONDS = 3
CALL_SECONDS = 5.0

T = TypeVar("T")


class MeasureError(Exception):
    """A database or table that cannot be measured, with the reason that a condition shows."""

    def __init__(
        self,
        reason: DatabaseReason,
        message: str,
        *,
        session_lost: bool,
        server_down: str | None = None,
        too_slow: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.session_lost = session_lost
        self.server_down = server_down
        """Nobody answers at the address, and why: another login would find the same."""
        self.too_slow = too_slow
        """The statement was ended by its time-out; a cheaper one may work."""


@dataclass(frozen=True, slots=True)
class Login:
    """What a session is opened with."""

    database: Database
    user: str
    password: str | None
    ca_file: Path | None
    certificate_file: Path | None = None
    key_file: Path | None = None
    addresses: tuple[tuple[str, str], ...] = ()
    """Hosts and where each was found, to be tried in turn; none: libpq looks the hosts up itself."""

    @property
    def connect_seconds(self) -> float:
        """How long connecting may take: an address of several that does not answer must leave time for the others."""
        tried = max(len(self.addresses), len(self.database.servers))
        return CALL_SECONDS + STATEMENT_SECONDS * (tried - 1)

    def parameters(self) -> dict[str, str]:
        """libpq's parameters for where to connect, and for who we are."""
        database = self.database
        given = {
            # The certificate is checked against the host, the connection goes to the address.
            "host": ",".join([host for host, _ in self.addresses] or database.servers),
            "hostaddr": ",".join(address for _, address in self.addresses),
            "port": str(database.port),
            "dbname": database.dbname,
            "target_session_attrs": "read-write" if database.hosts else "any",
            "user": self.user,
            "sslmode": database.tls.effective_mode,
            "sslrootcert": "" if self.ca_file is None else str(self.ca_file),
            "sslcertmode": "disable" if self.certificate_file is None else "allow",
        }
        if self.certificate_file is not None and self.key_file is not None:
            given |= {"sslcert": str(self.certificate_file), "sslkey": str(self.key_file)}
        # Without a password libpq would look for one in the home directory.
        return given | ({"passfile": "/nonexistent"} if self.password is None else {"password": self.password})


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What the catalogues say about a table."""

    index_on_id: bool
    """Whether an index leads to the rows that wait: with retention Mark a partial one."""

    connections: ConnectionLimits | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the rows of a pair that wait, at ids from `floor` upwards."""

    counted: int | None
    """At most one more than the limit; None if it was not asked for."""

    oldest_id: int | None
    oldest_age: float | None
    """Seconds; None if nothing waits or there is no createdAt column."""

    highest_id: int | None
    """Of the whole table, from the floor upwards."""

    clock: float
    """The database's clock, Unix time."""


class Session(Protocol):
    """What the measuring loop needs of a session. Every method raises `MeasureError`."""

    async def inspect(self, pair: Pair) -> TableInfo:
        """Check table and columns of a pair."""

    async def sample(self, pair: Pair, *, floor: int, count: bool) -> Sample:
        """Look at the rows of a pair that wait, and count them if wanted: the dear part among many of other pairs."""

    async def estimate(self, pair: Pair, *, floor: int) -> int:
        """The planner's idea of how many rows of a pair wait."""

    async def routes(self, pair: Pair, *, floor: int) -> tuple[str | None, ...]:
        """A few values of the route column among the rows of a pair that wait."""

    async def close(self) -> None:
        """End the session; never raises."""


class PostgresSession:
    """`Session` over psycopg."""

    def __init__(self, connection: AsyncConnection[Any], place: Place) -> None:
        self._connection = connection
        self._place = place

    @classmethod
    async def open(cls, login: Login) -> PostgresSession:
        """Connect. Raises `MeasureError`."""
        database = login.database
        place = Place(address=database.address, dbname=database.dbname, user=login.user)

        async def connect() -> PostgresSession:
            connection = await AsyncConnection.connect(
                **login.parameters(),  # type: ignore[arg-type]  # psycopg's overloads do not know libpq's parameters
                gssencmode="disable",
                connect_timeout=STATEMENT_SECONDS,
                tcp_user_timeout=int(CALL_SECONDS * 1000),
                application_name=APPLICATION_NAME,
                autocommit=True,
                # Else that of the database, which may be one that psycopg takes for bytes.
                client_encoding="UTF8",
                prepare_threshold=None,
            )
            try:
                await _settle_in(connection, place)
            except BaseException:
                await connection.close()
                raise
            return cls(connection, place)

        return await guarded(connect, place, seconds=login.connect_seconds)

    async def inspect(self, pair: Pair) -> TableInfo:
        table = pair.database.table

        async def run() -> tuple[Any, ...] | None:
            cursor = await self._connection.execute(
                sql.INSPECT,
                {
                    "schema": table.schema_,
                    "table": table.name,
                    "id": table.columns.id,
                    "partial": pair.retention.mark is not None,
                },
            )
            return await cursor.fetchone()

        place = self._at(pair)
        row = await guarded(run, place)
        if row is None:
            raise _problem("TableMissing", place)
        usage, select, index_on_id, types, server, of_database, of_role, role_name = row
        if not usage or not select:
            raise _problem("PermissionDenied", place)
        _check_columns(pair, types or {}, place)
        limits = ConnectionLimits(server=server, database=of_database, role=of_role, role_name=role_name)
        return TableInfo(index_on_id=index_on_id, connections=limits)

    async def sample(self, pair: Pair, *, floor: int, count: bool) -> Sample:
        async def run() -> Sample:
            cursor = await self._connection.execute(sql.measure(pair, count=count), sql.parameters(pair, floor=floor))
            row = await cursor.fetchone()
            return Sample(*(row or ()))

        return await guarded(run, self._at(pair))

    async def estimate(self, pair: Pair, *, floor: int) -> int:
        async def run() -> int:
            cursor = await self._connection.execute(sql.estimate(pair), sql.parameters(pair, floor=floor))
            row = await cursor.fetchone()
            return int(row[0][0]["Plan"]["Plan Rows"]) if row else 0

        return await guarded(run, self._at(pair))

    async def routes(self, pair: Pair, *, floor: int) -> tuple[str | None, ...]:
        async def run() -> tuple[str | None, ...]:
            cursor = await self._connection.execute(sql.routes(pair), sql.parameters(pair, floor=floor))
            return tuple(row[0] for row in await cursor.fetchall())

        return await guarded(run, self._at(pair))

    async def close(self) -> None:
        try:
            async with asyncio.timeout(1):
                await self._connection.close()
        except (TimeoutError, psycopg.Error):
            return

    def _at(self, pair: Pair) -> Place:
        place = self._place
        return Place(address=place.address, dbname=place.dbname, user=place.user, table=pair.database.table.qualified)


async def _settle_in(connection: AsyncConnection[Any], place: Place) -> None:
    # Asked before anything is set: a pooler hands the server session, settings and all, to the application next.
    cursor = await connection.execute("SELECT pg_backend_pid()")
    if await cursor.fetchone() != (connection.info.backend_pid,):
        raise MeasureError("DatabaseError", describe("DatabaseError", place, hint=POOLER), session_lost=True)
    await connection.execute(
        f"SET default_transaction_read_only = on; SET statement_timeout = '{STATEMENT_SECONDS}s';"
        " SET lock_timeout = '1s'"
    )


def _check_columns(pair: Pair, types: dict[str, str], place: Place) -> None:
    columns = pair.database.table.columns
    named = {field: name for field, name in columns.model_dump(exclude={"extra_headers"}).items() if name}
    named |= {f"extraHeaders {extra.header}": extra.column for extra in columns.extra_headers or ()}
    where = "table.columns"
    if pair.retention.mark is not None:
        named["mark.column"] = pair.retention.mark.column
        where = "table.columns and retention.mark"
    missing = {field: f"{name} ({field})" for field, name in named.items() if name not in types}
    if missing:
        hint = f"there is no column {', '.join(missing.values())}: add it or correct {where}"
        if not missing.keys().isdisjoint(("route", "type")):
            hint += '; "" for route or type is a table without it'
        raise _problem("ColumnMissing", place, hint=hint)
    if types[columns.id] not in sql.ID_TYPES:
        hint = f"column {columns.id} (id) is {types[columns.id]}: it must be bigint"
        raise _problem("ColumnUnsupported", place, hint=hint)
    if columns.created_at is not None and types[columns.created_at] not in sql.TIME_TYPES:
        hint = f"column {columns.created_at} (createdAt) is {types[columns.created_at]}: it must be timestamptz"
        raise _problem("ColumnUnsupported", place, hint=hint)


def _problem(reason: DatabaseReason, place: Place, *, hint: str | None = None) -> MeasureError:
    return MeasureError(reason, describe(reason, place, hint=hint), session_lost=False)


_NOBODY_ANSWERS = frozenset({"connection refused", "timed out", "no route to host", "network is unreachable"})
"""Causes that another login of the same server would meet too."""


async def guarded(work: Callable[[], Awaitable[T]], place: Place, *, seconds: float = CALL_SECONDS) -> T:
    """Bound the time and translate every error. Raises `MeasureError`."""
    try:
        return await _bounded(work, seconds=seconds)
    except TimeoutError:
        hint = f"no answer within {seconds:g} s: check the server, and network policies"
        raise nobody_answers(place, hint) from None
    except psycopg.errors.QueryCanceled:
        hint = (
            f"measuring took over {STATEMENT_SECONDS} s: the table needs the index `outboxrelay sql` prints, or vacuum"
        )
        message = describe("DatabaseError", place, sqlstate="57014", hint=hint)
        raise MeasureError("DatabaseError", message, session_lost=False, too_slow=True) from None
    except psycopg.Error as error:
        reason = classify(sqlstate=error.sqlstate, text=str(error))
        lost = error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "53")
        why = cause(str(error)) or "no connection" if reason == "DatabaseUnreachable" else None
        advice = None if why is None else f"{why}: check host, port and network policies, and that the server runs"
        if why in _NOBODY_ANSWERS:
            raise nobody_answers(place, str(advice)) from None
        message = describe(reason, place, sqlstate=error.sqlstate, hint=advice)
        raise MeasureError(reason, message, session_lost=lost) from None


def nobody_answers(place: Place, why: str) -> MeasureError:
    """Whoever would log in: in each round it may be another one that tries, and the message is to stay as it is."""
    message = describe("DatabaseUnreachable", Place(address=place.address, dbname=place.dbname), hint=why)
    return MeasureError("DatabaseUnreachable", message, session_lost=True, server_down=why)


_abandoned: set[asyncio.Task[Any]] = set()


async def _bounded(work: Callable[[], Awaitable[T]], *, seconds: float) -> T:
    """The result within the time, or `TimeoutError`.

    psycopg answers a cancellation by asking the server to cancel, which takes many seconds while that does not
    answer; so nobody waits for it.
    """
    task: asyncio.Task[T] = asyncio.create_task(_awaited(work))
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            _abandoned.add(task)
            task.add_done_callback(_drop)
    if not task.done():
        raise TimeoutError
    return task.result()


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _drop(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()
