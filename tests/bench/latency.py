"""From commit to consumer: how long a row takes, beside a writer that sends its message itself."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from psycopg.conninfo import make_conninfo

from tests.bench.debezium import TUNED
from tests.bench.services import PARTITIONS, Services
from tests.bench.throughput import DEBEZIUM_TUNED, RELAY
from tests.integration.harness.relay import REPOSITORY
from tests.testbed.services.kafka import Topic
from tests.testbed.services.postgres import Database

WRITERS: Final = 4
SETTLE_SECONDS: Final = 60
_NUMBER = re.compile(rb"(\d+)\D*$")


@dataclass(frozen=True, slots=True)
class Latency:
    """What one run showed; milliseconds from commit to consumer."""

    subject: str
    rows_per_second: float
    rows: int
    p50: float
    p99: float
    highest: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The runs on one set of services."""

    services: Services

    def run(self, *, rate: float, seconds: float, warm_up: float, debezium: bool = False) -> list[Latency]:
        """The floor and one subject, measured at the same rows; those of the first `warm_up` seconds do not count."""
        self.services.outbox.empty()
        relayed = self.services.kafka.create_topic(partitions=PARTITIONS)
        direct = self.services.kafka.create_topic(partitions=PARTITIONS)
        seen: dict[str, dict[int, float]] = {relayed.name: {}, direct.name: {}}
        if debezium:
            with self.services.debezium(relayed, settings=TUNED):
                written = self._write_and_read(seen, direct, rate=rate, seconds=seconds)
        else:
            with self.services.relay(relayed):
                written = self._write_and_read(seen, direct, rate=rate, seconds=seconds)
        first = min(written.values()) + warm_up
        counted = {row_id: at for row_id, at in written.items() if at >= first}
        subject = DEBEZIUM_TUNED if debezium else RELAY
        names = {direct.name: "floor: the writer itself", relayed.name: subject}
        return [_figures(names[topic], rate, counted, seen[topic]) for topic in (direct.name, relayed.name)]

    def _write_and_read(
        self, seen: dict[str, dict[int, float]], direct: Topic, *, rate: float, seconds: float
    ) -> dict[int, float]:
        consumer = Consumer(
            {"bootstrap.servers": self.services.kafka.bootstrap_servers, "group.id": "bench", "log_level": 0}
        )
        consumer.assign([TopicPartition(topic, number, 0) for topic in seen for number in range(PARTITIONS)])
        give_up_at = time.monotonic() + seconds + 2 * SETTLE_SECONDS
        with contextlib.closing(consumer), ThreadPoolExecutor(1) as pool:
            writing = pool.submit(self._written, direct, rate=rate, seconds=seconds)
            while time.monotonic() < give_up_at:
                message = consumer.poll(0.05)
                now = time.monotonic()
                if message is not None and message.error() is None:
                    number = row_id(list(message.headers() or ()))
                    if number is not None:
                        seen[message.topic() or ""].setdefault(number, now)
                elif writing.done() and all(len(rows) >= len(writing.result()) for rows in seen.values()):
                    break
            written = writing.result()
        missing = {topic: len(written) - len(rows) for topic, rows in seen.items() if len(rows) < len(written)}
        if missing:
            raise RuntimeError(f"{len(written)} rows were written, and of them did not arrive: {missing}")
        return written

    def _written(self, direct: Topic, *, rate: float, seconds: float) -> dict[int, float]:
        command = [sys.executable, "-m", "tests.bench.steady_writer", _dsn(self.services.outbox.database)]
        command += [self.services.kafka.bootstrap_servers, direct.name, str(rate / WRITERS), str(seconds)]
        writers = [
            subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
            for number in range(WRITERS)
        ]
        try:
            told = [writer.communicate(timeout=seconds + SETTLE_SECONDS)[0] for writer in writers]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{rate:,.0f} rows/s are more than can be written beside the rest") from None
        finally:
            for writer in writers:
                writer.kill()
        if any(writer.returncode for writer in writers):
            raise RuntimeError(f"writers ended with {[writer.returncode for writer in writers]}")
        lines = (line.split() for each in told for line in each.splitlines())
        return {int(row_id): float(at) for row_id, at in lines}


def row_id(headers: Sequence[Any]) -> int | None:
    """The number at the end of the header that identifies the event; Debezium calls it id."""
    for name, value in headers:
        if name in ("outbox-id", "id") and value is not None:
            found = _NUMBER.search(value if isinstance(value, bytes) else value.encode())
            return int(found[1]) if found else None
    return None


def _dsn(database: Database) -> str:
    return make_conninfo(
        host=database.host,
        port=database.port,
        dbname=database.dbname,
        user=database.user,
        password=database.password,
        sslmode="require",
    )


def _figures(subject: str, rate: float, written: dict[int, float], seen: dict[int, float]) -> Latency:
    taken = sorted((seen[row_id] - at) * 1000 for row_id, at in written.items())
    return Latency(
        subject=subject,
        rows_per_second=rate,
        rows=len(taken),
        p50=taken[len(taken) // 2],
        p99=taken[len(taken) * 99 // 100],
        highest=taken[-1],
    )


def measure(
    *,
    rates: Sequence[float] = (200, 3000),
    seconds: float = 30,
    warm_up: float = 5,
    debezium: bool = False,
    say: Callable[[str], None] | None = None,
) -> list[Latency]:
    """Every rate with the relay, and with Debezium Server if wanted (it needs a minute of warm-up)."""
    found: list[Latency] = []
    with Services.started(payload="jsonb", rows=1) as services:
        bench = Bench(services)
        for peer in (False, True) if debezium else (False,):
            for rate in rates:
                extra = 60 if peer else 0
                try:
                    figures = bench.run(rate=rate, seconds=seconds + extra, warm_up=warm_up + extra, debezium=peer)
                except RuntimeError as failure:
                    # A machine may be too small for a peer, which must not cost what is measured of all others.
                    if not peer:
                        raise
                    if say is not None:
                        say(f"Debezium Server at {rate:,.0f} rows/s: {failure}")
                    continue
                found += figures
                if say is not None:
                    say(table(figures))
    return found


def over_the_floor(figures: Sequence[Latency]) -> list[tuple[Latency, float, float]]:
    """Of each subject how far p50 and p99 are above those of the floor that was measured with it."""
    pairs = zip(figures[::2], figures[1::2], strict=True)
    return [(subject, subject.p50 - floor.p50, subject.p99 - floor.p99) for floor, subject in pairs]


def table(figures: Sequence[Latency]) -> str:
    """The figures as text."""
    lines = [f"{'':<28}{'rows/s':>8}{'rows':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}"]
    lines += [
        f"{each.subject:<28}{each.rows_per_second:>8,.0f}{each.rows:>9,}{each.p50:>9.1f}{each.p99:>9.1f}"
        f"{each.highest:>9.1f}"
        for each in figures
    ]
    return "\n".join(lines)
