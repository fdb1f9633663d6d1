"""Settling in PostgreSQL: what keeps acknowledged rows where they are, and that they are not sent again for it.

Covered: locks, foreign keys, triggers, rules, deferred constraints, grants that are withdrawn, row-level security,
publications; removals that go on while the next rows are read; ids that come twice. What is wrong with the second table
of policy Keep is in test_keep.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.ports import SettleRefusedError, StoreError
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from tests.contract.relay.reads import fill, ids, read, refusal, what_ends
from tests.contract.relay.settings import POLICIES, MakeStore, prepare_policy, relay_config, relay_role
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database


def test_rows_that_another_session_locks_are_not_given_up(database: Database, make_store: MakeStore) -> None:
    """The broker has them: a new session would only send the batch again."""
    fill(database, 5)
    store = make_store(database, tuning={"statement_timeout_seconds": 0.3})
    batch = ids(read(store))
    with database.connect(autocommit=False) as application:
        application.execute("select id from outbox where id = 3 for update")
        for _ in range(2):
            with pytest.raises(SettleRefusedError, match="another session locks"):
                store.settle(batch)
            assert store.alive()
        # What comes before it may go, a piece at a time.
        assert {(3,), (4,), (5,)} <= set(database.execute("select id from outbox"))
    store.settle(batch)
    assert database.execute("select count(*) from outbox") == [(0,)]


def settle(store: PostgresStore, batch: list[int]) -> None:
    """Settle a batch in as many attempts as it takes."""

    def settled() -> bool:
        try:
            store.settle(batch)
        except SettleRefusedError:
            return False
        return True

    eventually(settled, seconds=60, what="the batch settled")


def test_a_batch_that_takes_too_long_at_once_goes_piece_by_piece(database: Database, make_store: MakeStore) -> None:
    """Each attempt would be cancelled and undone, and nothing more be sent, for ever. All is as before afterwards."""
    database.execute(
        "create function slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.05); return old; end $$;"
        " create trigger slow before delete on outbox for each row execute function slow()"
    )
    store = make_store(database, tuning={"statement_timeout_seconds": 0.5})
    for ahead in (False, True):
        fill(database, 40)
        batch = ids(read(store))
        if ahead:
            store.start_settling(batch)
        settle(store, batch)
        assert database.execute("select count(*) from outbox") == [(0,)]
    assert ids(read(store)) == []
    database.execute("drop trigger slow on outbox")
    fill(database, 40)
    store.settle(ids(read(store)))
    assert database.execute("select count(*) from outbox") == [(0,)]


def test_rows_that_a_foreign_key_keeps_are_not_given_up(database: Database, make_store: MakeStore) -> None:
    fill(database, 3)
    database.execute("create table audit (event bigint references outbox (id))")
    database.execute("insert into audit values (2)")
    store = make_store(database)
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="constraint audit_event_fkey of table audit forbids it"):
            store.settle(batch)
        assert store.alive()
    database.execute("drop table audit")
    store.settle(batch)
    assert database.execute("select count(*) from outbox") == [(0,)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise exception 'secret'", "P0001.*: a trigger or rule of outbox.* fails"),
        ("raise exception 'secret' using errcode = '22000'", "22000.*: a trigger or rule of outbox.* fails"),
        ("raise exception 'secret' using errcode = '23000'", "23000.*: a constraint of table outbox forbids it"),
        ("insert into audit values (1)", "42P01.*: a trigger or rule of outbox.* fails"),
        ("raise exception 'secret' using errcode = 'deadlock_detected'", "40P01"),
    ],
)
def test_rows_whose_settling_a_trigger_refuses_are_not_given_up(
    database: Database, make_store: MakeStore, *, policy: str, body: str, message: str
) -> None:
    """Whatever it raises: to give the session up would send the batch again and again."""
    unsent = prepare_policy(database, policy)
    database.execute(f"create function no() returns trigger language plpgsql as $$ begin {body}; return old; end $$")
    database.execute("create trigger no before delete or update on outbox for each row execute function no()")
    fill(database, 3)
    store = make_store(database, retention=POLICIES[policy] or {"policy": "Delete"})
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match=message) as caught:
            store.settle(batch)
        assert "secret" not in caught.value.message
        assert store.alive()
        assert database.execute(f"select count(*) from outbox where {unsent}") == [(3,)]
    database.execute("drop trigger no on outbox")
    store.settle(batch)
    assert database.execute(f"select count(*) from outbox where {unsent}") == [(0,)]
    assert ids(read(store)) == []


def test_a_grant_that_is_revoked_before_the_settling_is_named(database: Database, make_store: MakeStore) -> None:
    """The next session says which one; so this one is given up."""
    fill(database, 1)
    role = database.relay_role()
    store = make_store(role)
    batch = ids(read(store))
    database.execute(f"revoke delete on outbox from {role.user}")
    with pytest.raises(StoreError) as caught:
        store.settle(batch)
    assert caught.value.reason == "PermissionDenied"
    assert not store.alive()


def test_rc_02_whoever_keeps_all_rows_from_being_removed_is_named(database: Database, make_store: MakeStore) -> None:
    """cases.md RC-02: an index that is made without CONCURRENTLY lets rows be read, and none be removed."""
    fill(database, 1)
    store = make_store(database, tuning={"statement_timeout_seconds": 0.5})
    batch = ids(read(store))
    with database.connect(autocommit=False) as other:
        other.execute("create index on outbox (created_at)")
        with pytest.raises(SettleRefusedError, match=f"lock ShareLock of process {other.info.backend_pid} "):
            store.settle(batch)
    store.settle(batch)


@pytest.mark.parametrize("sees_all", [False, True])
def test_rc_02_whoever_locks_the_table_is_named(database: Database, make_store: MakeStore, sees_all: bool) -> None:
    """cases.md RC-02: only a lock on the whole table makes publishing wait; then by process, database and age."""
    store = make_store(database if sees_all else database.relay_role(), tuning={"statement_timeout_seconds": 0.5})
    with database.connect(autocommit=False, application_name="migration 42") as other:
        other.execute("lock table outbox in access exclusive mode")
        with pytest.raises(StoreError) as caught:
            read(store)
        assert caught.value.reason == "DatabaseError"
        assert f"the table is locked by lock AccessExclusiveLock of process {other.info.backend_pid}" in (
            caught.value.message
        )
        assert f"(migration 42) in database {database.dbname}" in caught.value.message
        assert ("idle in transaction, for " if sees_all else "since when is unknown") in caught.value.message


def test_rows_that_are_locked_while_they_are_being_removed_are_not_read_again(
    database: Database, make_store: MakeStore
) -> None:
    """The rows behind them are larger than an even share of the bytes, so the read is repeated while the lock holds."""
    fill(database, 50)
    database.execute("update outbox set payload = to_jsonb(repeat('x', 40000)) where id > 40")
    store = make_store(
        database, tuning={"statement_timeout_seconds": 0.3, "batch_bytes": 64 * 1024, "batch_rows": 5000}
    )
    first = ids(read(store, limit=40))
    assert first == list(range(1, 41))
    store.ask(limit=5000, held_keys=[], held_ids=[], in_flight=first)
    with database.connect(autocommit=False) as application:
        application.execute("select id from outbox where id = 3 for update")
        store.start_settling(first)
        behind = ids(read(store))
        assert behind
        assert behind[0] == 41
        for _ in range(2):
            with pytest.raises(SettleRefusedError, match="another session locks"):
                store.settle(first)
            assert store.alive()
    store.settle(first)
    assert database.execute("select min(id) from outbox") == [(41,)]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_refused_question_does_not_end_the_removal_of_the_batch_before(
    database: Database, make_store: MakeStore, prepared: bool
) -> None:
    """With the session the removal would be lost, and the whole batch be sent again."""
    fill(database, 6)
    store = make_store(database, tuning={"statement_timeout_seconds": 0.3})
    first = ids(read(store, limit=2))
    if prepared:
        store.ask(limit=2, held_keys=[], held_ids=[], in_flight=first)
        store.drop()
    with database.connect(autocommit=False) as other:
        other.execute("lock table outbox in access exclusive mode")
        store.ask(limit=2, held_keys=[], held_ids=[], in_flight=first)
        store.fetch()
        store.start_settling(first)
        batch = read(store)
        assert (batch.rows, batch.complete) == ([], False)
        with pytest.raises(SettleRefusedError, match=f"AccessExclusiveLock of process {other.info.backend_pid} "):
            store.settle(first)
    store.settle(first)
    assert ids(read(store, limit=2)) == [3, 4]


def test_other_rows_than_those_being_removed_cannot_be_settled(database: Database, make_store: MakeStore) -> None:
    fill(database, 4)
    store = make_store(database)
    read(store)
    store.start_settling([1, 2])
    with pytest.raises(RuntimeError, match="other rows"):
        store.settle([3, 4])
    store.settle([1, 2])
    assert database.execute("select min(id) from outbox") == [(3,)]


def settling(config: RelayConfig) -> list[tuple[str, str]]:
    """What the preflight says of the statements that settle rows and clean up."""
    return [(found.level, found.message) for found in examine_database(config) if found.subject == "settling"]


def test_the_preflight_finds_what_the_relay_would_refuse_to_start_with(database: Database, tmp_path: Path) -> None:
    """And that a publication of all tables keeps old rows from being removed."""
    prepare_policy(database, "keep")
    database.execute("create index on outbox_sent (id)")
    keep = {"policy": "Keep", "keep_for_seconds": 60.0}
    config = relay_config(tmp_path, database=database, retention=keep)
    assert settling(config) == []
    database.execute("create publication changes for table outbox, outbox_sent")
    ((level, message),) = settling(config)
    assert level == "warning"
    assert "removing rows that were kept long enough failed" in message
    assert "REPLICA IDENTITY FULL" in message
    database.execute("alter table outbox_sent replica identity full")
    database.execute("create rule no as on delete to outbox do instead nothing")
    ((level, message),) = settling(config)
    assert level == "error"
    assert "settling rows failed" in message
    assert "0A000" in message
    assert "a rule ON DELETE or ON INSERT of outbox or outbox_sent is in the way: drop it" in message


def test_the_preflight_finds_a_rule_that_keeps_marked_rows_from_being_removed(
    database: Database, tmp_path: Path
) -> None:
    prepare_policy(database, "mark-time")
    config = relay_config(tmp_path, database=database, retention=POLICIES["mark-time"] | {"keep_for_seconds": 60.0})
    assert settling(config) == []
    database.execute("create rule no as on delete to outbox do instead nothing")
    ((level, message),) = settling(config)
    assert level == "warning"
    assert "a rule ON DELETE or ON INSERT of outbox is in the way: drop it" in message


@pytest.mark.parametrize(
    "keeper",
    [
        "create function keep() returns trigger language plpgsql as"
        " $$ begin if old.id > 2 then return null; end if; return old; end $$;"
        " create trigger keep before delete on outbox for each row execute function keep()",
        "create rule keep as on delete to outbox where old.id > 2 do instead nothing",
    ],
    ids=["trigger", "rule"],
)
def test_rows_that_are_kept_without_a_word_are_not_given_up(
    database: Database, make_store: MakeStore, keeper: str
) -> None:
    """They would be sent again with each session, and count as sent. The others go."""
    fill(database, 4)
    database.execute(keeper)
    store = make_store(database)
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="2 of 4 are still there after the DELETE"):
            store.settle(batch)
        assert store.alive()
        assert database.execute("select id from outbox order by id") == [(3,), (4,)]
    database.execute(f"drop {'rule' if 'rule' in keeper else 'trigger'} keep on outbox")
    store.settle(batch)
    assert database.execute("select count(*) from outbox") == [(0,)]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_refuses_the_end_of_the_transaction_alone_is_heard(
    database: Database, make_store: MakeStore, policy: str
) -> None:
    """A deferred constraint or trigger lets the statement itself succeed."""
    unsent = prepare_policy(database, policy)
    database.execute("create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$")
    database.execute(
        "create constraint trigger no after delete or update on outbox deferrable initially deferred"
        " for each row execute function no()"
    )
    fill(database, 3)
    store = make_store(database, retention=POLICIES[policy] or {"policy": "Delete"})
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="P0001"):
            store.settle(batch)
        assert store.alive()
        assert database.execute(f"select count(*) from outbox where {unsent}") == [(3,)]
    database.execute("drop trigger no on outbox")
    store.settle(batch)
    assert database.execute(f"select count(*) from outbox where {unsent}") == [(0,)]
    assert ids(read(store)) == []


@pytest.mark.parametrize(
    ("obstacle", "way"),
    [
        ("alter table outbox_sent enable row level security", "alter table outbox_sent disable row level security"),
        ("alter table outbox_sent add n bigserial", "grant usage on outbox_sent_n_seq to {user}"),
        ("alter table outbox_sent add check (mine(aggregateid))", "grant execute on function mine to {user}"),
        ("alter table outbox_sent add n bigint default nextval('gone'::text)",
         "create sequence gone; grant usage on gone to {user}"),
    ],
    ids=["row-level security", "sequence", "function", "gone"],
)  # fmt: skip
def test_a_grant_that_no_new_session_would_miss_does_not_end_this_one(
    database: Database, make_store: MakeStore, obstacle: str, way: str
) -> None:
    """Of what the second table makes use of nothing is known when a session begins; each would send the batch again."""
    prepare_policy(database, "keep")
    database.execute("create function mine(text) returns bool language sql immutable as 'select true'")
    database.execute("revoke execute on function mine from public")
    role = relay_role(database, "keep")
    database.execute(obstacle)
    fill(database, 2)
    store = make_store(role, retention={"policy": "Keep"})
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="something that outbox_sent makes use of"):
            store.settle(batch)
        assert store.alive()
        assert database.execute("select count(*) from outbox") == [(2,)]
    database.execute(way.format(user=role.user))
    store.settle(batch)
    assert database.execute("select id from outbox_sent order by id") == [(1,), (2,)]


def test_a_column_that_is_gone_from_both_tables_ends_the_session(database: Database, make_store: MakeStore) -> None:
    """The next one moves what there is."""
    prepare_policy(database, "keep")
    fill(database, 1)
    store = make_store(database, retention={"policy": "Keep"})
    batch = ids(read(store))
    database.execute("alter table outbox drop created_at")
    database.execute("alter table outbox_sent drop created_at")
    with pytest.raises(StoreError):
        store.settle(batch)
    store.open()
    store.rebalance()
    store.settle(ids(read(store)))
    assert database.execute("select id from outbox_sent") == [(1,)]


def test_a_publication_that_cannot_name_the_rows_is_named(
    database: Database, make_store: MakeStore, tmp_path: Path
) -> None:
    database.execute("alter table outbox drop constraint outbox_pkey; create index on outbox (id)")
    fill(database, 1)
    store = make_store(database)
    batch = ids(read(store))
    database.execute("create publication changes for table outbox")
    with pytest.raises(SettleRefusedError, match="REPLICA IDENTITY FULL"):
        store.settle(batch)
    refused = refusal(relay_config(tmp_path, database=database))
    assert refused.reason == "DatabaseError"
    assert "REPLICA IDENTITY FULL" in refused.message
    database.execute("alter table outbox replica identity full")
    store.settle(batch)


def test_row_security_that_is_switched_on_during_a_session_ends_it(database: Database, make_store: MakeStore) -> None:
    """Rows that it hides would wait in silence."""
    store = make_store(database.relay_role(), tuning={"held_back_seconds": 0.001})
    store.rebalance()
    database.execute("alter table outbox enable row level security")

    assert "row-level security" in what_ends(store, "the switch")


def test_row_security_is_refused(database: Database, tmp_path: Path) -> None:
    role = database.relay_role()
    database.execute(
        "alter table outbox enable row level security; create policy readable on outbox for select using (true)"
    )
    refused = refusal(relay_config(tmp_path, database=role))
    assert refused.reason == "PermissionDenied"
    assert "BYPASSRLS" in refused.message


@pytest.mark.parametrize("written", [[5, 5, 7], [5, 5, 5, 8]])
def test_ids_that_come_twice_are_never_settled_as_a_range(
    database: Database, make_store: MakeStore, written: list[int]
) -> None:
    """Hard rule 3 in a table without a unique index."""
    database.execute(
        "create table events (id bigint not null, aggregateid text, payload text); create index on events (id)"
    )
    insert = "insert into events (id, payload) select unnest(%s::int8[]), '{}'"
    database.execute(insert, (written,))
    store = make_store(database, table={"name": "events", "columns": {"type": None}})
    batch = ids(read(store))
    assert batch == written
    database.execute(insert, ([6],))
    store.settle(batch)
    assert database.execute("select id from events") == [(6,)]
