"""What the machine can do without a relay: bare psycopg, bare librdkafka, and both one after the other.

These loops keep no promise (no lanes, no late commits, no parked rows): they are the ceiling, not a rival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from tests.bench.table import Outbox

BATCH = 5000

BareRow = tuple[int, bytes, bytes, str, bytes]
Headers = list[tuple[str, str | bytes | None]]


def batches(outbox: Outbox, connection: psycopg.Connection[Any]) -> Iterator[list[BareRow]]:
    """Read the table in batches: binary, prepared, plain tuples."""
    last = 0
    cursor = connection.cursor(binary=True)
    while rows := cursor.execute(outbox.select, [last, BATCH], prepare=True).fetchall():
        last = rows[-1][0]
        yield rows


def read(outbox: Outbox) -> int:
    """Bare psycopg read; returns the rows."""
    with outbox.database.connect() as connection:
        return sum(len(rows) for rows in batches(outbox, connection))


def read_and_delete(outbox: Outbox) -> int:
    """Bare psycopg read, each batch deleted in a transaction of its own; returns the rows."""
    count = 0
    with outbox.database.connect() as connection:
        for rows in batches(outbox, connection):
            delete(connection, rows)
            count += len(rows)
    return count


def delete(connection: psycopg.Connection[Any], rows: Sequence[BareRow]) -> None:
    """Delete exactly the rows of a batch."""
    connection.execute("delete from outbox where id = any(%s)", [[row[0] for row in rows]], prepare=True)


def _report(errors: list[KafkaError], error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        errors.append(error)


@dataclass
class BareProducer:
    """librdkafka as the relay uses it: idempotent, acks=all, flush as the barrier."""

    bootstrap_servers: str
    errors: list[KafkaError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 25,
                "batch.size": 1_000_000,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                "delivery.report.only.error": True,
                # Not a method: that would be a cycle, and the client's threads would outlive the broker.
                "on_delivery": partial(_report, self.errors),
                "log_level": 0,
            }
        )

    def produce(self, topic: str, rows: Sequence[BareRow]) -> None:
        """Send one batch with three headers per message, and wait until the broker has it."""
        produce = self._producer.produce
        for row_id, key, payload, kind, headers in rows:
            named: Headers = [("outbox-id", str(row_id)), ("outbox-type", kind), ("headers", headers)]
            produce(topic, payload, key, -1, None, None, 0, named)
        if self._producer.flush(60) or self.errors:
            raise RuntimeError(f"not everything was acknowledged: {self.errors[:1]}")


def produce(producer: BareProducer, topic: str, rows: Sequence[BareRow]) -> int:
    """Bare librdkafka, from rows already in memory; returns the messages."""
    for start in range(0, len(rows), BATCH):
        producer.produce(topic, rows[start : start + BATCH])
    return len(rows)


def read_produce_delete(outbox: Outbox, producer: BareProducer, topic: str) -> int:
    """Everything in turn, nothing overlapped; returns the rows."""
    count = 0
    with outbox.database.connect() as connection:
        for rows in batches(outbox, connection):
            producer.produce(topic, rows)
            delete(connection, rows)
            count += len(rows)
    return count
