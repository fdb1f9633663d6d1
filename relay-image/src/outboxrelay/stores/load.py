"""The rows that `outboxrelay bench` writes: what goes into which column of the table, whatever its types.

Fills the columns that the configuration names and leaves all others, the id among them, to their defaults.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import psycopg
from psycopg import errors, sql

from outboxrelay.config import ConfigError, RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.columns import ColumnType
from outboxrelay.stores.errors import place, translate
from outboxrelay.stores.session import Connection, connect
from outboxrelay.stores.sql import ID_TYPES
from outboxrelay.stores.table import inspect, table_oid

LEAST_PAYLOAD_BYTES: Final = 16
ROUTE: Final = "bench"
TYPE: Final = "Bench"

_PAYLOADS: Final = 256
_ALL_PAYLOADS_BYTES: Final = 16 * 1024 * 1024
"""Different payloads, as many as this holds: brokers and producers compress, and would make little of equal ones."""

_DEFAULTS: Final = """
SELECT attname, attnotnull OR t.typnotnull, atthasdef OR attidentity <> '' OR t.typdefault IS NOT NULL
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""

Make = Callable[[int], str]
"""The text of a value, for the number of its key."""


class Column(NamedTuple):
    """A column of the table."""

    name: str
    required: bool
    """NOT NULL, by the column or its domain."""

    has_default: bool


class Rows(NamedTuple):
    """What the rows look like."""

    payload_bytes: int = 300
    route: str | None = None
    """None: one that the pair takes."""

    topic: str | None = None
    """For table.columns.topic."""


class TableWriter:
    """One session that writes rows, as an application would: with the server's own settings."""

    def __init__(self, config: RelayConfig, made: Mapping[str, Make]) -> None:
        """Connect. `made` is what `look` returns, for as many writers as there are.

        Raises:
            StoreError: no session can be had.
        """
        self._config = config
        self._makers = made
        self._connection: Connection = connect(config)
        try:
            self._connection.execute("RESET ALL")
        except psycopg.Error as error:
            self.close()
            raise translate(error, config=config, attempt="preparing the session") from None
        self._statement = sql.SQL("COPY {table} ({columns}) FROM STDIN").format(
            table=sql.Identifier(config.table.schema_, config.table.name),
            columns=sql.SQL(", ").join(map(sql.Identifier, self._makers)),
        )

    def write(self, keys: Sequence[int]) -> None:
        """See `loading.Writer`."""
        try:
            with self._connection.cursor() as cursor, cursor.copy(self._statement) as copy:
                for key in keys:
                    copy.write_row([make(key) for make in self._makers.values()])
        except psycopg.Error as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """See `loading.Writer`."""
        self._connection.close()

    def _failure(self, error: psycopg.Error) -> StoreError:
        user, where = self._connection.info.user, place(self._config)
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreError(
                "PermissionDenied",
                f"user {user} may not write rows ({where}): for as long as the bench takes, GRANT INSERT on the table"
                " to it, and USAGE on the sequence if the id is a serial",
            )
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            return StoreError(
                "DatabaseError",
                f"the table takes no row of the bench ({where}; SQLSTATE {error.sqlstate}): choose --route, --topic,"
                " --keys and --payload-bytes that fit its types and constraints; the server's log names what does not",
            )
        return translate(error, config=self._config, attempt="writing rows", user=user)


def look(config: RelayConfig, rows: Rows, *, rng: Random) -> dict[str, Make]:
    """What to fill in the table, and how.

    Raises:
        ConfigError: the rows would not be the pair's.
        StoreError: the database cannot be asked, or the table cannot be filled.
    """
    rows = rows._replace(route=route_of(config, rows))
    with connect(config) as connection:
        try:
            types = inspect(connection, config)
            return makers(config, rows, types=types, columns=_columns(connection, config), rng=rng)
        except psycopg.Error as error:
            raise translate(error, config=config, attempt="looking at the table") from None


def route_of(config: RelayConfig, rows: Rows) -> str:
    """The route of the rows, for what has one.

    Raises:
        ConfigError: the pair takes no such rows, or its topic depends on a value that is not given.
    """
    match, table, names = config.match, config.table.qualified, config.table.columns
    if rows.topic is None and "${topic}" in config.kafka.topic:
        raise ConfigError(f"bench of {table}: the topic is {config.kafka.topic}: say with --topic which")
    route = rows.route
    if rows.topic is not None and names.topic is not None and names.topic == names.route:
        if route not in (None, rows.topic):
            raise ConfigError(f"bench of {table}: --route and --topic must be the same: both are column {names.topic}")
        route = rows.topic
    if route is None and match.include is None and "${route}" in config.kafka.topic:
        raise ConfigError(f"bench of {table}: the topic is {config.kafka.topic}: say with --route whose")
    chosen = [
        names.route if rows.route is not None or match.include is not None else None,
        names.topic if rows.topic is not None else None,
    ]
    for column in chosen:
        if column in (names.key, names.payload):
            raise ConfigError(
                f"bench of {table}: column {column} says where a row goes, and is also its key or payload, which bench"
                " makes up: bench another table"
            )
    if route is None:
        route = ROUTE if match.include is None else match.include[0]
    if route in match.exclude or (match.include is not None and route not in match.include):
        theirs = "any but " + ", ".join(match.exclude) if match.include is None else ", ".join(match.include)
        raise ConfigError(f"bench of {table}: rows of route {route} are not this pair's; --route can be: {theirs}")
    return route


def makers(
    config: RelayConfig, rows: Rows, *, types: Mapping[str, ColumnType], columns: Sequence[Column], rng: Random
) -> dict[str, Make]:
    """What to fill, and how.

    Raises:
        StoreError: a column must be filled, and nobody knows with what.
    """
    names, mark = config.table.columns, config.retention.mark
    defaults = {column.name: column.has_default for column in columns}
    found: dict[str, Make] = {names.key: _key(config, types[names.key])}
    found[names.payload] = _payload(types[names.payload].kind, rows.payload_bytes, rng=rng)
    values = [(names.route, rows.route), (names.type, TYPE), (names.topic, rows.topic), (names.headers, "{}")]
    if mark is not None:
        values.append((mark.column, mark.pending))
    for name, value in values:
        if name in defaults and value is not None:
            found.setdefault(name, _constant(value))
    if names.message_id is not None and not defaults[names.message_id]:
        found.setdefault(names.message_id, lambda _: str(uuid4()))
    if names.created_at in defaults and not defaults[names.created_at]:
        found.setdefault(names.created_at, _constant("now"))
    missing = [each.name for each in columns if each.required and not each.has_default and each.name not in found]
    if missing:
        raise StoreError(
            "ColumnUnsupported",
            f"bench fills the columns that the configuration names ({place(config)}), and {', '.join(missing)} must not"
            " be NULL and has no default: give it one, or bench another table",
        )
    return found


def _columns(connection: psycopg.Connection[Any], config: RelayConfig) -> list[Column]:
    return [Column(*found) for found in connection.execute(_DEFAULTS, (table_oid(connection, config),)).fetchall()]


def _constant(value: str) -> Make:
    return lambda _: value


def _key(config: RelayConfig, column: ColumnType) -> Make:
    match column.kind:
        case "uuid":
            return lambda number: str(UUID(int=number))
        case "bytea":
            return lambda number: f"\\x{number:016x}"
        case "enum":
            raise StoreError(
                "ColumnUnsupported",
                f"bench makes no keys of an enum ({place(config)}, column {config.table.columns.key}): use another"
                " table for it",
            )
        case kind if kind in ID_TYPES or kind == "numeric":
            return str
        case _:
            return lambda number: f"bench-{number}"


def _payload(kind: str, size: int, *, rng: Random) -> Make:
    """Texts of `size` bytes of which compression makes about three quarters."""
    number = max(1, min(_PAYLOADS, _ALL_PAYLOADS_BYTES // size))
    around = ('{"bench": "', '"}') if kind in ("json", "jsonb") else ("", "")
    length = size - sum(map(len, around))
    made = []
    for _ in range(number):
        text = around[0] + base64.b64encode(rng.randbytes(length))[:length].decode() + around[1]
        made.append("\\x" + text.encode().hex() if kind == "bytea" else text)
    return lambda _: rng.choice(made)
