"""`python -m tests.bench.policies`: what each retention policy costs a relay, without a broker.

One store reads and settles a full table, for each policy in turns. Of the rates only the ratios say anything: where a
broker works on the same machine, all of them come down. What the server's processes take and write hardly depends on
what else the machine does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from outboxrelay.stores.postgres import PostgresStore
from tests.bench.cpu import cpu_seconds
from tests.contract.relay.settings import POLICIES, prepare_policy, relay_config
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table

BATCH_ROWS = 5000
PAYLOAD_BYTES = 300


class Drained(NamedTuple):
    """Seconds until one table was empty."""

    reading: float
    settling: float


class Sample(NamedTuple):
    """What one table took."""

    drained: Drained
    server_cpu_seconds: float
    wal_bytes: int


def fill(database: Database, *, policy: str, rows: int) -> None:
    """A table full of rows that wait, vacuumed and analysed as an old table would be."""
    create(database, policy=policy)
    insert(database, rows=rows)
    database.execute("vacuum analyze outbox")


def create(database: Database, *, policy: str) -> None:
    """An empty table, and what the policy needs."""
    create_outbox_table(database, payload="text")
    prepare_policy(database, policy)


def insert(database: Database, *, rows: int) -> None:
    """Rows that wait, in one transaction."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload)"
        " select 'order', mod(i, 10000)::text, 'T', repeat('x', %s) from generate_series(1, %s) i",
        (PAYLOAD_BYTES, rows),
    )


def drain(store: PostgresStore, *, rows: int) -> Drained:
    """Read and settle everything; fails if that is another number of rows."""
    reading = settling = 0.0
    settled = 0
    while True:
        began = time.monotonic()
        batch = store.read(limit=BATCH_ROWS, held_keys=[], held_ids=[])
        read = time.monotonic()
        reading += read - began
        if not batch.rows:
            break
        store.settle([row.id for row in batch.rows])
        settling += time.monotonic() - read
        settled += len(batch.rows)
    if settled != rows:
        raise RuntimeError(f"{settled} rows settled, but {rows} were there")
    return Drained(reading, settling)


def measure(*, rows: int, runs: int) -> dict[str, list[Sample]]:
    """Samples of each policy, taken in turns on one server with fsync."""
    samples: dict[str, list[Sample]] = {policy: [] for policy in POLICIES}
    with LocalPostgres() as server, tempfile.TemporaryDirectory() as directory:
        for _ in range(runs):
            for policy, taken in samples.items():
                database = server.create_database()
                fill(database, policy=policy, rows=rows)
                server.superuser.execute("checkpoint")
                store = PostgresStore(relay_config(Path(directory), database=database, retention=POLICIES[policy]))
                store.open()
                try:
                    store.rebalance()
                    cpu, position = cpu_seconds(server.process.id.pid), wal_position(database)
                    drained = drain(store, rows=rows)
                    used, written = cpu_seconds(server.process.id.pid) - cpu, wal_position(database) - position
                    taken.append(Sample(drained, server_cpu_seconds=used, wal_bytes=written))
                finally:
                    store.close()
                server.drop_database(database)
    return samples


def wal_position(database: Database) -> int:
    """Bytes of the write-ahead log so far."""
    return int(database.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


def table(samples: dict[str, list[Sample]], *, rows: int) -> str:
    """Medians, in rows a second, and microseconds and bytes a row."""
    lines = [
        f"{'policy':<12} {'rows/s':>9} {'read us/row':>12} {'settle us/row':>14}"
        f" {'server CPU us/row':>18} {'WAL B/row':>10}"
    ]
    for policy, taken in samples.items():
        seconds = statistics.median(sum(sample.drained) for sample in taken)
        read, settle, cpu = (
            statistics.median(values) / rows * 1e6
            for values in (
                [sample.drained.reading for sample in taken],
                [sample.drained.settling for sample in taken],
                [sample.server_cpu_seconds for sample in taken],
            )
        )
        wal = statistics.median(sample.wal_bytes for sample in taken) / rows
        lines.append(f"{policy:<12} {rows / seconds:>9,.0f} {read:>12.2f} {settle:>14.2f} {cpu:>18.2f} {wal:>10.0f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.policies", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of each table (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each policy, in turns (default %(default)s)")
    options = parser.parse_args(arguments)
    print(table(measure(rows=options.rows, runs=options.runs), rows=options.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
