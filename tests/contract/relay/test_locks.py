"""The lanes' locks, and a server whose lock table is too small for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.locks import capacity, used
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from outboxrelay.stores.session import connect
from tests.contract.relay.settings import relay_config
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table

CAPACITY = 100


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """A server with room for so many locks."""
    settings = {"max_locks_per_transaction": "10", "max_connections": str(CAPACITY // 10)}
    with LocalPostgres(fsync=False, settings=settings) as made:
        yield made


@pytest.fixture
def small(server: LocalPostgres) -> Iterator[Database]:
    """A database of it with an outbox table."""
    made = server.create_database()
    create_outbox_table(made)
    yield made
    server.drop_database(made)


@pytest.fixture
def small_and_hidden(server: LocalPostgres, small: Database) -> Database:
    """The same, where applications may not see each other's sessions."""
    with server.superuser.connect(dbname=small.dbname) as admin:
        admin.execute("revoke select on pg_stat_activity from public")
    return small


def level(config: RelayConfig) -> tuple[str, str]:
    (found,) = [each for each in examine_database(config) if each.subject == "locks"]
    return found.level, found.message


def test_more_lanes_than_there_can_be_locks_are_refused(small: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=small, lanes=CAPACITY)
    store = PostgresStore(config)
    with pytest.raises(StoreError, match=f"room for {CAPACITY} in all") as caught:
        store.open()
    store.close()
    assert caught.value.reason == "DatabaseError"
    assert "max_locks_per_transaction" in caught.value.message
    assert level(config)[0] == "error"


def test_lanes_that_leave_others_little_room_are_told_by_check(small: Database, tmp_path: Path) -> None:
    assert level(relay_config(tmp_path, database=small, lanes=CAPACITY * 3 // 4))[0] == "warning"
    assert level(relay_config(tmp_path, database=small, lanes=4))[0] == "ok"


def test_locks_of_the_pairs_own_relays_do_not_count_twice(small: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=small, lanes=40)
    with connect(config) as connection:
        assert capacity(connection) == CAPACITY
        before = used(connection, config) or 0
    store = PostgresStore(config)
    store.open()
    assert len(store.rebalance()) == 40
    with connect(config) as connection:
        assert (used(connection, config) or 0) < before + 40
    assert level(config)[0] == "ok"
    store.close()


def test_a_full_lock_table_says_what_to_raise(small: Database, tmp_path: Path) -> None:
    store = PostgresStore(relay_config(tmp_path, database=small, lanes=4))
    store.open()
    with small.connect() as hog:
        with pytest.raises(psycopg.errors.OutOfMemory):
            hog.execute("select pg_advisory_lock(n) from generate_series(1, 100000) n")
        with pytest.raises(StoreError, match="max_locks_per_transaction"):
            store.rebalance()
        # Of a session that is closed they go only when the server has seen its end, and nobody can connect until then.
        hog.execute("select pg_advisory_unlock_all()")
    store.close()


def test_a_server_that_hides_other_sessions_is_judged_by_its_size(small_and_hidden: Database, tmp_path: Path) -> None:
    hidden = small_and_hidden
    assert level(relay_config(tmp_path, database=hidden, lanes=4)) == (
        "ok",
        f"5 are needed, and the server has room for {CAPACITY}",
    )
    assert level(relay_config(tmp_path, database=hidden, lanes=CAPACITY))[0] == "error"
