"""faststream-outbox as a relay to Kafka: `faststream_relay.py DATABASE-URL TABLE BROKERS TOPIC`.

Run with the Python of an environment of its own, never imported. Its shape is that of the peer's pages on relays, its
settings those of the pages on subscribers and performance: eight workers, rows removed a hundred at a time.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from faststream import FastStream
from faststream.kafka import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

WORKERS = 8


async def relay(message: OutboxMessage) -> Any:
    """The row as it is; its key travels in a header, since the table has no column for it."""
    headers = dict(message.headers)
    return KafkaResponse(message.body, key=headers.pop("key").encode(), headers=headers)


async def main(url: str, name: str, brokers: str, topic: str) -> None:
    """Make the table, and relay until the process is ended."""
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name=name)
    engine = create_async_engine(url, pool_size=WORKERS + 1)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    # Without a logger: a line for each row would cost it more than the row.
    outbox = OutboxBroker(engine, outbox_table=table, logger=None)
    kafka = KafkaBroker(brokers, acks="all", enable_idempotence=True, logger=None)
    subscriber = outbox.subscriber(
        "outbox",
        max_workers=WORKERS,
        fetch_batch_size=100,
        min_fetch_interval=0.01,
        max_fetch_interval=0.1,
        terminal_flush_batch_size=100,
    )
    kafka.publisher(topic)(subscriber(relay))
    await FastStream(outbox, on_startup=[kafka.connect]).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
