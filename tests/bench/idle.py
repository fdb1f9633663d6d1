"""`python -m tests.bench.idle`: what an idle relay costs, and how soon it sends a row, polling and notified.

For the bounds of the loop: how often to ask at the most is what an idle relay costs the database. Each round starts a
relay with other bounds, lets it idle, and then writes single rows, seconds apart as on a quiet table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from outboxrelay.config import RelayConfig
from outboxrelay.stores import ddl
from tests.integration.harness.relay import RelayProcess, relay_config
from tests.testbed.services.eventually import pass_time
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table

BOUNDS: dict[str, tuple[str, dict[str, int]]] = {
    "Poll, at most every 50 ms": ("Poll", {}),
    "Poll, at most every 1000 ms": ("Poll", {"idle_poll_max_ms": 1000}),
    "Notify, net every 50 ms": ("Notify", {"announced_poll_ms": 50}),
    "Notify, net every 1000 ms": ("Notify", {"announced_poll_ms": 1000}),
    "Notify, net every 10000 ms": ("Notify", {"announced_poll_ms": 10_000}),
}


class Idle(NamedTuple):
    """What one relay showed."""

    transactions: float
    """Of the database, a second."""

    cpu: float
    """Share of one core, of the relay alone."""

    p50: float
    """Milliseconds from commit to consumer."""

    highest: float


def measure(config: RelayConfig, database: Database, directory: Path, *, seconds: float, rows: int) -> Idle:
    """Let one relay idle, then write rows."""
    consumer = Consumer({"bootstrap.servers": config.kafka.bootstrap_servers[0], "group.id": "idle", "log_level": 0})
    consumer.assign([TopicPartition(config.kafka.topic, 0, 0)])
    relay = RelayProcess(config, directory=directory)
    relay.start()
    try:
        relay.await_report(lambda report: len(report.lanes_owned) == report.lanes, what="all lanes owned")
        if config.table.wake == "Notify":
            relay.await_report(lambda report: report.wake is not None and report.wake.ok, what="wake")
        pass_time(3)
        before, cpu, began = transactions(database), relay.cpu_seconds(), time.monotonic()
        pass_time(seconds)
        took = time.monotonic() - began
        asked, used = transactions(database) - before, relay.cpu_seconds() - cpu
        taken = [latency(database, consumer) for _ in range(rows)]
    finally:
        relay.kill()
        consumer.close()
    return Idle(asked / took, used / took, statistics.median(taken) * 1000, max(taken) * 1000)


def transactions(database: Database) -> int:
    """Committed so far; the server tells with a delay of up to a second."""
    return int(database.execute("select xact_commit from pg_stat_database where datname = current_database()")[0][0])


def latency(database: Database, consumer: Consumer) -> float:
    """Seconds from the commit of one row to its consumer, some time after the last."""
    pass_time(0.7)
    with database.connect() as connection:
        connection.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'k', '{}')")
        began = time.monotonic()
        while consumer.poll(0.01) is None:
            if time.monotonic() - began > 60:
                raise RuntimeError("a row did not arrive within 60 s")
        return time.monotonic() - began


def main(arguments: Sequence[str]) -> int:
    """Print one line for each set of bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rows", type=int, default=20)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="outboxrelay-idle-") as directory,
        LocalPostgres(fsync=False) as postgres,
        LocalKafka() as kafka,
    ):
        print(f"{'':<30} {'transactions/s':>14} {'CPU %':>6} {'p50 ms':>7} {'max ms':>7}")
        for name, (wake, tuning) in BOUNDS.items():
            database, topic = postgres.create_database(), kafka.create_topic(partitions=1)
            create_outbox_table(database)
            found = measure(
                made(database, kafka, Path(directory), topic=topic.name, wake=wake, tuning=tuning),
                database,
                Path(directory),
                seconds=options.seconds,
                rows=options.rows,
            )
            print(
                f"{name:<30} {found.transactions:>14.1f} {found.cpu * 100:>6.1f} {found.p50:>7.1f}"
                f" {found.highest:>7.1f}"
            )
    return 0


def made(
    database: Database, kafka: LocalKafka, directory: Path, *, topic: str, wake: str, tuning: dict[str, Any]
) -> RelayConfig:
    """The configuration of one round, and its trigger."""
    config = relay_config(
        database=database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        directory=directory,
        table={"wake": wake},
        tuning=tuning,
    )
    if wake == "Notify":
        for statement in ddl.wake_trigger(config):
            database.execute(statement)
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
