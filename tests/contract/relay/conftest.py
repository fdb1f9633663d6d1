"""The local services for the suites that run on the real implementations, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.settings import MakeStore, relay_config
from tests.testbed.services.eventually import eventually
from tests.testbed.services.fixtures import database, kafka, postgres, topic
from tests.testbed.services.postgres import Database

__all__ = ["database", "kafka", "make_store", "postgres", "topic"]


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[MakeStore]:
    """Makes stores that are open and own all lanes."""
    stores: list[PostgresStore] = []

    def make(database: Database, *, clock: Callable[[], float] | None = None, **changes: Any) -> PostgresStore:
        config = relay_config(tmp_path, database=database, **changes)
        alone = not any(store.alive() for store in stores)
        store = PostgresStore(config) if clock is None else PostgresStore(config, clock=clock)
        stores.append(store)
        store.open()
        # One that was closed holds its lanes until the server has seen it.
        eventually(
            lambda: len(store.rebalance()) == config.lanes or not alone, seconds=20, what="lanes of a store made alone"
        )
        return store

    yield make
    for store in stores:
        store.close()
