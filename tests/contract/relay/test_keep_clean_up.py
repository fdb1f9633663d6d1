"""Cleaning up the second table of `retention.policy: Keep`: cases.md RR-07 (b), and whole partitions at once.

Covered: the grants; rows one by one, in steps that read little of a big table; partitions that are old, straddle the
limit, are the default, may not or cannot be truncated, are themselves partitioned, are read by somebody or change while
we look; no partition for new rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outboxrelay.findings import Finding
from outboxrelay.ports import Row, SettleRefusedError
from outboxrelay.stores import session, setup
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from outboxrelay.stores.retire import Partition, Retirement
from outboxrelay.stores.session import Connection, connect
from tests.contract.relay.settings import MakeStore, prepare_policy, relay_config
from tests.contract.relay.test_sql_command import new_login, run, run_what_is_printed, statements
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database

DAY = 86_400.0
RETENTION: dict[str, Any] = {"policy": "Keep", "keep_for_seconds": 7 * DAY}
PARTITIONS = {"old": (-30, -20), "older": (-40, -30), "straddling": (-20, -1), "current": (-1, 2)}
"""Name of a partition, and its bounds in days from now."""


@pytest.fixture
def make_store(make_store: MakeStore) -> MakeStore:
    """Makes stores that clean up at each `rebalance`."""
    return partial(make_store, retention=RETENTION, tuning={"clean_up_rest_seconds": 0.001})


def partition(database: Database, *, indexed: bool, default: bool = True) -> None:
    """A second table that is partitioned by time, with 50 rows in each partition, one half as old as can be."""
    database.execute(
        "create table outbox_sent (like outbox, outbox_sent_at timestamptz not null default now())"
        " partition by range (outbox_sent_at)"
    )
    now = database.execute("select date_trunc('second', now())")[0][0]
    for name, (first, last) in PARTITIONS.items():
        bounds = (
            f"from ('{now}'::timestamptz + interval '{first} days') to ('{now}'::timestamptz + interval '{last} d')"
        )
        database.execute(f"create table sent_{name} partition of outbox_sent for values {bounds}")
        send(database, days=[first + 0.01] * 25 + [min(last, 0) - 0.01] * 25)
    if default:
        database.execute("create table sent_default partition of outbox_sent default")
        send(database, days=[-100] * 25)
    if indexed:
        database.execute("create index on outbox_sent (id)")


def send(database: Database, *, days: list[float]) -> None:
    """Rows that were sent so many days from now."""
    database.execute(
        "insert into outbox_sent (id, aggregatetype, aggregateid, created_at, outbox_sent_at)"
        " select n, 'order', 'k', now(), now() + make_interval(secs => day * 86400)"
        " from unnest(%s::float8[]) with ordinality as rows (day, n)",
        (days,),
    )


def left(database: Database) -> dict[str, int]:
    """Rows in each partition that has any."""
    found = database.execute("select tableoid::regclass::text, count(*) from outbox_sent group by 1")
    return {name.removeprefix("sent_"): count for name, count in found}


def rest(*, indexed: bool, new: int = 0) -> dict[str, int]:
    """What is left of `partition` and some new rows: without an index nothing goes row by row."""
    if indexed:
        return {"straddling": 25, "current": 50 + new}
    return {"straddling": 50, "current": 50 + new, "default": 25}


def cleaned(store: PostgresStore, database: Database, wanted: dict[str, int]) -> None:
    """Clean up until so much is left, and then some more, to see that it stays."""

    def done() -> bool:
        store.rebalance()
        return left(database) == wanted

    eventually(done, seconds=30, what=f"{wanted} left", detail=lambda: str(left(database)))
    for _ in range(5):
        store.rebalance()
    assert left(database) == wanted


def granted(database: Database, directory: Path, *, but: str | None = None) -> Database:
    """A login with exactly what `outboxrelay sql` prints, or with one privilege less."""
    role = new_login(database)
    script = setup.for_what_is_missing(relay_config(directory, database=database, retention=RETENTION), role=role.user)
    for statement in statements(script):
        if but is None or f"GRANT {but} " not in statement:
            database.execute(statement)
    return role


def findings(config: Any) -> list[Finding]:
    return [finding for finding in examine_database(config) if finding.subject == "sent table"]


def read(store: PostgresStore) -> list[Row]:
    return store.read(limit=1000, held_keys=[], held_ids=[]).rows


def insert(database: Database, rows: int) -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        " select 'order', 'k', '{}' from generate_series(1, %s)",
        (rows,),
    )


# -- rows one by one


@pytest.mark.parametrize("keep", [None, 60.0])
@pytest.mark.parametrize("new", [True, False])
def test_se_exactly_the_printed_grants_are_enough_to_keep_and_clean_up(
    database: Database, make_store: MakeStore, tmp_path: Path, keep: float | None, new: bool
) -> None:
    retention = {"policy": "Keep", "keep": {"table": "archive"}, "keep_for_seconds": keep}
    role = new_login(database)
    run_what_is_printed(database, tmp_path, role=role, retention=retention, new=new)
    insert(database, 3)
    store = make_store(role, retention=retention)
    store.settle([row.id for row in read(store)][:2])
    database.execute("update archive set outbox_sent_at = outbox_sent_at - interval '1 hour' where id = 1")

    def done() -> bool:
        store.rebalance()
        return database.execute("select id from archive order by id") == ([(1,), (2,)] if keep is None else [(2,)])

    eventually(done, seconds=20, what="what is to be left")
    assert store.cleanup_trouble() is None
    for forbidden in ("truncate archive", "update archive set id = 1", "update outbox set type = 'x'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute(forbidden)


@pytest.mark.parametrize("by_id", [False, True])
def test_rr_07_kept_rows_are_removed_in_short_steps_and_nothing_that_waits(
    database: Database, make_store: MakeStore, by_id: bool
) -> None:
    """cases.md RR-07: by the time of sending, however old a row is. Partitions by id promise nothing of that time."""
    database.execute(
        "create table outbox_sent (like outbox, outbox_sent_at timestamptz not null default now())"
        + (" partition by range (id)" if by_id else "")
    )
    if by_id:
        database.execute("create table sent_1 partition of outbox_sent for values from (1) to (10000)")
        database.execute("create table sent_2 partition of outbox_sent for values from (10000) to (maxvalue)")
    database.execute("create index on outbox_sent (id)")
    database.execute(
        "insert into outbox_sent (id, aggregatetype, aggregateid, created_at, outbox_sent_at)"
        " select i, 'order', 'k', now() - interval '100 days',"
        " now() - case when i <= 15000 then interval '8 days' else interval '6 days' end"
        " from generate_series(1, 20000) i"
    )
    with database.connect(autocommit=False) as writer:
        writer.execute(
            "insert into outbox (aggregatetype, aggregateid, payload, created_at)"
            " values ('order', 'late', '{}', now() - interval '100 days')"
        )
        store = make_store(database)

        def done() -> bool:
            store.rebalance()
            return database.execute("select count(*), min(id) from outbox_sent") == [(5000, 15_001)]

        eventually(done, seconds=30, what="the old rows gone")
        writer.commit()
    store.rebalance()
    assert [row.key for row in read(store)] == [b"late"]


def pages_read(store: PostgresStore, database: Database) -> int:
    """Pages of the second table, of its partitions and of their indexes that one call for a clean-up looks at."""
    connection = store._connection
    assert connection is not None

    def count() -> int:
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select 1")
        found = database.execute(
            "select sum(coalesce(heap_blks_read + heap_blks_hit, 0) + coalesce(idx_blks_read + idx_blks_hit, 0))"
            " from pg_statio_user_tables where relname <> 'outbox'"
        )
        return int(found[0][0])

    before = count()
    store.rebalance()
    return count() - before


@pytest.mark.parametrize("table", ["plain", "without an index", "by time", "by time, without an index"])
def test_a_clean_up_looks_at_few_pages_of_a_big_table(database: Database, make_store: MakeStore, table: str) -> None:
    """40,000 rows of a kilobyte are more than 5,000 pages."""
    database.execute(
        "create table outbox_sent (like outbox, outbox_sent_at timestamptz not null default now())"
        + (" partition by range (outbox_sent_at)" if "by time" in table else "")
    )
    if "by time" in table:
        database.execute("create table sent_all partition of outbox_sent for values from (minvalue) to (maxvalue)")
    database.execute(
        "insert into outbox_sent (id, aggregatetype, aggregateid, type, created_at, outbox_sent_at)"
        " select i, 'order', 'k', repeat('x', 1000), now(), now() - interval '1 day' from generate_series(1, 40000) i"
    )
    if "without" not in table:
        database.execute("create index on outbox_sent (id)")
    # Everybody knows then which rows are dead, and nobody has to write that down any more.
    database.execute("vacuum analyze outbox_sent")
    ticks = iter(range(1_000_000))
    store = make_store(database, clock=lambda: 100.0 * next(ticks))
    few = 0 if "without" in table else 600
    for _ in range(3):
        assert pages_read(store, database) <= few
    assert (store.cleanup_trouble() is not None) == (table == "without an index")


def test_without_an_index_nothing_is_removed_row_by_row_and_that_is_said(
    database: Database, tmp_path: Path, make_store: MakeStore
) -> None:
    """Each step would read the whole table. It begins as soon as there is one."""
    prepare_policy(database, "keep")
    send(database, days=[-8] * 10)
    store = make_store(database)
    assert store.cleanup_trouble() is not None
    assert "no index of outbox_sent begins with id" in str(store.cleanup_trouble())
    assert database.execute("select count(*) from outbox_sent") == [(10,)]
    config = relay_config(tmp_path, database=database, retention=RETENTION)
    run(database, setup.for_what_is_missing(config, role=database.user))
    cleaned(store, database, {})
    assert store.cleanup_trouble() is None


def test_a_walk_ends_at_the_highest_id_there_is_also_if_that_row_is_kept(
    database: Database, make_store: MakeStore
) -> None:
    """Only then another one begins at the low end."""
    prepare_policy(database, "keep")
    database.execute("alter table outbox_sent add primary key (id)")
    send(database, days=[-30.0])
    database.execute("update outbox_sent set id = 9223372036854775807")
    database.execute("create table audit (event bigint references outbox_sent (id))")
    database.execute("insert into audit values (9223372036854775807)")
    store = make_store(database)

    def told() -> bool:
        store.rebalance()
        return "a foreign key or a trigger keeps them" in str(store.cleanup_trouble())

    eventually(told, seconds=30, what="the row passed over")
    send(database, days=[-30.0])

    def gone() -> bool:
        store.rebalance()
        return database.execute("select id from outbox_sent") == [(9223372036854775807,)]

    eventually(gone, seconds=30, what="the other row gone")


@pytest.mark.parametrize("obstacle", ["foreign key", "trigger"])
def test_rows_that_cannot_be_removed_keep_no_others(database: Database, make_store: MakeStore, obstacle: str) -> None:
    """They are passed over, and told of, until what keeps them is gone."""
    prepare_policy(database, "keep")
    database.execute("alter table outbox_sent add primary key (id)")
    send(database, days=[-8] * 2000)
    if obstacle == "foreign key":
        database.execute("create table audit (event bigint references outbox_sent (id))")
        database.execute("insert into audit values (700), (701), (1900)")
    else:
        database.execute(
            "create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;"
            " create trigger no before delete on outbox_sent for each row when (old.id in (700, 701, 1900))"
            " execute function no()"
        )
    store = make_store(database)

    def left_over(wanted: list[int]) -> None:
        def done() -> bool:
            store.rebalance()
            return [row_id for (row_id,) in database.execute("select id from outbox_sent order by 1")] == wanted

        eventually(done, seconds=30, what=f"{wanted} left")

    left_over([700, 701, 1900])
    assert "a foreign key or a trigger keeps them" in str(store.cleanup_trouble())
    database.execute("drop table audit" if obstacle == "foreign key" else "drop trigger no on outbox_sent")
    left_over([])
    eventually(lambda: (store.rebalance(), store.cleanup_trouble() is None)[1], seconds=20, what="no complaint")


def test_many_rows_that_cannot_be_removed_keep_no_others(database: Database, make_store: MakeStore) -> None:
    """To pass over them takes longer than it is until a walk may begin anew: it comes to its end all the same."""
    prepare_policy(database, "keep")
    database.execute("alter table outbox_sent add primary key (id)")
    send(database, days=[-8] * 310)
    database.execute("create table audit (event bigint references outbox_sent (id))")
    database.execute("insert into audit select generate_series(1, 300)")
    store = make_store(database)

    def done() -> bool:
        store.rebalance()
        return database.execute("select count(*), max(id) from outbox_sent") == [(300, 300)]

    eventually(done, seconds=30, what="the others gone")


def test_a_row_that_takes_too_long_keeps_no_others(
    database: Database, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because of what a foreign key has to remove with it, say: the walk goes on behind it, and comes back to it."""
    monkeypatch.setitem(session._BRIEFLY, "statement_timeout", "200ms")
    prepare_policy(database, "keep")
    database.execute("alter table outbox_sent add primary key (id)")
    send(database, days=[-8] * 3)
    database.execute(
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return old; end $$;"
        " create trigger slow before delete on outbox_sent for each row when (old.id = 2) execute function slow()"
    )
    store = make_store(database)
    assert "longer" in str(store.cleanup_trouble())

    def left_over(wanted: list[tuple[int]]) -> None:
        def done() -> bool:
            store.rebalance()
            return database.execute("select id from outbox_sent") == wanted

        eventually(done, seconds=30, what=f"{wanted} left")

    left_over([(2,)])
    assert "is slow" in str(store.cleanup_trouble())
    database.execute("drop trigger slow on outbox_sent")
    left_over([])
    eventually(lambda: (store.rebalance(), store.cleanup_trouble() is None)[1], seconds=20, what="no complaint")


def test_row_security_that_hides_old_rows_is_told_of(database: Database, make_store: MakeStore, tmp_path: Path) -> None:
    """They would stay in silence. Rows are sent all the same if a policy lets them in."""
    prepare_policy(database, "keep")
    role = granted(database, tmp_path)
    database.execute("create index on outbox_sent (id)")
    database.execute("alter table outbox_sent enable row level security")
    database.execute("create policy taken on outbox_sent for insert with check (true)")
    insert(database, 3)
    store = make_store(role)
    store.settle([row.id for row in read(store)])
    assert database.execute("select count(*) from outbox_sent") == [(3,)]
    assert "row-level security applies to outbox_sent" in str(store.cleanup_trouble())
    (finding,) = findings(relay_config(tmp_path, database=role, retention=RETENTION))
    assert (finding.level, "row-level security" in finding.message) == ("warning", True)


# -- whole partitions


@pytest.mark.parametrize("indexed", [False, True])
def test_se_partitions_go_at_once_with_exactly_the_printed_grants(
    database: Database, make_store: MakeStore, tmp_path: Path, indexed: bool
) -> None:
    """What is not old as a whole goes row by row if there is an index, and else stays until it is."""
    partition(database, indexed=indexed)
    role = granted(database, tmp_path)
    assert [finding.level for finding in findings(relay_config(tmp_path, database=role, retention=RETENTION))] == ["ok"]
    before = database.execute("select pg_relation_filenode('sent_old'), pg_relation_filenode('sent_older')")[0]
    store = make_store(role)
    cleaned(store, database, rest(indexed=indexed))
    after = database.execute("select pg_relation_filenode('sent_old'), pg_relation_filenode('sent_older')")[0]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert database.execute("select pg_relation_filenode('sent_old'), pg_relation_filenode('sent_older')")[0] == after
    assert store.cleanup_trouble() is None
    for forbidden in ("truncate sent_default", "drop table sent_old", "delete from sent_old"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute(forbidden)


@pytest.mark.parametrize("indexed", [False, True])
def test_without_the_grant_rows_go_one_by_one_and_that_is_said(
    database: Database, make_store: MakeStore, tmp_path: Path, indexed: bool
) -> None:
    partition(database, indexed=indexed)
    role = granted(database, tmp_path, but="TRUNCATE")
    config = relay_config(tmp_path, database=role, retention=RETENTION)
    assert [finding.level for finding in findings(config)] == ["warning"]
    store = make_store(role)
    assert "the grant TRUNCATE is missing" in str(store.cleanup_trouble())
    everything = {"old": 50, "older": 50, "straddling": 50, "current": 50, "default": 25}
    cleaned(store, database, rest(indexed=True) if indexed else everything)
    run(database, setup.for_what_is_missing(config, role=role.user))
    assert statements(setup.for_what_is_missing(config, role=role.user)) == []
    if not indexed:
        cleaned(store, database, rest(indexed=False))
    eventually(lambda: (store.rebalance(), store.cleanup_trouble() is None)[1], seconds=20, what="no complaint")


@pytest.mark.parametrize("indexed", [False, True])
def test_a_reader_of_an_old_partition_is_not_waited_for_and_keeps_nobody_out(
    database: Database, make_store: MakeStore, indexed: bool
) -> None:
    """It is left for later, and not removed row by row meanwhile."""
    partition(database, indexed=indexed)
    insert(database, 3)
    with database.connect(autocommit=False) as reader:
        reader.execute("select count(*) from outbox_sent")
        store = make_store(database)
        store.rebalance()
        # To wait for the lock would take until the session's time is up, which is trouble.
        assert store.cleanup_trouble() is None
        batch = [row.id for row in read(store)]
        store.settle(batch)
        assert left(database)["older"] == left(database)["old"] == 50
        assert reader.execute("select count(*) from outbox_sent").fetchone() == (228,)
    cleaned(store, database, rest(indexed=indexed, new=3))


def test_a_reader_of_one_old_partition_keeps_no_other_from_being_emptied(
    database: Database, make_store: MakeStore
) -> None:
    partition(database, indexed=False)
    with database.connect(autocommit=False) as reader:
        reader.execute("select count(*) from sent_older")
        store = make_store(database)
        cleaned(store, database, {"older": 50} | rest(indexed=False))
    cleaned(store, database, rest(indexed=False))


def test_old_partitions_go_whatever_a_backslash_means(database: Database, make_store: MakeStore) -> None:
    """A role may have it from times before PostgreSQL 9.1."""
    partition(database, indexed=False)
    database.execute(f"alter role {database.user} set standard_conforming_strings = off")
    cleaned(make_store(database), database, rest(indexed=False))


def test_the_walk_goes_on_after_the_highest_id_there_is(database: Database, make_store: MakeStore) -> None:
    prepare_policy(database, "keep")
    database.execute("create index on outbox_sent (id)")
    send(database, days=[-30.0])
    database.execute("update outbox_sent set id = 9223372036854775807")
    store = make_store(database)

    def gone() -> bool:
        store.rebalance()
        return database.execute("select from outbox_sent") == []

    eventually(gone, seconds=30, what="the row gone")
    send(database, days=[-30.0])
    database.execute("update outbox_sent set id = 9223372036854775807")
    eventually(gone, seconds=30, what="the second row gone")
    assert store.cleanup_trouble() is None


def test_bounds_mean_the_same_however_the_server_spells_times(database: Database, make_store: MakeStore) -> None:
    """Irish summer time is spelled as Israel's is, which is an hour earlier."""
    bound = "'2020-07-01 12:00 UTC'"
    for statement in (
        "create table outbox_sent (like outbox, outbox_sent_at timestamptz not null)"
        " partition by range (outbox_sent_at)",
        f"create table sent_early partition of outbox_sent for values from (minvalue) to ({bound})",
        f"create table sent_late partition of outbox_sent for values from ({bound}) to (maxvalue)",
        "insert into outbox_sent (id, aggregatetype, created_at, outbox_sent_at)"
        f" select 1, 'order', now(), timestamptz {bound} - interval '1 second'",
    ):
        database.execute(statement)
    database.execute(f"alter role {database.user} set datestyle = 'SQL, DMY'")
    database.execute(f"alter role {database.user} set timezone = 'Europe/Dublin'")
    ((seconds,),) = database.execute(f"select extract(epoch from now() - timestamptz {bound})::float8")
    store = make_store(database, retention={"policy": "Keep", "keep_for_seconds": seconds + 1800})
    for _ in range(5):
        store.rebalance()
    assert left(database) == {"early": 1}


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(
    "obstacle",
    [
        "create unique index once on sent_older (created_at); create table audit (at timestamptz);"
        " alter table audit add foreign key (at) references sent_older (created_at)",
        "create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;"
        " create trigger no before truncate on sent_older execute function no()",
        "create function no() returns trigger language plpgsql as $$ begin insert into gone values (1); end $$;"
        " create trigger no before truncate on sent_older execute function no()",
    ],
    ids=["foreign key", "trigger", "broken trigger"],
)
def test_a_partition_that_cannot_be_truncated_is_told_of_and_goes_row_by_row(
    database: Database, make_store: MakeStore, *, indexed: bool, obstacle: str
) -> None:
    """The others go at once all the same."""
    partition(database, indexed=indexed)
    database.execute("update sent_older set created_at = created_at + id * interval '1 hour'")
    database.execute(obstacle)
    before = database.execute("select pg_relation_filenode('sent_old')")
    store = make_store(database)
    assert "an old partition of outbox_sent cannot be truncated" in str(store.cleanup_trouble())
    cleaned(store, database, rest(indexed=True) if indexed else {"older": 50} | rest(indexed=False))
    assert database.execute("select pg_relation_filenode('sent_old')") != before
    assert "an old partition of outbox_sent cannot be truncated" in str(store.cleanup_trouble())
    if "no on" in obstacle:
        database.execute("drop trigger no on sent_older")
        cleaned(store, database, rest(indexed=indexed))
        eventually(lambda: (store.rebalance(), store.cleanup_trouble() is None)[1], seconds=20, what="no complaint")


def test_a_partition_that_takes_too_long_keeps_no_other_from_being_emptied(
    database: Database, make_store: MakeStore
) -> None:
    partition(database, indexed=False)
    database.execute(
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return null; end $$;"
        " create trigger slow before truncate on sent_older execute function slow()"
    )
    store = make_store(database)
    assert "longer" in str(store.cleanup_trouble())

    def done() -> bool:
        store.rebalance()
        return "old" not in left(database)

    eventually(done, seconds=30, what="the other one emptied")
    assert left(database)["older"] == 50


@pytest.mark.parametrize("indexed", [False, True])
def test_a_partition_that_is_itself_partitioned_goes_at_once(
    database: Database, make_store: MakeStore, tmp_path: Path, indexed: bool
) -> None:
    partition(database, indexed=indexed)
    (bounds,) = database.execute("select pg_get_expr(relpartbound, oid) from pg_class where relname = 'sent_old'")[0]
    database.execute("alter table outbox_sent detach partition sent_old; alter table sent_old rename to piece")
    database.execute(f"create table sent_old partition of outbox_sent {bounds} partition by list (aggregatetype)")
    database.execute("alter table sent_old attach partition piece for values in ('order')")
    role = granted(database, tmp_path)
    before = database.execute("select pg_relation_filenode('piece')")
    store = make_store(role)
    cleaned(store, database, rest(indexed=indexed))
    assert database.execute("select pg_relation_filenode('piece')") != before
    assert store.cleanup_trouble() is None


class Meddled(Retirement):
    """Something happens between the look and the lock."""

    def __init__(self, config: Any, database: Database, *statements: str) -> None:
        super().__init__(config)
        self._database, self._statements = database, list(statements)

    def _due(self, connection: Connection) -> list[Partition]:
        found = super()._due(connection)
        while self._statements:
            self._database.execute(self._statements.pop(0))
        return found


@pytest.mark.parametrize(
    ("meanwhile", "rest"),
    [
        (("alter table outbox_sent detach partition sent_older",), 50),
        (("alter table outbox_sent detach partition sent_older", "drop table sent_older"), None),
        (("truncate sent_older",), 0),
        (("truncate sent_older", "insert into sent_old (id, aggregatetype, created_at, outbox_sent_at)"
          " select 1, 'order', now(), max(outbox_sent_at) from sent_old"), 0),
    ],
    ids=["detached", "dropped", "emptied by another relay", "and written to"],
)  # fmt: skip
def test_what_changes_before_a_partition_is_locked_is_seen(
    database: Database, tmp_path: Path, meanwhile: tuple[str, ...], rest: int | None
) -> None:
    """What was detached is somebody's archive."""
    partition(database, indexed=False)
    config = relay_config(tmp_path, database=database, retention=RETENTION)
    with connect(config) as connection:
        retirement = Meddled(config, database, *meanwhile)
        retirement.run(connection)
        if rest is not None:
            assert database.execute("select count(*) from sent_older") == [(rest,)]
        assert database.execute("select count(*) >= 50 from sent_old") == [(True,)]
        assert retirement.run(connection) == "emptied"
        assert database.execute("select count(*) from sent_old") == [(0,)]
        assert retirement.run(connection) == "nothing"
        assert {"old", "older"}.isdisjoint(left(database))


def test_a_partition_that_another_session_is_about_to_detach_is_left_alone(
    database: Database, make_store: MakeStore
) -> None:
    partition(database, indexed=False, default=False)
    with database.connect(autocommit=False) as owner:
        owner.execute("lock table sent_older in access exclusive mode")
        store = make_store(database)
        store.rebalance()
        assert store.cleanup_trouble() is None
        owner.execute("alter table outbox_sent detach partition sent_older")
        owner.commit()
    cleaned(store, database, {"straddling": 50, "current": 50})
    assert database.execute("select count(*) from sent_older") == [(50,)]


def test_rows_for_which_there_is_no_partition_wait_and_are_sent_once(
    database: Database, tmp_path: Path, make_store: MakeStore
) -> None:
    partition(database, indexed=False, default=False)
    database.execute("drop table sent_current")
    insert(database, 3)
    config = relay_config(tmp_path, database=database, retention=RETENTION)
    for each in (config, relay_config(tmp_path, database=database, retention={"policy": "Keep"})):
        assert ["no partition for rows that are sent now" in finding.message for finding in findings(each)] == [True]
    store = make_store(database)
    batch = [row.id for row in read(store)]
    for _ in range(2):
        with pytest.raises(SettleRefusedError, match="outbox_sent has no partition for rows that are sent now"):
            store.settle(batch)
        assert store.alive()
        assert database.execute("select count(*) from outbox") == [(3,)]
    database.execute("create table sent_default partition of outbox_sent default")
    assert [finding.level for finding in findings(config)] == ["ok"]
    store.settle(batch)
    assert database.execute("select id from sent_default order by id") == [(1,), (2,), (3,)]
    assert read(store) == []
