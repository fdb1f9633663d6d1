"""Columns in PostgreSQL: types, byte-exact payloads, odd identifiers, rows picked by route, what large json weighs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

import pytest
from psycopg import sql

from outboxrelay.ports import StoreError
from outboxrelay.stores.expressions import JSON_EXPANSION
from tests.contract.relay.reads import ids, read
from tests.contract.relay.settings import MakeStore
from tests.testbed.services.postgres import Database, LocalPostgres


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("bytea", b"\x00\xff\x80", b"\x00\xff\x80"),
        ("text", "caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600".encode()),
        ("varchar(100)", "caf\u00e9", "caf\u00e9".encode()),
        ("json", '{"b": "\\u0000",  "a":\t"\\ud800"}', b'{"b": "\\u0000",  "a":\t"\\ud800"}'),
        ("jsonb", '{"b":1,"a":  "\U0001f600"}', '{"a": "\U0001f600", "b": 1}'.encode()),
        ("text", "", b""),
        ("jsonb", "null", b"null"),
    ],
)
def test_dv_10_payload_bytes_are_what_the_table_holds(
    database: Database, make_store: MakeStore, kind: str, written: object, wanted: bytes
) -> None:
    database.execute(
        "create table events (id bigint generated always as identity primary key, aggregateid text, type text,"
        f" payload {kind})"
    )
    database.execute("insert into events (aggregateid, payload) values ('k', %s)", (written,))
    (row,) = read(make_store(database, table={"name": "events"})).rows
    assert row.payload == wanted


def test_dv_10_text_of_another_server_encoding_arrives_as_utf8(postgres: LocalPostgres, make_store: MakeStore) -> None:
    latin = postgres.create_database(encoding="LATIN1")
    latin.execute(
        "create table outbox (id int generated always as identity primary key, aggregateid text, payload text)"
    )
    latin.execute("insert into outbox (aggregateid, payload) values (%s, %s)", ("k\u00e9y", "caf\u00e9"))
    store = make_store(latin, table={"columns": {"type": None}})
    (row,) = read(store).rows
    assert (row.key, row.payload) == ("k\u00e9y".encode(), "caf\u00e9".encode())
    assert ids(store.read(limit=10, held_keys=["k\u00e9y".encode()], held_ids=[])) == []
    store.close()
    postgres.drop_database(latin)


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("bigint", 42, b"42"),
        ("smallint", -1, b"-1"),
        ("uuid", uuid.UUID(int=10), b"00000000-0000-0000-0000-00000000000a"),
        ("varchar(20)", "k\u00e9y", "k\u00e9y".encode()),
        ("bytea", b"\x00\xff", b"\x00\xff"),
        ("numeric", 7, b"7"),
        ("mood", "happy", b"happy"),
        ("label", "name", b"name"),
    ],
)
def test_keys_of_every_kind_can_be_read_and_held(
    database: Database, make_store: MakeStore, kind: str, written: object, wanted: bytes
) -> None:
    database.execute("create type mood as enum ('happy', 'sad')")
    database.execute("create domain label as text")
    database.execute(
        f"create table events (id bigint generated always as identity primary key, aggregateid {kind}, payload text)"
    )
    insert = "insert into events (aggregateid, payload) values (%s, 'p')"
    database.execute(insert, (written,))
    database.execute(insert, (None,))
    table = {"name": "events", "columns": {"type": None}}
    first = make_store(database, table=table)
    assert [row.key for row in read(first).rows] == [wanted, None]
    first.rewind(1)
    assert [row.key for row in first.read(limit=9, held_keys=[wanted], held_ids=[]).rows] == [None]
    first.rewind(1)
    second = make_store(database, table=table)
    first.rebalance()
    second.rebalance()
    assert sorted([*ids(read(first)), *ids(read(second))]) == [1, 2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("payload text", "payload bytea using convert_to(payload, 'UTF8')"),
        ("payload json", "payload bytea using convert_to(payload::text, 'UTF8')"),
        ("payload jsonb", "payload bytea using convert_to(payload::text, 'UTF8')"),
        ("payload jsonb", "payload text"),
        ("payload bytea", "payload text using convert_from(payload, 'UTF8')"),
        ("aggregateid text", "aggregateid bytea using convert_to(aggregateid, 'UTF8')"),
        ("aggregateid bigint", "aggregateid bytea using int8send(aggregateid)"),
        ("aggregatetype text", "aggregatetype bytea using convert_to(aggregatetype, 'UTF8')"),
        ("hdr json", "hdr bytea using convert_to(hdr::text, 'UTF8')"),
    ],
)
def test_a_column_whose_type_changes_ends_the_session(
    database: Database, make_store: MakeStore, before: str, after: str
) -> None:
    """Hard rule 6: a prepared read is planned anew without a word, and the text of a bytea is not its bytes."""
    columns = {
        "id": "bigint",
        "aggregatetype": "text",
        "aggregateid": "text",
        "type": "text",
        "payload": "text",
        "hdr": "json",
    } | dict([before.split(" ", 1)])
    database.execute(f"create table events ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
    values = {"id": "1", "aggregatetype": "'order'", "aggregateid": "'1'", "payload": "'{}'", "hdr": "'{}'"}
    database.execute(f"insert into events ({', '.join(values)}) values ({', '.join(values.values())})")
    table = {"name": "events", "columns": {"headers": "hdr"}}
    store = make_store(database, table=table, match={"exclude": ("payment",)})
    assert ids(read(store)) == [1]
    database.execute(f"alter table events alter {after.replace(' ', ' type ', 1)}")
    with pytest.raises(StoreError):
        read(store)


def test_the_lowest_and_the_highest_id_are_read(database: Database, make_store: MakeStore) -> None:
    extremes = [-(2**63), 2**63 - 1]
    for row_id in extremes:
        database.execute(
            "insert into outbox (id, aggregatetype, aggregateid, payload) overriding system value"
            " values (%s, 'o', 'k', '{}')",
            (row_id,),
        )
    store = make_store(database)
    assert ids(read(store)) == extremes
    store.settle(extremes)
    assert ids(read(store)) == []
    assert ids(read(store)) == []
    assert database.execute("select count(*) from outbox") == [(0,)]


@pytest.mark.parametrize("kind", ["smallint", "integer", "bigint"])
def test_ids_of_every_kind(database: Database, make_store: MakeStore, kind: str) -> None:
    database.execute(
        f"create table events (id {kind} generated always as identity primary key, aggregateid text, payload text)"
    )
    database.execute("insert into events (aggregateid, payload) select 'k', i::text from generate_series(1, 5) i")
    store = make_store(database, table={"name": "events", "columns": {"type": None}})
    assert ids(read(store)) == [1, 2, 3, 4, 5]
    store.settle([1, 2, 5])
    store.rewind(3)
    assert ids(read(store)) == [3, 4]


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("jsonb", '{"a": "1", "b": 2.50}', {"a": "1", "b": 2.5}),
        ("json", '{"a": "1"}', {"a": "1"}),
        ("text[]", ["a", "1", "b", None], ["a", "1", "b", None]),
        ("varchar(9)[]", ["a", "1"], ["a", "1"]),
    ],
)
def test_headers_arrive_as_json(
    database: Database, make_store: MakeStore, kind: str, written: object, wanted: object
) -> None:
    database.execute(f"alter table outbox add hdr {kind}, add message uuid")
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload, hdr, message) values ('o', 'k', '{}', %s, %s)",
        (written, uuid.UUID(int=1)),
    )
    store = make_store(database, table={"columns": {"headers": "hdr", "message_id": "message"}})
    (row,) = read(store).rows
    assert json.loads(row.headers or b"") == wanted
    assert row.message_id == b"00000000-0000-0000-0000-000000000001"


def test_odd_identifiers(database: Database, make_store: MakeStore) -> None:
    """Names that would break, or break out of, a statement built from strings."""
    schema, name = 'We"ird%s', "out box;--%(id)s"
    columns = {"id": "i%d", "key": "select", "payload": 'p"ay', "type": "s", "headers": "size", "route": "running"}
    with database.connect() as connection:
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        connection.execute(
            sql.SQL(
                "create table {} ({} bigint generated always as identity primary key,"
                " {} text, {} text, {} text, {} json, {} text)"
            ).format(
                sql.Identifier(schema, name),
                *(sql.Identifier(columns[each]) for each in ("id", "key", "payload", "type", "headers", "route")),
            )
        )
        for key in ("a", "b"):
            connection.execute(
                sql.SQL("insert into {} ({}, {}, {}, {}, {}) values ('{{}}', 'r', {}, 'p', 't')").format(
                    sql.Identifier(schema, name),
                    *(sql.Identifier(columns[each]) for each in ("headers", "route", "key", "payload", "type")),
                    sql.Literal(key),
                )
            )
    table = {"schema": schema, "name": name, "columns": columns}
    store = make_store(database, table=table, match={"include": ("r",)})
    assert ids(store.read(limit=9, held_keys=[b"a"], held_ids=[7])) == [2]
    store.settle([2])
    store.rewind(1)
    other = make_store(database, table=table, match={"include": ("r",)})
    store.rebalance()
    other.rebalance()
    assert [*ids(read(store)), *ids(read(other))] == [1]


@pytest.mark.parametrize(
    ("match", "wanted"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"include": ("order",)}, [1]),
        ({"include": ("order", "Order", "none")}, [1, 2]),
        ({"include": ("\\'%(x)s%%",)}, [5]),
        ({"exclude": ("order",)}, [2, 3, 4, 5]),
        ({"exclude": ("order", "payment'--")}, [2, 4, 5]),
        ({"exclude": ("\\'%(x)s%%", "\\")}, [1, 2, 3, 4]),
    ],
)
def test_rows_are_picked_by_route(
    database: Database, make_store: MakeStore, match: Mapping[str, object], wanted: list[int]
) -> None:
    database.execute("alter table outbox alter aggregatetype drop not null")
    for route in ("order", "Order", "payment'--", None, "\\'%(x)s%%"):
        database.execute("insert into outbox (aggregatetype, aggregateid, payload) values (%s, 'k', '{}')", (route,))
    assert ids(read(make_store(database, match=match))) == wanted


def test_rr_09_large_json_is_weighed_without_being_read(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-09: twenty rows of 900 kB that compress well must not come in one batch."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        " select 'o', i::text, jsonb_build_object('text', repeat('0123456789', 90000)) from generate_series(1, 60) i"
    )
    store = make_store(database, tuning={"batch_bytes": 1 << 20})
    weights = []
    while (batch := read(store)).rows:
        weights.append(sum(len(row.payload or b"") for row in batch.rows))
        store.settle(ids(batch))
    assert len(weights) > 5
    assert max(weights) < 16 << 20


@pytest.mark.parametrize("method", ["pglz", "lz4"])
def test_rr_09_the_best_compression_does_not_break_the_byte_bound(
    database: Database, make_store: MakeStore, method: str
) -> None:
    """cases.md RR-09: two megabytes of text in eight kilobytes, and more of it in one large row."""
    database.execute(f"alter table outbox alter payload set compression {method}")
    for length, rows in ((2_000_000, 40), (30_000_000, 3)):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload)"
            f" select 'o', i::text, jsonb_build_object('text', repeat('x', {length})) from generate_series(1, {rows}) i"
        )
    store = make_store(database, tuning={"batch_bytes": 8 << 20, "max_row_bytes": 16 << 20})
    total = 0
    while (batch := read(store, limit=5000)).rows:
        assert sum(len(row.payload or b"") for row in batch.rows) < (8 << 20) + 2_100_000
        total += len(batch.rows)
        store.settle(ids(batch))
    assert total == 43


def test_a_sudden_growth_of_the_rows_stays_within_the_byte_bound(database: Database, make_store: MakeStore) -> None:
    database.execute(
        "create table events (id bigint generated always as identity primary key, aggregateid text, payload bytea)"
    )
    database.execute(
        "insert into events (aggregateid, payload) select 'k', convert_to(repeat('x', i), 'UTF8')"
        " from unnest(array_fill(300, array[2000]) || array_fill(900000, array[40])) i"
    )
    tuning = {"batch_rows": 5000, "batch_bytes": 1 << 20}
    store = make_store(database, table={"name": "events", "columns": {"type": None}}, tuning=tuning)
    total = 0
    while (batch := read(store, limit=5000)).rows:
        assert sum(len(row.payload or b"") for row in batch.rows) < (1 << 20) + 900_000
        total += len(batch.rows)
        store.settle(ids(batch))
    assert total == 2040


def test_a_row_that_only_seems_too_large_is_fetched(database: Database, make_store: MakeStore) -> None:
    """Compressed json is reckoned high; its real size decides whether it can be sent."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload) select 'o', 'k', jsonb_build_object('text', text)"
        " from (select string_agg(repeat(md5(i::text), 2), '') as text from generate_series(1, 800) i) as made"
    )
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('o', 'k', '{}')")
    ((stored, size),) = database.execute("select pg_column_size(payload), length(payload::text) from outbox limit 1")
    bound = 64 * 1024
    assert size < bound < JSON_EXPANSION["pglz"] * stored
    store = make_store(database, tuning={"max_row_bytes": bound})
    row, _ = read(store).rows
    assert len(row.payload or b"") == size
    assert bound > row.size >= size


def test_rr_09_numbers_that_are_longer_as_text_are_weighed_by_it(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-09: {"amount": 1e100000} is stored in some thirty bytes."""
    database.execute("alter table outbox add hdr jsonb")
    for column in ("payload", "hdr"):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload, hdr)"
            " select 'o', 'k', '{}', '{}' from generate_series(1, 40)"
        )
        database.execute(f"update outbox set {column} = '{{\"amount\": 1e100000}}'")
        table = {"columns": {"headers": "hdr"}}
        store = make_store(database, table=table, tuning={"batch_bytes": 1 << 20})
        batch = read(store).rows
        assert 1 << 20 <= sum(len(row.payload or b"") + len(row.headers or b"") for row in batch) < (1 << 20) + 100_100
        store.close()
        database.execute("delete from outbox")
