"""Filling a table, reading from a store, what it cost the server, and why a store cannot be opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.ports import Batch, StoreError
from outboxrelay.stores.postgres import PostgresStore
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database


def fill(database: Database, rows: int, *, route: str = "order") -> None:
    """Insert so many rows of a hundred keys."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        f" select '{route}', (i % 100)::text, '{{}}' from generate_series(1, {rows}) i"
    )


def read(store: PostgresStore, *, limit: int = 1000) -> Batch:
    """The next rows, without anything held back."""
    return store.read(limit=limit, held_keys=[], held_ids=[])


def ids(batch: Batch) -> list[int]:
    """The ids of the rows of a batch."""
    return [row.id for row in batch.rows]


def refusal(config: RelayConfig) -> StoreError:
    """Why a store does not open."""
    store = PostgresStore(config)
    try:
        with pytest.raises(StoreError) as caught:
            store.open()
    finally:
        store.close()
    return caught.value


def what_ends(store: PostgresStore, change: str) -> str:
    """Why a session ends once it looks around and notices that change; it looks only now and then."""

    def complaint() -> str:
        try:
            store.rebalance()
        except StoreError as error:
            return error.message
        return ""

    return eventually(complaint, seconds=20, what=f"{change} noticed")


def tuples_read(store: PostgresStore, database: Database, do: Callable[[], object]) -> int:
    """Index entries that `do` makes the store's session look at."""

    def count() -> int:
        connection = store._connection
        assert connection is not None
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select 1")
        return int(database.execute("select sum(idx_tup_read) from pg_stat_user_indexes")[0][0])

    before = count()
    do()
    return count() - before
