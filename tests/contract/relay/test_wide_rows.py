"""Rows with further columns, read from a real PostgreSQL: what each type becomes, and what is refused.

Covered: every type of key, payload, type, message id and header column as bytes, further columns beside each way of
reading, odd moments, and types that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.extras import FIRST
from outboxrelay.ports import Row, StoreError
from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.settings import relay_config
from tests.testbed.services.postgres import Database

UUID = "0A1B2C3D-0000-4000-8000-00000000ABCD"

TEXTS: dict[str, tuple[str, bytes]] = {
    "smallint": ("-7", b"-7"),
    "integer": ("42", b"42"),
    "bigint": ("-9223372036854775808", b"-9223372036854775808"),
    "numeric": ("0001.50", b"1.50"),
    "numeric(20,4)": ("1e3", b"1000.0000"),
    "uuid": (UUID, UUID.lower().encode()),
    "text": ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600".encode()),
    "varchar(20)": ("  spaces ", b"  spaces "),
    "char(5)": ("ab", b"ab"),
    "citext": ("CaSe", b"CaSe"),
    "mood": ("so so", b"so so"),
    "positive": ("5", b"5"),
    "label": ("x", b"x"),
    "nickname": ("x", b"x"),
}
"""Type to a literal and the bytes that it becomes, wherever text is wanted. The last are an enum and domains."""

KEYS = TEXTS | {"bytea": ("\\x00ff", b"\x00\xff")}

PAYLOADS: dict[str, tuple[str, bytes]] = {
    "text": ("", b""),
    "varchar": ("\u20ac", "\u20ac".encode()),
    "json": ('{"b" : 1.10,  "a":2, "a":3}', b'{"b" : 1.10,  "a":2, "a":3}'),
    "jsonb": ('{"b" : 1.10,  "a":2, "a":3}', b'{"a": 3, "b": 1.10}'),
    "bytea": ("\\x00ff0a", b"\x00\xff\n"),
    "document": ('{"n" : 1}', b'{"n": 1}'),
    "letter": ('{"n" : 1}', b'{"n": 1}'),
}


@pytest.fixture
def table(database: Database) -> Database:
    """A database with the types that PostgreSQL does not bring along."""
    with database.connect() as connection:
        connection.execute("create type mood as enum ('so so', 'good')")
        connection.execute("create domain positive as integer check (value > 0)")
        connection.execute("create domain label as varchar(10)")
        connection.execute("create domain document as jsonb")
        connection.execute("create domain nickname as label check (value <> '')")
        connection.execute("create domain letter as document")
        connection.execute("create extension citext")
    return database


@pytest.fixture
def made() -> Iterator[list[PostgresStore]]:
    """Stores to be closed."""
    stores: list[PostgresStore] = []
    yield stores
    for store in stores:
        store.close()


def read(made: list[PostgresStore], database: Database, directory: Path, **changes: Any) -> list[Row]:
    store = PostgresStore(relay_config(directory, database=database, **changes))
    made.append(store)
    store.open()
    store.rebalance()
    return store.read(limit=100, held_keys=[], held_ids=[]).rows


def cells(row: Row) -> tuple[Any, ...]:
    return tuple(row)[FIRST:]


def columns_of(row: Row) -> tuple[Any, ...]:
    return row.key, row.type, row.message_id


@pytest.mark.parametrize("setting", ["search_path = ''", "quote_all_identifiers = on"])
def test_types_are_known_by_whatever_names_the_server_spells(
    database: Database, tmp_path: Path, made: list[PostgresStore], setting: str
) -> None:
    """Extensions may be in a schema that the role does not search."""
    for statement in (
        "create schema kinds",
        "create extension citext schema kinds",
        "create type kinds.mood as enum ('good')",
        "create table events (id bigint primary key, value kinds.citext, mood kinds.mood, names text[], body jsonb)",
        "insert into events values (7, 'CaSe', 'good', '{a,b}', '{}')",
        f"alter role {database.user} set {setting}",
    ):
        database.execute(statement)
    columns = {"key": "value", "type": "mood", "headers": "names", "payload": "body", "route": "value"}
    table = {"name": "events", "columns": columns}
    (row,) = read(made, database, tmp_path, table=table, match={"include": ("CaSe",)})
    assert row[:5] == (7, b"CaSe", b"{}", b"good", b'["a","b"]')


@pytest.mark.parametrize("kind", KEYS)
def test_the_bytes_of_each_type(table: Database, tmp_path: Path, made: list[PostgresStore], kind: str) -> None:
    """Documented in docs/messages.md: as a key, and where text is wanted as type, message id, route and topic too."""
    literal, expected = KEYS[kind]
    table.execute(f"create table events (id bigint generated always as identity primary key, value {kind}, body text)")
    table.execute(f"insert into events (value, body) values (%s::{kind}, 'b'), (null, 'b')", [literal])
    columns: dict[str, Any] = {"key": "value", "payload": "body", "route": "value", "type": None}
    if kind != "bytea":
        columns |= {"type": "value", "message_id": "value", "topic": "value"}
    given, missing = read(
        made,
        table,
        tmp_path,
        table={"name": "events", "columns": columns | {"extra_headers": ({"column": "value", "header": "h"},)}},
        kafka={
            "bootstrap_servers": ("b:1",),
            "topic": "x" if kind == "bytea" else "${route}.${topic}",
        },
    )
    text = None if kind == "bytea" else expected
    assert columns_of(given) == (expected, text, text)
    assert columns_of(missing) == (None, None, None)
    assert cells(given) == ((expected,) if kind == "bytea" else (expected, expected, expected))
    assert set(cells(missing)) == {None}


@pytest.mark.parametrize("kind", PAYLOADS)
def test_the_bytes_of_each_payload(table: Database, tmp_path: Path, made: list[PostgresStore], kind: str) -> None:
    literal, expected = PAYLOADS[kind]
    table.execute(f"create table events (id bigint generated always as identity primary key, key text, body {kind})")
    table.execute(f"insert into events (key, body) values ('k', %s::{kind}), ('k', null)", [literal])
    given, missing = read(
        made, table, tmp_path, table={"name": "events", "columns": {"key": "key", "payload": "body", "type": None}}
    )
    assert (given.payload, missing.payload) == (expected, None)


def test_further_columns_come_with_each_way_of_reading(
    table: Database, tmp_path: Path, made: list[PostgresStore]
) -> None:
    """Rows that are large are read by another statement than small ones."""
    table.execute(
        "create table events (id bigint generated always as identity primary key, aggregateid text, payload bytea,"
        " type text, partition smallint, at timestamptz, flag boolean, note text)"
    )
    table.execute(
        "insert into events (aggregateid, payload, partition, at, flag) values"
        " ('k', 'x', 3, '2026-01-02 03:04:05.678901+00', true),"
        " ('k', decode(repeat('ab', 60000), 'hex'), null, 'infinity', null),"
        " ('k', decode(repeat('ab', 60000), 'hex'), 2, '1969-12-31 23:59:59+00', false),"
        " ('k', 'y', 1, null, true)"
    )
    table.execute("update events set note = 'n' where id = 1")
    table.execute("insert into events (aggregateid, payload, partition, note) values ('k', 'z', 0, repeat('n', 70000))")
    store = PostgresStore(
        relay_config(
            tmp_path,
            database=table,
            table={
                "name": "events",
                "columns": {
                    "partition": "partition",
                    "created_at": "at",
                    "extra_headers": ({"column": "flag", "header": "flag"}, {"column": "note", "header": "note"}),
                },
            },
            timestamps="CreatedAt",
            tuning={"batch_bytes": 64 * 1024, "max_row_bytes": 64 * 1024},
        )
    )
    made.append(store)
    store.open()
    store.rebalance()
    found: list[Row] = []
    while rows := store.read(limit=100, held_keys=[], held_ids=[]).rows:
        found += rows
        store.settle([row.id for row in rows])
    assert [cells(row) for row in found] == [
        (3, 1767323045678, b"true", b"n"),
        (None, None, None, None),
        (2, None, b"false", None),
        (1, None, b"true", None),
        # Above max_row_bytes for its header, which therefore stays where it is.
        (0, None, None, None),
    ]
    assert (found[-1].payload, found[-1].size > 70_000) == (None, True)


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp"])
def test_the_time_of_an_event_is_rfc_3339(
    table: Database, tmp_path: Path, made: list[PostgresStore], kind: str
) -> None:
    moments = {
        "2026-01-02 03:04:05.678901": b"2026-01-02T03:04:05.678901Z",
        "2026-07-02 23:59:59": b"2026-07-02T23:59:59.000000Z",
        "0001-02-03 04:05:06": b"0001-02-03T04:05:06.000000Z",
        "9999-12-30 00:00:00": b"9999-12-30T00:00:00.000000Z",
        "10000-01-01 00:00:00": None,
        "0044-03-15 12:00:00 BC": None,
        "infinity": None,
        "-infinity": None,
    }
    table.execute(f"create table events (id bigint generated always as identity, at {kind}, key text, body text)")
    for moment in moments:
        table.execute("set timezone = 'UTC'; insert into events (at, key, body) values ('" + moment + "', 'k', 'b')")
    table.execute("insert into events (key, body) values ('k', 'b')")
    # The session's time zone must make no difference.
    table.execute(f"alter role {table.user} set timezone = 'Asia/Kolkata'")
    columns = {"key": "key", "payload": "body", "type": "body", "created_at": "at"}
    store = PostgresStore(
        relay_config(tmp_path, database=table, table={"name": "events", "columns": columns}, format="CloudEvents")
    )
    made.append(store)
    store.open()
    store.rebalance()
    rows = store.read(limit=100, held_keys=[], held_ids=[]).rows
    assert [cells(row) for row in rows] == [*((wanted,) for wanted in moments.values()), (None,)]


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({"columns": {"partition": "other"}}, "partition"),
        ({"columns": {"created_at": "other"}, "timestamps": "CreatedAt"}, "createdAt"),
        ({"columns": {"created_at": "other", "type": "other"}, "format": "CloudEvents"}, "createdAt"),
        ({"columns": {"extra_headers": ({"column": "document", "header": "h"},)}}, "extraHeaders"),
        ({"columns": {"key": "amount"}, "format": "Debezium"}, "key"),
        ({"columns": {"key": "raw"}, "format": "Debezium"}, "key"),
        ({"columns": {"key": "padded"}, "format": "Debezium"}, "key"),
    ],
)
def test_types_that_cannot_be_used_are_refused_at_the_start(
    database: Database, tmp_path: Path, changes: dict[str, Any], role: str
) -> None:
    database.execute(
        "create table events (id bigint generated always as identity primary key, key text, body text, document jsonb,"
        " amount numeric, raw bytea, padded char(4), other text)"
    )
    columns = {"key": "key", "payload": "body", "type": None} | changes["columns"]
    others = {name: value for name, value in changes.items() if name != "columns"}
    config = relay_config(tmp_path, database=database, table={"name": "events", "columns": columns}, **others)
    with pytest.raises(StoreError, match="can be: ") as caught:
        PostgresStore(config).open()
    assert caught.value.reason == "ColumnUnsupported"
    assert f"columns.{role} can be:" in caught.value.message
