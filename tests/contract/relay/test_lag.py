"""`outboxrelay lag` against PostgreSQL: counts, ages, and who is in the way, with and without the right to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.lag import Waiting, measure
from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.settings import relay_config
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database, LocalPostgres

WITH_TIME = {"columns": {"created_at": "created_at"}}


def fill(database: Database, rows: int, *, route: str = "order") -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        f" select '{route}', (i % 100)::text, '{{}}' from generate_series(1, {rows}) i"
    )


def test_an_empty_table(database: Database, tmp_path: Path) -> None:
    found = measure(relay_config(tmp_path, database=database, table=WITH_TIME))
    assert (found.waiting, found.exact, found.oldest_id, found.oldest_age_seconds) == (0, True, None, None)
    assert "waiting  0 rows\n" in found.text()


def test_rows_of_other_pairs_do_not_count(database: Database, tmp_path: Path) -> None:
    fill(database, 3, route="payment")
    fill(database, 2)
    database.execute("update outbox set created_at = now() - interval '90 s' where id = 4")
    found = measure(relay_config(tmp_path, database=database, table=WITH_TIME, match={"include": ("order",)}))
    assert (found.waiting, found.oldest_id, found.newest_id) == (2, 4, 5)
    assert found.oldest_age_seconds is not None
    assert found.oldest_age_seconds >= 90
    assert "oldest   id 4, 9" in found.text()


def test_dv_13_beyond_the_limit_the_planner_is_asked(database: Database, tmp_path: Path) -> None:
    fill(database, 2000)
    database.execute("analyze outbox")
    found = measure(relay_config(tmp_path, database=database), count_limit=100)
    assert not found.exact
    assert 1500 < found.waiting < 2500
    assert "about 2" in found.text()
    assert "age unknown" in found.text()


def test_a_created_at_without_a_type_that_tells_the_time(database: Database, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="createdAt must be timestamptz"):
        measure(relay_config(tmp_path, database=database, table={"columns": {"created_at": "type"}}))


def test_whoever_holds_vacuum_back_or_locks_the_table_is_named(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    with (
        database.connect(autocommit=False, application_name="report of the month") as reader,
        database.connect(autocommit=False) as locker,
    ):
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1")
        locker.execute("lock table outbox in share mode")
        found = eventually(
            lambda: next(
                (lag for lag in [measure(config)] if reader.info.backend_pid in pids(lag.holding_vacuum_back)), None
            ),
            seconds=20,
            what="a session that has been open for a second",
        )
        assert found is not None
        (holder,) = [each for each in found.holding_vacuum_back if each.pid == reader.info.backend_pid]
        assert (holder.what, holder.database, holder.state) == ("session", database.dbname, "idle in transaction")
        assert [(each.pid, each.name) for each in found.locking] == [(locker.info.backend_pid, "ShareLock")]
        assert f"process {reader.info.backend_pid} (report of the month) in database" in found.text()
        assert "locked   by lock ShareLock of process" in found.text()


def pids(holders: Any) -> list[int]:
    return [holder.pid for holder in holders]


def test_a_login_that_may_not_see_other_sessions_says_so(database: Database, tmp_path: Path) -> None:
    found = measure(relay_config(tmp_path, database=database.relay_role()))
    assert not found.sees_all_sessions
    assert "GRANT pg_read_all_stats" in found.text()
    assert measure(relay_config(tmp_path, database=database)).sees_all_sessions


def test_the_relay_names_the_session_that_holds_vacuum_back(
    database: Database, postgres: LocalPostgres, tmp_path: Path
) -> None:
    """A writing transaction in another database counts; one that only reads there does not."""
    config = watchful(tmp_path, database)
    other = postgres.create_database()
    with other.connect(autocommit=False) as reader, other.connect(autocommit=False) as writer:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1")
        store = PostgresStore(config)
        store.open()
        try:
            writer.execute("select pg_current_xact_id()")

            def seen() -> bool:
                store.rebalance()
                holder = store.held_back_by()
                return holder is not None and holder.pid == writer.info.backend_pid

            eventually(seen, seconds=20, what="the holder")
            holder = store.held_back_by()
            assert holder is not None
            assert holder.database == other.dbname
            assert holder.age_seconds is not None
            writer.rollback()

            def gone() -> bool:
                store.rebalance()
                return store.held_back_by() is None

            eventually(gone, seconds=20, what="the end of it")
        finally:
            store.close()
    postgres.drop_database(other)


def test_dv_10_a_name_of_another_encoding_hides_nobody_and_stops_nothing(
    database: Database, postgres: LocalPostgres, tmp_path: Path
) -> None:
    """cases.md DV-10: all databases of a server share the list of their names, and not the encoding."""
    config = watchful(tmp_path, database)
    latin = postgres.create_database(encoding="LATIN1")
    admin = replace(postgres.superuser, dbname=latin.dbname)
    with admin.connect(client_encoding="LATIN1") as connection:
        # Stored as this session has it, with a single byte for the last letter.
        connection.execute("create database \"caf\u00e9\" template template0 encoding 'LATIN1' locale 'C'")
        with session_of(admin, dbname=b"caf\xe9") as writer:
            writer.exec_(b"begin; select pg_current_xact_id()")
            store = PostgresStore(config)
            store.open()
            try:

                def seen() -> bool:
                    assert store.rebalance()
                    holder = store.held_back_by()
                    return holder is not None and holder.pid == writer.backend_pid

                eventually(seen, seconds=20, what="the holder")
            finally:
                store.close()
            eventually(
                lambda: writer.backend_pid in pids(measure(config).holding_vacuum_back),
                seconds=20,
                what="the holder in what `lag` tells",
            )
        connection.execute('drop database "caf\u00e9" with (force)')
    postgres.drop_database(latin)


@contextmanager
def session_of(login: Database, *, dbname: bytes) -> Iterator[pq.abc.PGconn]:
    """A session with a database whose name psycopg could not spell."""
    settings = make_conninfo(
        host=login.host,
        port=login.port,
        user=login.user,
        password=login.password,
        sslmode=login.sslmode,
        sslrootcert=str(login.ca_file),
    )
    session = pq.PGconn.connect(settings.encode() + b" dbname=" + dbname)
    try:
        assert session.status == pq.ConnStatus.OK, session.error_message
        yield session
    finally:
        session.finish()


def watchful(directory: Path, database: Database) -> RelayConfig:
    return relay_config(directory, database=database, tuning={"held_back_seconds": 0.2})


def test_waiting_ends_with_the_last_row_and_mends_its_session(database: Database, tmp_path: Path) -> None:
    fill(database, 1)
    fill(database, 1, route="payment")
    waiting = Waiting(relay_config(tmp_path, database=database, match={"include": ("order",)}))
    try:
        assert waiting.any()
        database.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name like 'outboxrelay/%'"
        )
        with pytest.raises(StoreError):
            waiting.any()
        database.execute("delete from outbox where id = 1")
        assert not waiting.any()
    finally:
        waiting.close()
