"""The delivery service's pod: reads both topics from their beginning and answers on HTTP how it went.

Nothing is stored: after a restart everything is read and checked again, so it commits no offsets.

GET /report        the counts so far
GET /report/full   after a comparison with the databases; exact only while the shop does not write
GET /latencies     the histogram of the time from commit to receipt: bucket -> messages
GET /livez         whether the consumer loop turns
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from .databases import NAMES, ShopDatabase
from .inspection import Inspection
from .ledger import Ledger

TOPICS = ("shop.orders", "shop.billing")
AUDIT_INTERVAL_SECONDS = 2.0
STALLED_AFTER_SECONDS = 30.0
SILENT_AFTER_SECONDS = 5.0
PORT = 8080

_log = logging.getLogger("shop.delivery")


def main() -> None:
    """Entry point; ends on SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    inspection = Inspection({name: Ledger(ShopDatabase.from_environment(name)) for name in NAMES})
    reader = Reader(os.environ["KAFKA"], inspection)
    server = serve(inspection, reader, port=PORT)
    threading.Thread(target=audit_until, args=(stop, inspection), name="audit", daemon=True).start()
    try:
        reader.run(stop)
    finally:
        server.shutdown()


class Reader:
    """Reads every partition of the topics from its beginning."""

    def __init__(self, bootstrap_servers: str, inspection: Inspection) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._inspection = inspection
        self._turned_at = time.monotonic()
        self._heard_at = time.monotonic()
        self._ends: set[tuple[str, int]] = set()
        self._next: dict[tuple[str, int], int] = {}

    @property
    def turning(self) -> bool:
        """Whether the loop made a turn lately."""
        return time.monotonic() - self._turned_at < STALLED_AFTER_SECONDS

    def run(self, stop: threading.Event) -> None:
        """Read until told to stop.

        Raises:
            KafkaException: on an error that does not heal by itself; the pod is started again then.
        """
        while not stop.is_set():
            consumer = self._connect()
            try:
                if self._assign(consumer, stop):
                    self._read(consumer, stop)
            finally:
                consumer.close()

    def _connect(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "delivery",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "socket.connection.setup.timeout.ms": 2000,
                "reconnect.backoff.ms": 500,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 2,
            },
            logger=_log,
        )

    def _assign(self, consumer: Consumer, stop: threading.Event) -> bool:
        """Assigned by hand: a lone reader that stores nothing needs no group. False: there is nothing to read yet."""
        self._turned_at = self._heard_at = time.monotonic()
        try:
            known = consumer.list_topics(timeout=10).topics
        except KafkaException as error:
            _log.warning("broker: %s; trying again", error)
            return False
        missing = [topic for topic in TOPICS if topic not in known or not known[topic].partitions]
        if missing:
            _log.warning("topics %s are not there yet", ", ".join(missing))
            stop.wait(1.0)
            return False
        for topic in TOPICS:
            for number in known[topic].partitions:
                self._next.setdefault((topic, number), OFFSET_BEGINNING)
        self._ends.clear()
        consumer.assign([TopicPartition(*partition, offset) for partition, offset in self._next.items()])
        _log.info("reading %s", ", ".join(TOPICS))
        return True

    def _read(self, consumer: Consumer, stop: threading.Event) -> None:
        """Until told to stop, or until the client seems to have lost its brokers for good."""
        while not stop.is_set() and self._in_touch(consumer):
            self._turned_at = time.monotonic()
            # One by one, and not by consume() with a time-out: that waits for a full batch.
            message = consumer.poll(0.1)
            while message is not None:
                self._take(message)
                message = consumer.poll(0)
            self._inspection.mark_caught_up(len(self._ends) == len(self._next))

    def _in_touch(self, consumer: Consumer) -> bool:
        """False when nothing was heard for long and the broker answers no question either.

        librdkafka 2.12 to 2.16 can forget all brokers when one that just starts answers with an empty list, and
        never ask again (https://github.com/confluentinc/librdkafka/issues/5301).
        """
        if time.monotonic() - self._heard_at < SILENT_AFTER_SECONDS:
            return True
        self._heard_at = time.monotonic()
        topic, number = next(iter(self._next))
        try:
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=5)
        except KafkaException as error:
            _log.warning("broker: %s; connecting anew", error)
            return False
        return True

    def _take(self, message: Message) -> None:
        error = message.error()
        topic, partition = message.topic(), message.partition()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF and topic is not None and partition is not None:
                self._heard_at = time.monotonic()
                self._ends.add((topic, partition))
            elif not error.retriable() and error.fatal():
                raise KafkaException(error)
            else:
                _log.warning("broker: %s", error.str())
            return
        self._heard_at = time.monotonic()
        receive(self._inspection, message)
        offset = message.offset()
        if topic is not None and partition is not None and offset is not None:
            self._ends.discard((topic, partition))
            self._next[topic, partition] = offset + 1


def receive(inspection: Inspection, message: Message) -> None:
    """Hand one message over; a message that is not the shop's ends the pod, since then nothing is proved."""
    key, value, topic = message.key(), message.value(), message.topic()
    if key is None or value is None or topic is None:
        raise ValueError(f"message without key or payload at {topic}[{message.partition()}]@{message.offset()}")
    inspection.receive(
        topic=topic,
        key=key,
        value=value,
        headers={name: text for name, text in dict(message.headers() or ()).items() if isinstance(text, bytes)},
        at=time.time(),
    )


def audit_until(stop: threading.Event, inspection: Inspection) -> None:
    """Compare every few seconds, so that memory holds only what came since; an unreachable database waits."""
    while not stop.wait(AUDIT_INTERVAL_SECONDS):
        try:
            inspection.audit()
        except psycopg.OperationalError as error:
            _log.warning("audit: %s; trying again", str(error).strip())


def serve(inspection: Inspection, reader: Reader, *, port: int) -> ThreadingHTTPServer:
    """Answer HTTP in threads of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, body = _answer(self.path, inspection, reader)
            except psycopg.OperationalError as error:
                status, body = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error).strip()}
            content = json.dumps(body, indent=2).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any, **__: Any) -> None:
            """Requests are not worth a line."""

    server = ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _answer(path: str, inspection: Inspection, reader: Reader) -> tuple[HTTPStatus, dict[str, Any]]:
    match path:
        case "/report":
            return HTTPStatus.OK, inspection.report()
        case "/report/full":
            return HTTPStatus.OK, inspection.full_report()
        case "/latencies":
            return HTTPStatus.OK, inspection.latencies()
        case "/livez":
            return (HTTPStatus.OK if reader.turning else HTTPStatus.SERVICE_UNAVAILABLE), {"turning": reader.turning}
        case _:
            return HTTPStatus.NOT_FOUND, {"error": f"no such path: {path}"}


if __name__ == "__main__":
    main()
