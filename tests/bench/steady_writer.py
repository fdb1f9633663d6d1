"""One writer at a steady pace: `python -m tests.bench.steady_writer DSN BROKERS TOPIC ROWS_PER_SECOND SECONDS NUMBER`.

Each row is a transaction of its own. Right after its commit the writer sends a message itself, with nothing in between:
what a relay takes longer than that is the relay's doing. Prints one line per row: its id, and the time of its commit
by the clock that all processes of the machine share.
"""

from __future__ import annotations

import sys
import time

import psycopg
from confluent_kafka import Producer

from tests.bench.table import KEYS, PAYLOAD_BYTES

_INSERT = (
    "insert into outbox (aggregatetype, aggregateid, type, payload, headers) values ('order', %s, 'OrderPlaced', %s,"
    " jsonb_build_object('tenant', 'a', 'traceparent', %s::text)) returning id"
)


def main(arguments: list[str]) -> int:
    """Write for the given time; returns the exit status."""
    dsn, brokers, topic, rate, seconds, number = arguments
    settings = {"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    producer = Producer(settings)
    payload = '{"text": "' + "x" * (PAYLOAD_BYTES - 12) + '"}'
    written: list[tuple[int, float]] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.monotonic()
        for count in range(round(float(rate) * float(seconds))):
            due = began + count / float(rate)
            while (left := due - time.monotonic()) > 0:
                producer.poll(0)
                time.sleep(min(left, 0.001))
            key = f"customer-{(count * 7919 + int(number)) % KEYS}"
            found = connection.execute(_INSERT, [key, payload, f"00-{number}-{count}"], prepare=True).fetchone()
            committed = time.monotonic()
            row_id = found[0] if found else 0
            producer.produce(topic, payload, key, -1, None, None, 0, [("outbox-id", str(row_id))])
            written.append((row_id, committed))
    producer.flush(30)
    sys.stdout.write("".join(f"{row_id} {committed:.6f}\n" for row_id, committed in written))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
