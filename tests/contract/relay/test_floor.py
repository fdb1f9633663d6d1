"""The floor over PostgreSQL: dead rows, another topic's backlog, writers that are seen, foreign ids, the byte bound.

The rule itself is covered by tests/unit/relay/test_floor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.question import Questions
from tests.contract.relay.reads import fill, ids, read, tuples_read
from tests.contract.relay.settings import MakeStore, relay_config
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table


def test_dead_rows_that_cannot_be_vacuumed_are_not_read_again(database: Database, make_store: MakeStore) -> None:
    database.execute("alter table outbox set (autovacuum_enabled = off)")
    with database.connect(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from outbox")
        store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
        fill(database, 5000)
        while (batch := read(store)).rows:
            store.settle(ids(batch))
        read(store)
        fill(database, 1)
        assert tuples_read(store, database, lambda: read(store)) < 1500
        store.rewind(1)
        assert tuples_read(store, database, lambda: read(store)) >= 5000


def test_the_floor_waits_for_transactions_that_may_still_write_below_it(
    database: Database, make_store: MakeStore
) -> None:
    """Hard rule 2, and why the snapshot's xmax will not do: the writer's xid is above it."""
    with database.connect(autocommit=False) as writer:
        writer.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'late', '{}')")
        store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
        for _ in range(5):
            fill(database, 50)
            while (batch := read(store, limit=7)).rows:
                assert 1 not in ids(batch)
                store.settle(ids(batch))
        writer.commit()
    assert ids(read(store)) == [1]


@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize("kind", ["plain", "partitioned", "inherited"])
def test_the_floor_waits_for_a_writer_that_has_drawn_an_id_and_has_no_xid_yet(
    make_store: MakeStore, kind: str, prepares: bool
) -> None:
    """cases.md RC-01, the narrowest form: a trigger before the insert, a slow default or a COPY makes it long."""
    with LocalPostgres(fsync=False, settings={"max_prepared_transactions": "4"}) as server:
        database = server.create_database("late")
        written = "outbox"
        if kind == "partitioned":
            database.execute(
                "create table outbox (id bigint generated always as identity primary key, aggregatetype text,"
                " aggregateid text, type text, payload jsonb) partition by range (id)"
            )
            database.execute("create table outbox_low partition of outbox for values from (minvalue) to (maxvalue)")
        else:
            create_outbox_table(database)
        database.execute(
            "create function wait() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock_shared(42); return new; end $$"
        )
        if kind == "inherited":
            database.execute("create table newer () inherits (outbox)")
            database.execute(
                "alter table newer alter id set default nextval(pg_get_serial_sequence('outbox', 'id')),"
                " alter id set not null"
            )
            written = "newer"
        database.execute(
            f"create trigger wait before insert on {written} for each row when (new.type = 'slow')"
            " execute function wait()"
        )
        # The first id of 33 gives its transaction an xid at once, since the sequence then writes to the log.
        fill(database, 3)
        store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
        with database.connect() as gate, database.connect(autocommit=False) as writer:
            gate.execute("select pg_advisory_lock(42)")
            with ThreadPoolExecutor() as pool:
                inserting = pool.submit(
                    writer.execute,
                    f"insert into {written} (aggregatetype, aggregateid, type, payload)"
                    " values ('o', 'k', 'slow', '{}')".encode(),
                )
                eventually(
                    lambda: gate.execute("select 1 from pg_locks where locktype = 'advisory' and not granted").rowcount,
                    seconds=30,
                    what="the writer at its trigger",
                )
                relay_some(database, store)
                gate.execute("select pg_advisory_unlock(42)")
                inserting.result(timeout=30)
            relay_some(database, store)
            if prepares:
                writer.execute("prepare transaction 'late'")
                relay_some(database, store)
                gate.execute("commit prepared 'late'")
            else:
                writer.commit()
        assert ids(read(store)) == [4]


def test_an_idle_relay_that_waits_for_a_writer_uses_no_xids_up(database: Database, make_store: MakeStore) -> None:
    store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
    with database.connect(autocommit=False) as writer:
        writer.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'late', '{}')")
        fill(database, 3)
        store.settle(ids(read(store)))
        read(store)
        before = database.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        for _ in range(20):
            assert not read(store).rows
        assert database.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint") == before


def test_a_login_that_may_not_see_other_sessions_still_sends_rows(database: Database, tmp_path: Path) -> None:
    with LocalPostgres(fsync=False) as server:
        hidden = server.create_database("hidden")
        create_outbox_table(hidden)
        for view in ("pg_stat_activity", "pg_prepared_xacts", "pg_replication_slots"):
            with server.superuser.connect(dbname="hidden") as admin:
                admin.execute(f"revoke select on {view} from public".encode())
        fill(hidden, 2)
        store = PostgresStore(relay_config(tmp_path, database=hidden.relay_role()))
        store.open()
        try:
            assert len(store.rebalance()) == 4
            assert ids(read(store)) == [1, 2]
        finally:
            store.close()


def relay_some(database: Database, store: PostgresStore) -> None:
    """Rows that come and go while the writer of row 4 has not ended."""
    for _ in range(4):
        fill(database, 20)
        while (batch := read(store, limit=7)).rows:
            assert 4 not in ids(batch)
            store.settle(ids(batch))
    read(store)


def ticking() -> Callable[[], float]:
    """A clock that moves on by a second whenever it is looked at."""
    ticks = iter(range(1_000_000))
    return lambda: float(next(ticks))


def test_another_topics_backlog_is_walked_over_once(database: Database, make_store: MakeStore) -> None:
    fill(database, 60_000, route="payment")
    store = make_store(database, clock=ticking(), match={"include": ("order",)}, tuning={"full_sweep_seconds": 1e6})
    for _ in range(4):
        read(store)
    assert tuples_read(store, database, lambda: read(store)) < 1000
    fill(database, 1)
    assert len(read(store).rows) == 1


def test_a_full_sweep_finds_what_lies_below_the_floor(database: Database, make_store: MakeStore) -> None:
    """Ids of somebody's own making; nothing else gets there."""
    now = 0.0
    store = make_store(database, clock=lambda: now, tuning={"full_sweep_seconds": 60.0})
    for _ in range(3):
        fill(database, 20)
        store.settle(ids(read(store)))
    read(store)
    database.execute(
        "insert into outbox (id, aggregatetype, aggregateid, payload) overriding system value"
        " values (2, 'o', 'k', '{}')"
    )
    assert ids(read(store)) == []
    now = 61.0
    assert ids(read(store)) == [2]


@pytest.mark.parametrize(
    "begin", ["alter table outbox alter id restart", "truncate outbox restart identity", "a new table"]
)
def test_rows_of_a_sequence_that_begins_anew_wait_for_one_sweep_and_not_for_one_each(
    database: Database, make_store: MakeStore, begin: str
) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.2
        return now

    store = make_store(database, clock=clock, tuning={"full_sweep_seconds": 60.0})
    for _ in range(3):
        fill(database, 20)
        store.settle(ids(read(store)))
    read(store)
    if begin == "a new table":
        begin = "alter table outbox rename to before; create table outbox (like before including all)"
    database.execute(begin)
    fill(database, 1)
    assert ids(read(store)) == []
    now += 61.0
    assert ids(read(store)) == [1]
    store.settle([1])
    for number in range(2, 30):
        fill(database, 1)
        assert ids(read(store)) == [number]
        store.settle([number])
        assert ids(read(store)) == []
    assert read(store).complete


def test_sweeps_over_many_dead_rows_are_rarer_also_while_rows_keep_coming(
    database: Database, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, answer = 0.0, Questions.answer

    def slow(questions: Questions) -> Any:
        nonlocal now
        now += 10.0
        return answer(questions)

    fill(database, 20)
    store = make_store(database, clock=lambda: now, tuning={"full_sweep_seconds": 60.0})
    for _ in range(3):
        store.settle(ids(read(store, limit=3)))
        now += 1.0
    now = 100.0
    with monkeypatch.context() as patched:
        patched.setattr(Questions, "answer", slow)
        assert ids(read(store, limit=3)) == [10, 11, 12]
    database.execute(
        "insert into outbox (id, aggregatetype, aggregateid, payload) overriding system value"
        " values (2, 'o', 'k', '{}')"
    )
    now = 180.0
    assert ids(read(store, limit=3)) == [10, 11, 12]
    now = 299.0
    assert ids(read(store, limit=3)) == [10, 11, 12]
    now = 301.0
    assert ids(read(store, limit=3)) == [2, 10, 11]


def test_what_the_byte_bound_cuts_off_is_never_taken_for_the_end(database: Database, make_store: MakeStore) -> None:
    """Reckoned sizes of compressed json cut the batch; the exact ones, which are smaller, must not say it was all."""
    store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
    large = "to_jsonb((select string_agg(md5(i::text), '') || repeat('x', 2000000) from generate_series(1, 80000) i))"
    for key in ("large", "larger"):
        database.execute(f"insert into outbox (aggregatetype, aggregateid, payload) select 'order', '{key}', {large}")
    fill(database, 50)
    seen: list[int] = []
    for _ in range(6):
        batch = read(store)
        assert not (batch.complete and len(seen) + len(batch.rows) < 52)
        store.settle(ids(batch))
        seen += ids(batch)
        fill(database, 1)
    assert seen[:52] == list(range(1, 53))
