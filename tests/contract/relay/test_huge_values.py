"""Values that are far larger as text than they are stored: one of them must not keep all others from being read.

PostgreSQL writes out the 131,072 digits of 1e131071, which it stores in twelve bytes, and makes no text above one
gigabyte. Here statement_timeout is long: on a busy machine to make a gigabyte takes longer than the usual one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outboxrelay.ports import Row, StoreError
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.session import Connection
from outboxrelay.stores.sql import JSON_WEIGHED_BELOW
from tests.contract.relay.reads import ids, read
from tests.contract.relay.settings import POLICIES, MakeStore, prepare_policy
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database, LocalPostgres

LIMIT = 1 << 20
NUMBERS = "(select jsonb_agg('1e131071'::jsonb) from generate_series(1, {}) i)"
FAILING = NUMBERS.format(10_000)
"""1.3 GB of text, which cannot be made."""

LARGE = "(select jsonb_agg((i || 'e9000')::jsonb) from generate_series(1000000, 1005999) i)"
"""54 MB of text, which can be made, in 72 kB that cannot be compressed."""

TOO_LARGE = {
    "text that cannot be made": FAILING,
    "numbers of many kinds": "jsonb_build_object('a', '-1e-16383'::jsonb, 'b', '{\"c\": [0e-16383]}'::jsonb, 'd', "
    + NUMBERS.format(9000)
    + ")",
    "nested": "jsonb_build_object('a', jsonb_build_array(jsonb_build_object('b', " + NUMBERS.format(9000) + ")))",
    "large stored": "(select jsonb_agg(repeat(chr(1), 1000)) from generate_series(1, 6000))",
    "escapes": "(select jsonb_agg(repeat(chr(1), 1000)) from generate_series(1, 3000))",
}


def insert(database: Database, key: str, payload: str = "'{}'", **columns: str) -> int:
    """One row with SQL expressions; returns its id."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", {value}" for value in columns.values())
    ((row_id,),) = database.execute(
        f"insert into outbox (aggregatetype, aggregateid, payload{names})"
        f" values ('o', '{key}', {payload}{values}) returning id"
    )
    return int(row_id)


def made(make_store: MakeStore, database: Database, **changes: Any) -> PostgresStore:
    tuning = {"max_row_bytes": LIMIT, "statement_timeout_seconds": 300} | changes.pop("tuning", {})
    return make_store(database, tuning=tuning, **changes)


def warned(make_store: MakeStore, database: Database, **changes: Any) -> PostgresStore:
    """A store of which a read has failed: to make the server fail takes it a gigabyte of memory each time."""
    store = made(make_store, database, **changes)
    store._care.failed(1000, careful=False)
    return store


def session(store: PostgresStore) -> Connection:
    """The connection of a store that is open."""
    assert store._connection is not None
    return store._connection


def read_all(store: PostgresStore, *, held: Sequence[bytes] = ()) -> list[Row]:
    """All rows there are, as if each were parked or in flight once it was read."""
    rows: list[Row] = []
    while True:
        batch = store.read(limit=1000, held_keys=held, held_ids=[row.id for row in rows])
        rows += batch.rows
        if batch.complete:
            return rows


def too_large(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.size > LIMIT]


@pytest.mark.parametrize("payload", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_value_whose_text_is_huge_takes_no_neighbour_down(
    database: Database, make_store: MakeStore, payload: str
) -> None:
    before = insert(database, "a")
    bad = insert(database, "b", payload)
    after = [insert(database, "b"), insert(database, "c")]
    rows = read_all(warned(make_store, database))
    assert [row.id for row in rows] == [before, bad, *after]
    (row,) = too_large(rows)
    assert (row.id, row.key, row.payload) == (bad, b"b", None)
    assert all(other.payload == b"{}" for other in rows if other.id != bad)


def test_a_text_that_cannot_be_made_is_passed_within_one_session(database: Database, make_store: MakeStore) -> None:
    bad, good = insert(database, "b", FAILING), insert(database, "c")
    rows = read_all(made(make_store, database))
    assert [row.id for row in rows] == [bad, good]
    assert too_large(rows) == rows[:1]


@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_passed_again_when_its_key_is_released(database: Database, make_store: MakeStore, policy: str) -> None:
    unsent = prepare_policy(database, policy)
    bad, good = insert(database, "b", FAILING), insert(database, "c")
    store = warned(make_store, database, retention=POLICIES[policy])
    rows = read_all(store)
    assert [row.id for row in rows] == [bad, good]
    store.settle([good])
    assert read_all(store, held=[b"b"]) == []
    store.rewind(bad)
    assert read_all(store) == rows[:1]
    database.execute("delete from outbox where id = %s", (bad,))
    assert read_all(store) == []
    assert database.execute(f"select count(*) from outbox where {unsent}") == [(0,)]


@pytest.mark.parametrize("quick", [True, False])
def test_the_rows_asked_for_while_others_are_removed_are_asked_for_again(
    database: Database, make_store: MakeStore, quick: bool
) -> None:
    first = insert(database, "a")
    store = (made if quick else warned)(make_store, database)
    assert ids(read(store)) == [first]
    bad, good = insert(database, "b", FAILING), insert(database, "c")
    store.ask(limit=1000, held_keys=[], held_ids=[], in_flight=[first])
    store.start_settling([first])
    batch = read(store)
    store.settle([first])
    assert [row.id for row in too_large(batch.rows)] == [bad]
    assert [row.id for row in read_all(store)] == [bad, good]


HEADERS = {
    "jsonb": ("jsonb", "jsonb_build_object('a', " + NUMBERS.format(9000) + ")"),
    "nulls": ("text[]", "array_fill(null::text, array[2000000])"),
    "escapes": ("text[]", "array_fill(repeat(chr(1), 1000), array[6000])"),
    "varchar": ("varchar[]", "array_fill(repeat(chr(1), 1000), array[6000])::varchar[]"),
}


@pytest.mark.parametrize(("kind", "headers"), HEADERS.values(), ids=HEADERS)
def test_headers_are_as_bounded_as_the_payload(
    database: Database, make_store: MakeStore, kind: str, headers: str
) -> None:
    database.execute(f"alter table outbox add hdr {kind}")
    good = insert(database, "a")
    bad = insert(database, "b", hdr=headers)
    rows = read_all(warned(make_store, database, table={"columns": {"headers": "hdr"}}))
    assert [row.id for row in rows] == [good, bad]
    (row,) = too_large(rows)
    assert (row.id, row.payload, row.headers) == (bad, None, None)


def test_text_that_outgrows_what_was_reckoned_does_not_reach_the_relay(
    database: Database, make_store: MakeStore
) -> None:
    """Stored without compression, it seems to be as small as it is stored."""
    database.execute("alter table outbox alter payload set storage external")
    bad = insert(database, "b", LARGE)
    ((stored,),) = database.execute("select pg_column_size(payload) from outbox")
    assert JSON_WEIGHED_BELOW < stored < LIMIT
    good = insert(database, "c")
    rows = read_all(made(make_store, database))
    assert [row.id for row in rows] == [bad, good]
    assert too_large(rows) == rows[:1]
    assert rows[0].payload is None


def test_texts_that_outgrow_what_was_reckoned_stay_within_the_byte_bound(
    database: Database, make_store: MakeStore
) -> None:
    database.execute("alter table outbox alter payload set storage external")
    numbers = "(select jsonb_agg((i || 'e130')::jsonb) from generate_series(1000000, 1005999) i)"
    written = [insert(database, "b", numbers) for _ in range(20)]
    store = made(make_store, database, tuning={"batch_bytes": LIMIT})
    seen: list[int] = []
    while (batch := read(store)).rows:
        assert sum(len(row.payload or b"") for row in batch.rows) <= 2 * LIMIT
        store.settle(ids(batch))
        seen += ids(batch)
    assert seen == written


def test_all_of_many_are_found_and_good_rows_come_whole(database: Database, make_store: MakeStore) -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload) select 'o', i::text,"
        f" case when i % 50 = 0 then {FAILING} else jsonb_build_object('n', i) end from generate_series(1, 300) i"
    )
    rows = read_all(warned(make_store, database))
    assert [row.id for row in rows] == list(range(1, 301))
    assert [row.id for row in too_large(rows)] == list(range(50, 301, 50))
    assert all(row.payload == b'{"n": %d}' % row.id for row in rows if row.id % 50)


def test_after_a_read_that_took_too_long_the_next_session_reads_with_care(
    database: Database, make_store: MakeStore
) -> None:
    insert(database, "b")
    store = made(make_store, database)
    session(store).execute("set statement_timeout = '100ms'")
    with database.connect() as other, other.transaction():
        other.execute("lock table outbox")
        with pytest.raises(StoreError, match="statement_timeout"):
            read(store)
    assert store._care.limit(1000, start=0) is not None
    store.open()
    eventually(lambda: len(store.rebalance()) == 4, seconds=20, what="the lanes of the session before")
    assert [row.payload for row in read_all(store)] == [b"{}"]
    assert store._care.limit(1000, start=0) is None


def test_a_row_whose_content_cannot_be_read_at_all_is_too_large(
    postgres: LocalPostgres, database: Database, make_store: MakeStore
) -> None:
    """A page of it is lost, say: whatever the server says of it, only this row is at fault."""
    database.execute("alter table outbox alter payload set storage external")
    before, bad, after = insert(database, "a"), insert(database, "b", LARGE), insert(database, "c")
    ((toast,),) = database.execute("select reltoastrelid::regclass::text from pg_class where relname = 'outbox'")
    superuser = replace(postgres.superuser, dbname=database.dbname)
    superuser.execute("create extension pg_surgery")
    superuser.execute(f"select heap_force_kill('{toast}'::regclass, array(select ctid from {toast}))")
    rows = read_all(made(make_store, database))
    assert [row.id for row in rows] == [before, bad, after]
    assert [row.id for row in too_large(rows)] == [bad]


@pytest.mark.parametrize("column", ["aggregateid", "type"])
def test_a_huge_text_beside_the_payload_stays_in_the_database(
    database: Database, make_store: MakeStore, column: str
) -> None:
    bad, good = insert(database, "b"), insert(database, "c")
    database.execute(f"update outbox set {column} = repeat('x', 50000000) where id = %s", (bad,))
    rows = read_all(made(make_store, database))
    assert [row.id for row in rows] == [bad, good]
    assert too_large(rows) == rows[:1]
    assert sum(len(row.key or b"") + len(row.type or b"") for row in rows) < 100
