"""What is PostgreSQL's own about `retention.policy: Mark`.

Covered: column types and values, what is written and cleared, rows that somebody else changes, the index that the reads
need and that the preflight asks for, the clean-up (cases.md RR-07), and the grants.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.findings import Finding
from outboxrelay.ports import Row, RowFault, SettleRefusedError, StoreError
from outboxrelay.stores import setup
from outboxrelay.stores.lag import measure
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from tests.contract.relay.settings import MARK_STATUS, MARK_TIME, MakeStore, prepare_policy, relay_config, relay_role
from tests.contract.relay.test_sql_command import new_login, run, run_what_is_printed, statements
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database


def fill(database: Database, rows: int, *, route: str = "order") -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        f" select '{route}', (i % 100)::text, '{{}}' from generate_series(1, {rows}) i"
    )


def read(store: PostgresStore, *, limit: int = 1000) -> list[Row]:
    return store.read(limit=limit, held_keys=[], held_ids=[]).rows


def ids(rows: list[Row]) -> list[int]:
    return [row.id for row in rows]


@pytest.mark.parametrize(
    ("kind", "pending", "sent", "failed"),
    [
        ("text not null default 'new'", "new", "done", None),
        ("text", None, "100% \"done\" 'now'", None),
        ("varchar(20) not null default '%s'", "%s", "done", "broken"),
        ("stage not null default 'fresh'", "fresh", "gone", "stuck"),
        ("smallint not null default 0", "0", "1", "-1"),
        ("boolean not null default false", "false", "true", None),
        ("timestamptz", None, None, None),
        ("timestamp", None, None, None),
    ],
)
def test_columns_and_values_of_every_kind(
    database: Database,
    make_store: MakeStore,
    tmp_path: Path,
    kind: str,
    pending: str | None,
    sent: str | None,
    failed: str | None,
) -> None:
    database.execute("create type stage as enum ('fresh', 'gone', 'stuck')")
    database.execute(f"alter table outbox add state {kind}")
    retention = {"policy": "Mark", "mark": {"column": "state", "pending": pending, "sent": sent, "failed": failed}}
    config = relay_config(tmp_path, database=database, retention=retention)
    run(database, setup.for_what_is_missing(config, role=database.user))
    fill(database, 3)
    store = make_store(database, retention=retention)
    rows = read(store)
    assert ids(rows) == [1, 2, 3]
    store.note([RowFault(rows[1], "RowTooLarge", "too large")])
    store.settle([1, 3])
    states = [state for (state,) in database.execute("select state::text from outbox order by id")]
    if sent is None:
        # Times without a zone are UTC, as is the zone of this session.
        with database.connect(options="-c timezone=UTC") as connection:
            late = "state not between now() - interval '10 minutes' and now() + interval '1 minute'"
            assert connection.execute(f"select from outbox where {late}".encode()).fetchall() == []
        assert [state is None for state in states] == [False, True, False]
    else:
        assert states == [sent, failed or pending, sent]
    store.close()
    assert ids(read(make_store(database, retention=retention))) == [2]
    assert measure(config).waiting == 1


def test_the_reason_is_written_once_and_cleared_when_the_row_was_sent(
    database: Database, make_store: MakeStore
) -> None:
    prepare_policy(database, "mark-status")
    fill(database, 1)
    store = make_store(database, retention=MARK_STATUS)
    (row,) = read(store)
    store.note([RowFault(row, "RowTooLarge", "2 MB, and the topic takes 1 MB")])
    state = "select status, error, xmin from outbox"
    ((status, error, version),) = database.execute(state)
    assert (status, error) == ("failed", "RowTooLarge: 2 MB, and the topic takes 1 MB")
    store.note([RowFault(row, "RowTooLarge", "2 MB, and the topic takes 1 MB")])
    assert database.execute(state) == [(status, error, version)], "written again without need"
    store.settle([1])
    assert database.execute("select status, error from outbox") == [("sent", None)]
    store.note([RowFault(row, "RowTooLarge", "late")])
    assert database.execute("select status, error from outbox") == [("sent", None)]


@pytest.mark.parametrize("kind", ["varchar(20)", "brief", "briefer"])
def test_as_much_of_the_reason_is_written_as_the_column_holds(
    database: Database, make_store: MakeStore, kind: str
) -> None:
    """PostgreSQL refuses a longer one."""
    prepare_policy(database, "mark-status")
    database.execute("create domain brief as varchar(20)")
    database.execute("create domain briefer as brief")
    database.execute(f"alter table outbox alter error type {kind}")
    fill(database, 1)
    store = make_store(database, retention=MARK_STATUS)
    (row,) = read(store)
    for _ in range(2):
        assert store.note([RowFault(row, "RowTooLarge", "2 MB, and the topic takes 1 MB")]) is None
    assert database.execute("select status, error from outbox") == [("failed", "RowTooLarge: 2 MB, a")]


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        ("create trigger no before update on outbox for each row when (new.id = 1) execute function no()",
         "P0001.*a trigger or rule of outbox fails"),
        ("create constraint trigger no after update on outbox deferrable initially deferred"
         " for each row when (new.id = 1) execute function no()", "P0001.*a trigger or rule of outbox fails"),
        ("alter table outbox add constraint no check (id > 1 or status <> 'failed')",
         "constraint no of table outbox forbids it"),
    ],
)  # fmt: skip
def test_a_reason_that_cannot_be_written_ends_no_session(
    database: Database, make_store: MakeStore, obstacle: str, message: str
) -> None:
    """The row could never be parked, and the others of its batch be sent as slowly as sessions are opened."""
    prepare_policy(database, "mark-status")
    database.execute("create function no() returns trigger language plpgsql as $$ begin raise exception 'x'; end $$")
    database.execute(obstacle)
    fill(database, 2)
    store = make_store(database, retention=MARK_STATUS)
    faults = [RowFault(row, "RowTooLarge", "too large") for row in read(store)]
    refused = store.note(faults)
    assert refused is not None
    assert re.search(message, refused)
    assert store.alive()
    assert database.execute("select status from outbox order by id") == [("new",), ("failed",)]
    store.settle([2])


def test_a_grant_that_is_revoked_before_a_reason_is_written_is_named(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "mark-status")
    fill(database, 1)
    role = relay_role(database, "mark-status")
    store = make_store(role, retention=MARK_STATUS)
    (row,) = read(store)
    database.execute(f"revoke update on outbox from {role.user}")
    with pytest.raises(StoreError) as caught:
        store.note([RowFault(row, "RowTooLarge", "too large")])
    assert caught.value.reason == "PermissionDenied"


def test_a_locked_row_is_not_waited_for_to_be_noted(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "mark-status")
    fill(database, 1)
    store = make_store(database, retention=MARK_STATUS, tuning={"statement_timeout_seconds": 60.0})
    (row,) = read(store)
    with database.connect(autocommit=False) as application:
        application.execute("select from outbox for update")
        store.note([RowFault(row, "RowTooLarge", "too large")])
    assert database.execute("select status from outbox") == [("new",)]
    assert store.alive()


def test_a_row_that_somebody_else_has_dealt_with_is_left_as_it_is(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "mark-status")
    fill(database, 3)
    store = make_store(database, retention=MARK_STATUS)
    rows = ids(read(store))
    database.execute("update outbox set status = 'cancelled' where id = 2")
    store.settle(rows)
    assert database.execute("select status from outbox order by id") == [("sent",), ("cancelled",), ("sent",)]


def test_a_row_that_is_made_pending_again_is_sent_again_after_the_next_sweep(
    database: Database, make_store: MakeStore
) -> None:
    prepare_policy(database, "mark-time")
    now = 0.0
    store = make_store(database, clock=lambda: now, retention=MARK_TIME, tuning={"full_sweep_seconds": 60.0})
    for _ in range(3):
        fill(database, 5)
        store.settle(ids(read(store)))
    assert read(store) == []
    database.execute("update outbox set published_at = null where id = 2")
    now = 61.0
    assert ids(read(store)) == [2]


def test_rows_that_a_trigger_keeps_pending_are_not_given_up(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "mark-time")
    fill(database, 2)
    database.execute(
        "create function keep() returns trigger language plpgsql as $$ begin return null; end $$;"
        " create trigger keep before update on outbox for each row execute function keep()"
    )
    store = make_store(database, retention=MARK_TIME)
    batch = ids(read(store))
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="2 of 2 are still there after the UPDATE"):
            store.settle(batch)
    database.execute("drop trigger keep on outbox")
    store.settle(batch)
    assert ids(read(store)) == []


# -- the index


def plan_of_the_read(store: PostgresStore, database: Database, rows: int) -> int:
    """Index entries that a read looks at."""
    connection = store._connection
    assert connection is not None

    def count() -> int:
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select 1")
        return int(database.execute("select sum(idx_tup_read) from pg_stat_user_indexes")[0][0])

    before = count()
    assert len(read(store)) == rows
    return count() - before


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("policy", ["mark-status", "mark-time"])
def test_a_read_looks_at_rows_that_were_not_sent_alone(
    database: Database, make_store: MakeStore, policy: str, analyzed: bool
) -> None:
    """However many rows stay in the table, from the first read on."""
    prepare_policy(database, policy)
    database.execute("alter table outbox set (autovacuum_enabled = off)")
    retention = MARK_STATUS if policy == "mark-status" else MARK_TIME
    fill(database, 20_000)
    database.execute(
        "update outbox set status = 'sent'" if policy == "mark-status" else "update outbox set published_at = now()"
    )
    database.execute("vacuum analyze outbox" if analyzed else "vacuum outbox")
    fill(database, 5)
    store = make_store(database, retention=retention)
    assert plan_of_the_read(store, database, 5) < 100


def findings(config: Any) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine_database(config)}


@pytest.mark.parametrize(
    "index",
    [
        "",
        "create index on outbox (id) where status = 'new'",
        "create index on outbox (id) where status = 'sent'",
        "create index on outbox (status)",
        "create index on outbox (created_at) where status = 'new' or status = 'failed'",
    ],
)
def test_an_index_that_will_not_do_is_found_and_the_right_one_printed(
    database: Database, tmp_path: Path, index: str
) -> None:
    database.execute("alter table outbox add status text not null default 'new', add error text")
    if index:
        database.execute(index)
    config = relay_config(tmp_path, database=database, retention=MARK_STATUS)
    assert findings(config)["pending index"].level == "error"
    run(database, setup.for_what_is_missing(config, role=database.user))
    assert findings(config)["pending index"].level == "ok"
    assert statements(setup.for_what_is_missing(config, role=database.user)) == []


def test_what_the_columns_cannot_hold_is_found(database: Database, tmp_path: Path) -> None:
    database.execute("alter table outbox add status int not null default 0, add error text not null default ''")
    config = relay_config(tmp_path, database=database, retention=MARK_STATUS)
    found = findings(config)
    assert "cannot hold the values" in found["retention"].message
    assert "NOT NULL" in found["column error"].message
    assert found["column error"].level == "error"


def test_a_status_that_may_be_null_is_warned_of(database: Database, tmp_path: Path) -> None:
    """Such a row is neither pending nor sent: nobody would ever send it."""
    prepare_policy(database, "mark-status")
    config = relay_config(tmp_path, database=database, retention=MARK_STATUS)
    assert "may be NULL" not in str(examine_database(config))
    database.execute("alter table outbox alter status drop not null")
    (warning,) = [finding for finding in examine_database(config) if finding.level == "warning"]
    assert "status may be NULL" in warning.message


@pytest.mark.parametrize("column", ["status", "error"])
def test_a_missing_column_is_named_with_the_field_that_asks_for_it(
    database: Database, tmp_path: Path, column: str
) -> None:
    prepare_policy(database, "mark-status")
    database.execute(f"alter table outbox drop column {column}")
    store = PostgresStore(relay_config(tmp_path, database=database, retention=MARK_STATUS))
    with pytest.raises(StoreError, match=r"spec\.retention\.mark") as caught:
        store.open()
    assert caught.value.reason == "ColumnMissing"


# -- setting up


@pytest.mark.parametrize("keep", [None, 60.0])
@pytest.mark.parametrize("new", [True, False])
def test_se_exactly_the_printed_grants_are_enough_to_mark_and_clean_up(
    database: Database, make_store: MakeStore, tmp_path: Path, keep: float | None, new: bool
) -> None:
    mark = {**MARK_STATUS["mark"], "sent_at_column": "sent_at"}
    retention = {"policy": "Mark", "mark": mark, "keep_for_seconds": keep}
    role = new_login(database)
    run_what_is_printed(database, tmp_path, role=role, retention=retention, new=new)
    fill(database, 3)
    store = make_store(role, retention=retention, tuning={"clean_up_rest_seconds": 0.001})
    rows = read(store)
    store.note([RowFault(rows[2], "RowTooLarge", "too large")])
    store.settle(ids(rows)[:2])
    database.execute("update outbox set sent_at = sent_at - interval '1 hour'")

    def cleaned() -> bool:
        store.rebalance()
        return database.execute("select count(*) from outbox") == [(3,) if keep is None else (1,)]

    eventually(cleaned, seconds=20, what="the clean-up of what is old, if there is one")
    granted = database.execute(
        "select privilege_type from information_schema.role_table_grants where grantee = %s", (role.user,)
    )
    assert {kind for (kind,) in granted} == ({"SELECT"} if keep is None else {"SELECT", "DELETE"})


# -- the clean-up


def kept(*, keep: float = 60.0) -> dict[str, Any]:
    return {**MARK_TIME, "keep_for_seconds": keep}


def clean(store: PostgresStore, *, rounds: int = 200) -> None:
    for _ in range(rounds):
        store.rebalance()


def test_rr_07_rows_are_removed_when_they_were_sent_long_enough_ago(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-07: a short step at a time; what was sent lately stays, and so does what was not sent at all."""
    prepare_policy(database, "mark-time")
    fill(database, 20_000)
    database.execute("update outbox set published_at = now() - interval '1 hour' where id <= 15000 and id % 100 <> 7")
    database.execute("update outbox set published_at = now() - interval '30 s' where id > 15000 and id % 100 <> 7")
    store = make_store(database, retention=kept(), tuning={"clean_up_rest_seconds": 0.01})
    clean(store)
    assert database.execute("select count(*) from outbox where published_at < now() - interval '1 minute'") == [(0,)]
    assert database.execute("select count(*) from outbox where published_at is null") == [(200,)]
    assert database.execute("select count(*) from outbox where published_at is not null") == [(4950,)]


def test_rr_07_a_row_that_was_committed_late_is_sent_and_not_cleaned_away(
    database: Database, make_store: MakeStore
) -> None:
    """cases.md RR-07 (b): its transaction stays open longer than rows are kept."""
    prepare_policy(database, "mark-time")
    with database.connect(autocommit=False) as writer:
        writer.execute(
            "insert into outbox (aggregatetype, aggregateid, payload, created_at)"
            " values ('order', 'late', '{}', now() - interval '1 day')"
        )
        store = make_store(database, retention=kept(), tuning={"clean_up_rest_seconds": 0.01})
        fill(database, 500)
        store.settle(ids(read(store)))
        database.execute("update outbox set published_at = now() - interval '1 day'")
        clean(store, rounds=5)
        writer.commit()
    clean(store, rounds=5)
    assert database.execute("select id from outbox") == [(1,)]
    assert ids(read(store)) == [1]


def test_the_clean_up_waits_for_nobody(database: Database, make_store: MakeStore) -> None:
    """A row that the application has locked stays until the next walk; its neighbours go."""
    prepare_policy(database, "mark-time")
    fill(database, 5000)
    database.execute("update outbox set published_at = now() - interval '1 hour'")
    tuning = {"clean_up_rest_seconds": 0.01, "statement_timeout_seconds": 60.0}
    with database.connect(autocommit=False) as application:
        application.execute("select from outbox where id = 3 for update")
        store = make_store(database, retention=kept(), tuning=tuning)
        clean(store, rounds=30)
        assert database.execute("select count(*) < 5000, count(*) > 0 from outbox") == [(True, True)]

    def cleaned() -> bool:
        store.rebalance()
        return database.execute("select count(*) from outbox") == [(0,)]

    eventually(cleaned, seconds=30, what="the walk that finds the row unlocked")


def test_only_one_relay_cleans_up(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "mark-time")
    first = make_store(database, retention=kept())
    second = make_store(database, retention=kept())
    for _ in range(2):
        owned = [first.rebalance(), second.rebalance()]
    assert sorted(lane for lanes in owned for lane in lanes) == [0, 1, 2, 3]
    fill(database, 100)
    database.execute("update outbox set published_at = now() - interval '1 hour'")
    idle = second if 0 in owned[0] else first
    connection = idle._connection
    assert connection is not None
    idle.rebalance()
    assert database.execute("select count(*) from outbox") == [(100,)]


def test_a_clean_up_step_looks_at_few_rows_however_many_stay(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "mark-time")
    fill(database, 50_000)
    database.execute("update outbox set published_at = now()")
    database.execute("vacuum analyze outbox")
    now = 0.0
    store = make_store(database, clock=lambda: now, retention=kept())
    connection = store._connection
    assert connection is not None
    now = 20.0
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select 1")
    before = database.execute("select sum(idx_tup_read) from pg_stat_user_indexes")[0][0]
    store.rebalance()
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select 1")
    after = database.execute("select sum(idx_tup_read) from pg_stat_user_indexes")[0][0]
    assert after - before <= 5000


@pytest.mark.parametrize("obstacle", ["foreign key", "trigger", "slow trigger"])
def test_rr_07_rows_are_sent_although_those_kept_long_enough_cannot_be_removed(
    database: Database, tmp_path: Path, obstacle: str
) -> None:
    """cases.md RR-07: a clean-up that fails is a table that grows, and no reason to send nothing."""
    prepare_policy(database, "mark-time")
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload) select 'o', 'k', '{}' from generate_series(1, 5)"
    )
    database.execute("update outbox set published_at = now() - interval '1 day' where id <= 3")
    if obstacle == "foreign key":
        database.execute("create table audit (outbox_id bigint references outbox (id))")
        database.execute("insert into audit values (1)")
    else:
        body = "raise exception 'no'" if obstacle == "trigger" else "perform pg_sleep(5); return old"
        database.execute(f"create function no() returns trigger language plpgsql as $$ begin {body}; end $$")
        database.execute("create trigger no before delete on outbox for each row execute function no()")
    retention = {"policy": "Mark", "mark": {"column": "published_at"}, "keep_for_seconds": 60.0}
    store = PostgresStore(relay_config(tmp_path, database=database, retention=retention))
    store.open()
    try:
        assert len(store.rebalance()) == 4
        # A walk has a little time now and then, and may need some of it to meet what it cannot remove.
        trouble = eventually(
            lambda: (store.rebalance(), store.cleanup_trouble())[1], seconds=30, what="trouble with the clean-up"
        )
        assert "rows that were kept long enough" in trouble
        batch = store.read(limit=10, held_keys=[], held_ids=[])
        assert [row.id for row in batch.rows] == [4, 5]
        store.settle([4, 5])
        assert store.alive()
    finally:
        store.close()
