"""`outboxrelay lag`: how many rows of a pair wait, how old the oldest is, and who is in the way. Reads only."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
from psycopg import sql
from pydantic import BaseModel, ConfigDict, Field

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.report import Holder
from outboxrelay.stores.columns import Name
from outboxrelay.stores.errors import place, translate
from outboxrelay.stores.holders import holding_vacuum_back, locking, sees_all_sessions, words
from outboxrelay.stores.policy import policy_of
from outboxrelay.stores.session import acting_user, connect
from outboxrelay.stores.sql import Statements
from outboxrelay.stores.table import inspect, table_oid
from outboxrelay.wording import counted

COUNT_LIMIT: Final = 100_000
"""Up to here rows are counted, which takes some ten milliseconds; above, the planner is asked."""

_TIMES: Final = ("timestamp with time zone", "timestamp without time zone")


class Lag(BaseModel):
    """One look at a table, by the database's clock."""

    model_config = ConfigDict(frozen=True)

    table: str
    database: str
    waiting: int = Field(description="Rows of this pair that were not sent")
    exact: bool = Field(description="False: `waiting` is the planner's estimate")
    oldest_id: int | None = None
    oldest_age_seconds: float | None = Field(default=None, description="Needs table.columns.createdAt")
    newest_id: int | None = None
    holding_vacuum_back: tuple[Holder, ...] = ()
    locking: tuple[Holder, ...] = ()
    sees_all_sessions: bool = Field(description="False: sessions of other users may hold vacuum back unseen")

    def text(self) -> str:
        """For people."""
        about = "" if self.exact else "about "
        lines = [
            f"table    {self.table} in database {self.database}",
            f"waiting  {about}{counted(self.waiting, 'row')}" + ("" if self.exact else " (the planner's estimate)"),
        ]
        if self.oldest_id is not None:
            age = "age unknown without table.columns.createdAt"
            if self.oldest_age_seconds is not None:
                age = f"{self.oldest_age_seconds:.1f} s old"
            lines.append(f"oldest   id {self.oldest_id}, {age}")
            lines.append(f"newest   id {self.newest_id}")
        lines.extend(f"vacuum   held back by {words(holder)}" for holder in self.holding_vacuum_back)
        lines.extend(f"locked   by {words(holder)}" for holder in self.locking)
        if not self.sees_all_sessions:
            lines.append("note     other users' sessions are not seen without GRANT pg_read_all_stats")
        return "\n".join(lines) + "\n"


def measure(config: RelayConfig, *, count_limit: int = COUNT_LIMIT) -> Lag:
    """Look at the table of a pair.

    Raises:
        StoreError: the database cannot be asked, or the table cannot be used.
    """
    with connect(config) as connection:
        try:
            statements = statements_of(connection, config)
            oid = table_oid(connection, config)
            waiting, exact = _count(connection, statements, limit=count_limit)
            oldest_id, age, newest_id = _ends(connection, config, statements)
            return Lag(
                table=config.table.qualified,
                database=f"{config.database.dbname} on {config.database.address}",
                waiting=waiting,
                exact=exact,
                oldest_id=oldest_id,
                oldest_age_seconds=age,
                newest_id=newest_id,
                holding_vacuum_back=tuple(holding_vacuum_back(connection, at_least=1.0, limit=5)),
                locking=() if oid is None else tuple(locking(connection, oid)),
                sees_all_sessions=sees_all_sessions(connection, role=acting_user(connection)),
            )
        except psycopg.Error as error:
            raise translate(error, config=config, attempt="measuring the backlog") from None


class Waiting:
    """Whether any row of a pair waits; keeps one session for asking often."""

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._connection: psycopg.Connection[Any] | None = None
        self._statement: sql.Composed | None = None

    def any(self) -> bool:
        """Whether a row waits that is visible now.

        Raises:
            StoreError: the database cannot be asked; the next call connects again.
        """
        try:
            if self._connection is None or self._statement is None:
                self._connection = connect(self._config)
                statements = statements_of(self._connection, self._config)
                self._statement = sql.SQL("SELECT EXISTS (SELECT FROM {table} WHERE {waiting})").format(
                    table=statements.name, waiting=statements.waiting()
                )
            row = self._connection.execute(self._statement, {}).fetchone()
        except psycopg.Error as error:
            self.close()
            raise translate(error, config=self._config, attempt="looking for rows that wait") from None
        except StoreError:
            self.close()
            raise
        return row is None or bool(row[0])

    def close(self) -> None:
        """End the session; never raises."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def statements_of(connection: psycopg.Connection[Any], config: RelayConfig) -> Statements:
    """What the pair's statements are composed from. Raises `StoreError` if the table cannot be used."""
    types = inspect(connection, config)
    return Statements(
        table=config.table,
        match=config.match,
        lanes=config.lanes,
        types=types,
        policy=policy_of(config, types),
    )


def _count(connection: psycopg.Connection[Any], statements: Statements, *, limit: int) -> tuple[int, bool]:
    parts = {"table": statements.name, "waiting": statements.waiting(), "limit": sql.Literal(limit + 1)}
    (counted,) = connection.execute(
        sql.SQL("SELECT count(*) FROM (SELECT FROM {table} WHERE {waiting} LIMIT {limit}) AS bounded").format(**parts),
        {},
    ).fetchone() or (0,)
    if counted <= limit:
        return counted, True
    return max(counted, estimate(connection, statements)), False


def estimate(connection: psycopg.Connection[Any], statements: Statements) -> int:
    """The planner's idea of how many rows wait."""
    (plan,) = connection.execute(
        sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE {waiting}").format(
            table=statements.name, waiting=statements.waiting()
        ),
        {},
    ).fetchone() or ("",)
    document = plan if isinstance(plan, list) else json.loads(plan)
    return int(document[0]["Plan"]["Plan Rows"])


def _ends(
    connection: psycopg.Connection[Any], config: RelayConfig, statements: Statements
) -> tuple[int | None, float | None, int | None]:
    row = connection.execute(
        sql.SQL(
            "WITH oldest AS (SELECT {id} AS i, {age} AS age FROM {table} WHERE {waiting} ORDER BY {id} LIMIT 1)"
            " SELECT (SELECT i FROM oldest)::int8, (SELECT age FROM oldest),"
            " (SELECT {id} FROM {table} WHERE {waiting} ORDER BY {id} DESC LIMIT 1)::int8"
        ).format(id=statements.id, age=age_of(config, statements), table=statements.name, waiting=statements.waiting()),
        {},
    ).fetchone()
    oldest, seconds, newest = row or (None, None, None)
    return oldest, None if seconds is None else max(0.0, seconds), newest


def age_of(config: RelayConfig, statements: Statements) -> sql.Composable:
    """The age of a row in seconds; NULL without a createdAt column. Raises `StoreError` if that tells no time."""
    created = config.table.columns.created_at
    if created is None:
        return sql.SQL("NULL::float8")
    _require_time(config, statements, created)
    # An infinite time has no age: before PostgreSQL 17 even asking for it is an error.
    return sql.SQL(
        "CASE WHEN isfinite({created}) THEN extract(epoch FROM clock_timestamp() - {created})::float8 END"
    ).format(created=Name(created))


def _require_time(config: RelayConfig, statements: Statements, created: str) -> None:
    kind = statements.types.get(created)
    if kind is None or kind.kind not in _TIMES:
        found = "is missing" if kind is None else f"has type {kind.kind}"
        raise StoreError(
            "ColumnMissing" if kind is None else "ColumnUnsupported",
            f"column {created} {found} ({place(config)}), but createdAt must be timestamptz; correct"
            " spec.databases[].table.columns.createdAt",
        )
