"""`python -m tests.bench.lanes`: what finding the rows of its lanes costs one of several relays, without a broker.

A store that owns some of 16 lanes reads a batch from a full table, as it does while every relay of the pair works on a
backlog: the lane is computed for each row, or read from a column, or from one with an index that begins with it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from outboxrelay.config import RelayConfig
from outboxrelay.stores import ddl
from outboxrelay.stores.postgres import PostgresStore
from tests.bench.policies import BATCH_ROWS, fill
from tests.contract.relay.settings import relay_config
from tests.testbed.services.postgres import Database, LocalPostgres

LANES = 16
WARM_UP = 3
WAYS = ("computed", "column", "column and index")


def read_again(config: RelayConfig, *, owned: int, runs: int) -> tuple[int, float]:
    """Rows of one batch of so many lanes, and the median seconds that it took to read."""
    store = PostgresStore(config)
    store.open()
    try:
        store.rebalance()
        store.leave_out(range(owned, LANES))
        taken: list[float] = []
        for _ in range(runs + WARM_UP):
            began = time.monotonic()
            batch = store.read(limit=BATCH_ROWS, held_keys=[], held_ids=[])
            taken.append(time.monotonic() - began)
            store.rewind(batch.rows[0].id)
        return len(batch.rows), statistics.median(taken[WARM_UP:])
    finally:
        store.close()


def prepared(database: Database, directory: Path, *, way: str, rows: int) -> RelayConfig:
    """A full table in which lanes are found in this way."""
    columns = {} if way == "computed" else {"lane": "lane"}
    config = relay_config(directory, database=database, table={"columns": columns}, lanes=LANES)
    fill(database, policy="delete", rows=rows)
    if columns:
        database.execute(ddl.add_column(config, name="lane"))
    if way == "column and index":
        database.execute("create index on outbox (lane, id)")
    database.execute("vacuum analyze outbox")
    return config


def main(arguments: Sequence[str]) -> int:
    """Print one line for each way and number of lanes."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lanes", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table (default %(default)s)")
    parser.add_argument("--runs", type=int, default=15, help="reads of each batch (default %(default)s)")
    options = parser.parse_args(arguments)
    with LocalPostgres(fsync=False) as server, tempfile.TemporaryDirectory() as directory:
        print(f"{'lane':<18} {'owned':>5} {'ms for a batch':>14} {'rows/s':>9}")
        for way in WAYS:
            database = server.create_database()
            config = prepared(database, Path(directory), way=way, rows=options.rows)
            for owned in (1, 4, 8):
                read, seconds = read_again(config, owned=owned, runs=options.runs)
                print(f"{way:<18} {owned:>5} {seconds * 1000:>14.1f} {read / seconds:>9,.0f}")
            server.drop_database(database)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
