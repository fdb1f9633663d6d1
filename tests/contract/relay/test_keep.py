"""What is PostgreSQL's own about `retention.policy: Keep`.

Covered: whole rows are moved, in one step; what is wrong with the second table; columns that are added while a relay
runs; rows that cannot be moved; a held snapshot; dump and restore (cases.md RC-02 b, every policy). The clean-up is
covered by test_keep_clean_up.py.
"""

from __future__ import annotations

import itertools
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from outboxrelay.findings import Finding
from outboxrelay.ports import Row, SettleRefusedError, StoreError
from outboxrelay.stores import setup
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from tests.contract.relay.reads import refusal, what_ends
from tests.contract.relay.settings import POLICIES, MakeStore, prepare_policy, relay_config
from tests.contract.relay.test_sql_command import run, statements
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database, LocalPostgres

KEEP = {"policy": "Keep"}


@pytest.fixture
def make_store(make_store: MakeStore) -> MakeStore:
    """Makes stores that keep what was sent."""
    return partial(make_store, retention=KEEP)


def fill(database: Database, rows: int) -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        f" select 'order', (i % 100)::text, jsonb_build_object('n', i) from generate_series(1, {rows}) i"
    )


def read(store: PostgresStore) -> list[Row]:
    return store.read(limit=1000, held_keys=[], held_ids=[]).rows


def ids(rows: list[Row]) -> list[int]:
    return [row.id for row in rows]


def findings(config: Any) -> list[Finding]:
    return [finding for finding in examine_database(config) if finding.subject == "sent table"]


def test_whole_rows_are_moved_when_they_are_settled(database: Database, make_store: MakeStore) -> None:
    """Also columns that the relay knows nothing of, and those that the table computes."""
    database.execute('alter table outbox add "odd %s ""name" int default 7')
    database.execute("alter table outbox add twice bigint generated always as (id * 2) stored")
    prepare_policy(database, "keep")
    fill(database, 6)
    store = make_store(database)
    assert ids(read(store)) == [1, 2, 3, 4, 5, 6]
    # Stored out of line; read before, since a row that is larger than others by far comes in a batch of its own.
    database.execute(
        "update outbox set payload = to_jsonb((select string_agg(md5(i::text), '') from generate_series(1, 5000) i))"
        " where id = 2"
    )
    before = database.execute("select * from outbox where id in (1, 2, 3, 5) order by id")
    store.settle([1, 2, 3])
    store.settle([5])
    assert database.execute("select id from outbox order by id") == [(4,), (6,)]
    kept = database.execute("select * from outbox_sent order by id")
    assert [row[:-1] for row in kept] == before
    assert all(row[-1] is not None for row in kept)
    store.settle([5])
    assert database.execute("select count(*) from outbox_sent") == [(4,)]


@pytest.mark.parametrize("which", [range(1, 501), range(1, 501, 2)])
def test_rows_are_moved_in_the_order_of_their_ids_without_sorting(
    database: Database, make_store: MakeStore, which: range
) -> None:
    """The clean-up walks up the ids; a sort of a batch that outgrows work_mem would be done on disk."""
    prepare_policy(database, "keep")
    fill(database, 500)
    database.execute("update outbox set payload = '1' where id % 3 = 0")
    store = make_store(database)
    read(store)
    store.settle(list(which))
    assert [row_id for (row_id,) in database.execute("select id from outbox_sent order by ctid")] == list(which)
    assert store._opened is not None
    settle = store._opened.statements.policy.settle(sql.SQL("id BETWEEN 2 AND 400"))
    plan = store._opened.connection.execute(sql.SQL("EXPLAIN {}").format(settle), {}).fetchall()
    assert "Index Scan" in str(plan)
    assert "Sort" not in str(plan)


def test_a_row_that_is_put_back_is_sent_again(database: Database, make_store: MakeStore) -> None:
    """Replay: with a new id, or with its old one."""
    prepare_policy(database, "keep")
    fill(database, 2)
    store = make_store(database)
    store.settle(ids(read(store)))
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload)"
        " select aggregatetype, aggregateid, type, payload from outbox_sent order by id"
    )
    assert ids(read(store)) == [3, 4]
    store.settle([3, 4])
    database.execute(
        "insert into outbox overriding system value select id, aggregatetype, aggregateid, type, payload, headers,"
        " created_at from outbox_sent where id = 1"
    )
    store.close()
    again = make_store(database)
    assert ids(read(again)) == [1]
    again.settle([1])
    assert database.execute("select count(*) from outbox_sent where id = 1") == [(2,)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("drop table outbox_sent", "TableMissing"),
        ("alter table outbox_sent drop column headers", "ColumnMissing"),
        ("alter table outbox_sent drop column outbox_sent_at", None),
        ("drop index outbox_sent_id_idx", None),
    ],
)
@pytest.mark.parametrize("keep", [None, 3600.0])
def test_what_the_second_table_lacks_is_found_and_printed(
    database: Database, tmp_path: Path, make_store: MakeStore, damage: str, reason: str | None, keep: float | None
) -> None:
    prepare_policy(database, "keep")
    database.execute("create index on outbox_sent (id)")
    database.execute(damage)
    needless = damage.startswith("drop index") and keep is None
    config = relay_config(tmp_path, database=database, retention={**KEEP, "keep_for_seconds": keep})
    if reason is not None:
        store = PostgresStore(config)
        with pytest.raises(StoreError, match="outbox_sent") as caught:
            store.open()
        assert caught.value.reason == reason
    assert ([finding.level for finding in findings(config)] == ["ok"]) == needless
    run(database, setup.for_what_is_missing(config, role=database.user))
    assert [finding.level for finding in findings(config)] == ["ok"]
    assert statements(setup.for_what_is_missing(config, role=database.user)) == []
    fill(database, 1)
    working = make_store(database, retention={**KEEP, "keep_for_seconds": keep})
    working.settle(ids(read(working)))
    assert database.execute("select count(*) from outbox_sent") == [(1,)]


def test_a_column_that_is_added_while_a_relay_runs_is_kept_too(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "keep")
    store = make_store(database, tuning={"held_back_seconds": 0.001})
    database.execute("alter table outbox_sent add tenant text")
    store.rebalance()
    database.execute("alter table outbox add tenant text default 'a'")

    assert "other columns than before" in what_ends(store, "the new column")
    store.open()
    store.rebalance()
    fill(database, 1)
    store.settle(ids(read(store)))
    assert database.execute("select tenant from outbox_sent") == [("a",)]


def test_a_column_that_the_second_table_waits_for_is_moved_once_the_first_has_it(
    database: Database, make_store: MakeStore
) -> None:
    """Rows are held meanwhile; the session that holds them knows nothing of the new column."""
    prepare_policy(database, "keep")
    fill(database, 1)
    store = make_store(database)
    batch = ids(read(store))
    database.execute("alter table outbox_sent add tenant text not null")
    with pytest.raises(SettleRefusedError, match="column tenant of table outbox_sent"):
        store.settle(batch)
    database.execute("alter table outbox add tenant text not null default 'a'")
    with pytest.raises(StoreError, match="other columns than before"):
        store.settle(batch)
    store.open()
    store.rebalance()
    store.settle(ids(read(store)))
    assert database.execute("select id, tenant from outbox_sent") == [(1, "a")]


def test_a_second_table_with_all_that_the_first_has_will_do(database: Database, make_store: MakeStore) -> None:
    """Also an identity, which takes no values unless told to."""
    database.execute("create table outbox_sent (like outbox including all, outbox_sent_at timestamptz default now())")
    fill(database, 3)
    store = make_store(database)
    store.settle(ids(read(store)))
    assert database.execute("select id from outbox_sent order by id") == [(1,), (2,), (3,)]


def test_rows_that_cannot_be_moved_for_their_types_are_not_sent(database: Database, tmp_path: Path) -> None:
    """They would be sent again and again."""
    prepare_policy(database, "keep")
    database.execute("alter table outbox_sent alter headers type bytea using null")
    fill(database, 1)
    refused = refusal(relay_config(tmp_path, database=database, retention=KEEP))
    assert refused.reason == "ColumnUnsupported"
    assert "looking at the table" in refused.message


def test_rows_that_somebody_locks_are_in_one_table_alone(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "keep")
    fill(database, 3)
    store = make_store(database, tuning={"statement_timeout_seconds": 0.3})
    batch = ids(read(store))
    with database.connect(autocommit=False) as application:
        application.execute("select from outbox where id = 2 for update")
        with pytest.raises(SettleRefusedError):
            store.settle(batch)
        assert database.execute("select count(*) from outbox_sent") == [(0,)]
    store.settle(batch)
    assert database.execute("select id from outbox_sent order by id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("table", ["plain", "partitioned", "partition", "child"])
def test_rows_that_a_trigger_keeps_are_not_copied(database: Database, make_store: MakeStore, table: str) -> None:
    """Each attempt would make one more copy of a row that waits. The others are moved."""
    if table == "child":
        database.execute("create table leaf (primary key (id)) inherits (outbox)")
        database.execute(
            "create function into_leaf() returns trigger language plpgsql as"
            " $$ begin insert into leaf select new.*; return null; end $$;"
            " create trigger into_leaf before insert on outbox for each row execute function into_leaf()"
        )
    elif table != "plain":
        database.execute("create table parent (like outbox including all excluding indexes) partition by list (id)")
        database.execute("create table leaf partition of parent default")
        database.execute("create index on parent (id)")
        database.execute("drop table outbox; alter table parent rename to outbox")
    prepare_policy(database, "keep")
    database.execute(
        "create function no() returns trigger language plpgsql as"
        " $$ begin if old.id > 2 then return null; end if; return old; end $$"
    )
    on = "leaf" if table in ("partition", "child") else "outbox"
    database.execute(f"create trigger no before delete on {on} for each row execute function no()")
    fill(database, 4)
    store = make_store(database)
    batch = ids(read(store))
    for session in range(2):
        for _ in range(2):
            with pytest.raises(SettleRefusedError, match=r"2 of [24] are still there after"):
                store.settle(batch)
            assert database.execute("select id from outbox_sent order by id") == [(1,), (2,)]
            assert database.execute("select id from outbox order by id") == [(3,), (4,)]
        if session == 0:
            store.open()
            store.rebalance()
            batch = ids(read(store))
    database.execute(f"alter table {on} disable trigger no")
    store.settle(batch)
    assert database.execute("select id from outbox_sent order by id") == [(1,), (2,), (3,), (4,)]


def new_trigger(database: Database) -> None:
    database.execute("create function no() returns trigger language plpgsql as $$ begin return null; end $$")
    database.execute("create trigger no before delete on outbox for each row execute function no()")


def test_rows_that_a_new_trigger_keeps_are_copied_once(database: Database, make_store: MakeStore) -> None:
    """The session that meets it ends, and the next one moves only what goes."""
    prepare_policy(database, "keep")
    fill(database, 2)
    store = make_store(database)
    batch = ids(read(store))
    new_trigger(database)
    with pytest.raises(StoreError, match="other triggers or rules than before"):
        store.settle(batch)
    store.open()
    store.rebalance()
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="2 of 2 are still there after"):
            store.settle(batch)
    assert database.execute("select count(*) from outbox_sent") == [(2,)]


def test_a_new_trigger_that_raises_an_error_ends_no_session(database: Database, make_store: MakeStore) -> None:
    """Nothing was copied, so that there is nothing to be done otherwise: the batch need not be sent again."""
    prepare_policy(database, "keep")
    fill(database, 2)
    store = make_store(database)
    batch = ids(read(store))
    database.execute("create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$")
    database.execute("create trigger no before delete on outbox for each row execute function no()")
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="P0001"):
            store.settle(batch)
    database.execute("drop trigger no on outbox")
    store.settle(batch)
    assert database.execute("select count(*) from outbox_sent") == [(2,)]


def test_a_trigger_that_may_keep_rows_is_noticed_before_it_does(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "keep")
    store = make_store(database, tuning={"held_back_seconds": 0.001})
    store.rebalance()
    new_trigger(database)

    assert "other triggers or rules" in what_ends(store, "the new trigger")


@pytest.mark.parametrize("when", ["", "where old.id > 1"])
def test_a_rule_that_keeps_rows_is_refused_before_any_row_is_sent(
    database: Database, tmp_path: Path, when: str
) -> None:
    """Each new session would copy them, and send them."""
    prepare_policy(database, "keep")
    database.execute(f"create rule no as on delete to outbox {when} do instead nothing")
    refused = refusal(relay_config(tmp_path, database=database, retention=KEEP))
    assert refused.reason == "DatabaseError"
    assert "0A000" in refused.message
    assert "a rule ON DELETE or ON INSERT of outbox or outbox_sent is in the way: drop it" in refused.message


@pytest.mark.parametrize(
    ("obstacle", "way", "message"),
    [
        ("create unique index once on outbox_sent (aggregatetype)", "drop index once", "constraint once of table"),
        ("alter table outbox_sent alter headers set not null", "alter table outbox_sent alter headers drop not null",
         "column headers of table outbox_sent"),
        ("alter table outbox_sent alter aggregatetype type varchar(2)",
         "alter table outbox_sent alter aggregatetype type text", "does not fit into a column of outbox_sent"),
    ],
)  # fmt: skip
def test_what_the_second_table_refuses_is_sent_once(
    database: Database, make_store: MakeStore, obstacle: str, way: str, message: str
) -> None:
    """To give the session up would send the batch again and again; and the message quotes no value of a row."""
    prepare_policy(database, "keep")
    database.execute(obstacle)
    fill(database, 2)
    store = make_store(database)
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match=message) as caught:
            store.settle(batch)
        assert "order)" not in caught.value.message
        assert store.alive()
        assert database.execute("select count(*) from outbox") == [(2,)]
    database.execute(way)
    store.settle(batch)
    assert database.execute("select id from outbox_sent order by id") == [(1,), (2,)]
    assert read(store) == []


def test_a_held_snapshot_makes_no_read_longer(database: Database, make_store: MakeStore) -> None:
    """Dead rows that cannot be vacuumed away are not looked at again."""
    prepare_policy(database, "keep")
    database.execute("alter table outbox set (autovacuum_enabled = off)")
    with database.connect(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from outbox")
        ticks = itertools.count()
        store = make_store(database, clock=lambda: float(next(ticks)), tuning={"full_sweep_seconds": 1e6})
        fill(database, 5000)
        while rows := read(store):
            store.settle(ids(rows))
        read(store)
        fill(database, 1)
        connection = store._connection
        assert connection is not None

        def looked_at() -> int:
            connection.execute("select pg_stat_force_next_flush()")
            connection.execute("select 1")
            return int(database.execute("select sum(idx_tup_read) from pg_stat_user_indexes")[0][0])

        before = looked_at()
        assert len(read(store)) == 1
        assert looked_at() - before < 1500


@pytest.mark.parametrize("policy", POLICIES)
def test_rc_02_after_dump_and_restore_just_the_new_rows_are_read(
    database: Database, tmp_path: Path, make_store: MakeStore, policy: str
) -> None:
    """cases.md RC-02 (b): the new cluster's transaction ids are far below those of the old one."""
    prepare_policy(database, policy)
    for _ in range(50):
        database.execute("select pg_current_xact_id()")
    fill(database, 20)
    store = make_store(database, retention=POLICIES[policy] or {"policy": "Delete"})
    store.settle(ids(read(store))[:15])
    store.close()
    dump = tmp_path / "dump.sql"
    environment = {"PGPASSWORD": database.password, "PGSSLMODE": "verify-ca", "PGSSLROOTCERT": str(database.ca_file)}
    command: list[str] = [str(program("pg_dump")), "-h", database.host, "-p", str(database.port), "-U", database.user]
    subprocess.run([*command, "-O", "-x", "-f", str(dump), database.dbname], env=environment, check=True, timeout=120)
    with LocalPostgres(fsync=False) as other:
        restored = other.create_database()
        environment = {"PGPASSWORD": restored.password, "PGSSLMODE": "require"}
        command = [str(program("psql")), "-h", restored.host, "-p", str(restored.port), "-U", restored.user]
        command += ["-v", "ON_ERROR_STOP=1", "-q", "-f", str(dump), restored.dbname]
        subprocess.run(command, env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)
        fill(restored, 1)
        moved = make_store(restored, retention=POLICIES[policy] or {"policy": "Delete"})
        assert ids(read(moved)) == [16, 17, 18, 19, 20, 21]
        moved.settle([16, 17, 18, 19, 20, 21])
        assert read(moved) == []
        moved.close()
