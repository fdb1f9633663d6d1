"""Behind a connection pooler, which hands a server session to somebody else between two transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.settings import MakeStore, relay_config
from tests.testbed.services.pgbouncer import PoolMode, pooling
from tests.testbed.services.postgres import Database

RELAYS = 4
POOL = 2
SETTINGS = ("default_transaction_read_only", "statement_timeout", "synchronous_commit", "plan_cache_mode")


@pytest.fixture(params=get_args(PoolMode))
def pooled(request: pytest.FixtureRequest, database: Database) -> Iterator[Database]:
    """The owner of the table, through a pooler with two server sessions."""
    with pooling(database, mode=request.param, size=POOL) as (behind,):
        yield behind


def plaintext(directory: Path, database: Database) -> RelayConfig:
    config = relay_config(directory, database=database)
    tls = config.database.tls.model_copy(update={"mode": "disable", "ca_file": None})
    return config.model_copy(update={"database": config.database.model_copy(update={"tls": tls})})


def settings(database: Database) -> list[tuple[str, ...]]:
    query = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    return database.execute(f"select {query}")


def test_dv_08_a_pooler_is_refused_and_its_sessions_stay_as_they_were(
    pooled: Database, database: Database, tmp_path: Path, make_store: MakeStore
) -> None:
    """cases.md DV-08, RR-11 (b): four relays through two server sessions; no setting and no lock is left in them."""
    before = settings(database)
    config = plaintext(tmp_path, pooled)
    for _ in range(RELAYS):
        store = PostgresStore(config)
        with pytest.raises(StoreError, match="connect to PostgreSQL directly") as caught:
            store.open()
        assert caught.value.reason == "DatabaseError"
        assert f"127.0.0.1:{pooled.port}" in caught.value.message
        assert not store.alive()
    assert [settings(pooled) for _ in range(POOL)] == [before] * POOL
    assert database.execute("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
    assert len(make_store(database).rebalance()) == 4
