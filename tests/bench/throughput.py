"""Throughput of one relay process beside the bare clients, interleaved on the same machine in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tests.bench import baselines
from tests.bench.baselines import BareProducer
from tests.bench.cpu import cpu_seconds
from tests.bench.debezium import TUNED
from tests.bench.services import PARTITIONS, Services
from tests.integration.harness import consumer
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import Topic
from tests.testbed.services.processes import peak_resident_bytes
from tests.testbed.services.table import PayloadType

DRAIN_SECONDS = 600
WARM_UP_ROUNDS = 3

RELAY = "relay (Delete)"
KEEP = "relay (Keep)"
DEBEZIUM = "Debezium Server"
DEBEZIUM_TUNED = "Debezium Server, tuned"
READ = "bare psycopg read"
READ_DELETE = "bare psycopg read + delete"
PRODUCE = "bare librdkafka produce"
IN_TURN = "bare read, produce, delete in turn"
RELAYS = {RELAY: "delete", KEEP: "keep"}
"""Their retention policies."""

VARIANTS = (RELAY, KEEP, READ, READ_DELETE, PRODUCE, IN_TURN)
PEERS = (DEBEZIUM, DEBEZIUM_TUNED)
"""Fetched with Maven (760 MB), and measured only when asked for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one variant."""

    variant: str
    rows: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int | None = None
    database_cpu_seconds: float = 0.0
    broker_cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Bench:
    """The runs on one set of services."""

    services: Services

    def run(self, variant: str) -> Sample:
        """Run one variant once, on a fresh table and a fresh topic."""
        with self._topic() as topic:
            if variant in RELAYS:
                sample = self._relay(variant, topic)
            elif variant in PEERS:
                sample = self._debezium(topic, tuned=variant == DEBEZIUM_TUNED)
            else:
                sample = self._bare(variant, topic)
            expected = (
                0 if variant in (READ, READ_DELETE) else self.services.outbox.rows * (2 if variant in PEERS else 1)
            )
            arrived = consumer.count(self.services.kafka, topic)
            if sample.rows != self.services.outbox.rows or arrived != expected:
                raise RuntimeError(
                    f"{variant}: {sample.rows} rows and {arrived} messages of {self.services.outbox.rows}"
                )
        return sample

    @contextmanager
    def _topic(self) -> Iterator[Topic]:
        topic = self.services.kafka.create_topic(partitions=PARTITIONS)
        try:
            yield topic
        finally:
            self.services.kafka.delete_topic(topic)

    def _bare(self, variant: str, topic: Topic) -> Sample:
        self.services.outbox.refill()
        producer = BareProducer(self.services.kafka.bootstrap_servers)
        work: Callable[[], int]
        if variant == READ:
            work = partial(baselines.read, self.services.outbox)
        elif variant == READ_DELETE:
            work = partial(baselines.read_and_delete, self.services.outbox)
        elif variant == PRODUCE:
            with self.services.outbox.database.connect() as connection:
                rows = [row for batch in baselines.batches(self.services.outbox, connection) for row in batch]
            work = partial(baselines.produce, producer, topic.name, rows)
        else:
            work = partial(baselines.read_produce_delete, self.services.outbox, producer, topic.name)
        database, broker = self._others()
        began, cpu = time.perf_counter(), time.process_time()
        count = work()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        return self._sample(variant, count, seconds, used, before=(database, broker))

    def _others(self) -> tuple[float, float]:
        """CPU seconds of the database and of the broker so far."""
        brokers = sum(cpu_seconds(broker.id.pid) for broker in self.services.kafka.brokers)
        return cpu_seconds(self.services.postgres.process.id.pid), brokers

    def _sample(
        self,
        variant: str,
        rows: int,
        seconds: float,
        used: float,
        *,
        before: tuple[float, float],
        peak_bytes: int | None = None,
    ) -> Sample:
        database, broker = self._others()
        return Sample(
            variant=variant,
            rows=rows,
            seconds=seconds,
            cpu_seconds=used,
            peak_bytes=peak_bytes,
            database_cpu_seconds=database - before[0],
            broker_cpu_seconds=broker - before[1],
        )

    def _debezium(self, topic: Topic, *, tuned: bool) -> Sample:
        """The same rows twice: the first time warms the Java machine up and does not count."""
        rows = self.services.outbox.rows
        self.services.outbox.empty()
        settings = TUNED if tuned else {}
        with self.services.debezium(topic, settings=settings) as server:
            for times in (1, 2):
                with self.services.outbox.database.connect(autocommit=False) as connection:
                    self.services.outbox.fill(connection)
                    cpu, before = cpu_seconds(server.pid), self._others()
                    began = time.perf_counter()
                    connection.commit()
                eventually(
                    partial(self._holds, topic, times * rows),
                    seconds=DRAIN_SECONDS,
                    what=f"{rows} rows from Debezium Server",
                    interval_seconds=0.2,
                )
            seconds = time.perf_counter() - began
            used = cpu_seconds(server.pid) - cpu
            peak = peak_resident_bytes(server.pid)
            variant = DEBEZIUM_TUNED if tuned else DEBEZIUM
            return self._sample(variant, rows, seconds, used, before=before, peak_bytes=peak)

    def _holds(self, topic: Topic, messages: int) -> bool:
        return consumer.count(self.services.kafka, topic) >= messages

    def _relay(self, variant: str, topic: Topic) -> Sample:
        """Rows become visible all at once to a relay that is already connected; timed until it has settled all."""
        self.services.outbox.empty()
        with self.services.relay(topic, policy=RELAYS[variant]) as relay:
            with self.services.outbox.database.connect(autocommit=False) as connection:
                self.services.outbox.fill(connection)
                cpu, before = relay.cpu_seconds(), self._others()
                began = time.perf_counter()
                connection.commit()
            eventually(
                lambda: relay.report().sent_rows >= self.services.outbox.rows,
                seconds=DRAIN_SECONDS,
                what=f"{self.services.outbox.rows} rows settled",
                interval_seconds=0.1,
                tolerate=(OSError,),
                detail=relay.log_tail,
            )
            seconds = time.perf_counter() - began
            return self._sample(
                variant,
                relay.report().sent_rows,
                seconds,
                relay.cpu_seconds() - cpu,
                before=before,
                peak_bytes=relay.peak_resident_bytes(),
            )


def measure(
    *,
    rows: int,
    runs: int,
    payload: PayloadType = "jsonb",
    variants: Sequence[str] = VARIANTS,
    say: Callable[[str], None] | None = None,
) -> list[Sample]:
    """Run every variant `runs` times, in turns.

    Before that the broker is warmed up: while Java still compiles, whoever comes first pays for it, up to 7 CPU seconds
    per million messages.
    """
    samples: list[Sample] = []
    with Services.started(payload=payload, rows=rows) as services:
        bench = Bench(services)
        for _ in range(WARM_UP_ROUNDS):
            for variant in (RELAY, PRODUCE):
                bench.run(variant)
        for number in range(1, runs + 1):
            for variant in variants:
                sample = bench.run(variant)
                if say is not None:
                    say(f"run {number}/{runs}  {variant:<36}{sample.rate:>10,.0f} rows/s")
                samples.append(sample)
    return samples


@dataclass(frozen=True, slots=True)
class Figures:
    """What the runs of one variant showed: medians, and the extremes of the rate."""

    variant: str
    rate: float
    lowest: float
    highest: float
    relay_is: float | None
    """The rate of the relay with policy Delete, divided by this one."""

    peak_mib: float | None
    cpu: tuple[float, float, float]
    """Seconds per million rows: itself, the database, the broker."""


def summary(samples: Sequence[Sample]) -> list[Figures]:
    """The figures of each variant."""
    relay = [sample.rate for sample in samples if sample.variant == RELAY]
    found = []
    for variant in dict.fromkeys(sample.variant for sample in samples):
        chosen = [sample for sample in samples if sample.variant == variant]
        rates = [sample.rate for sample in chosen]
        rate = statistics.median(rates)
        own, database, broker = (
            statistics.median(seconds(sample) / sample.rows * 1e6 for sample in chosen) for seconds in _CPU
        )
        peaks = [sample.peak_bytes / 2**20 for sample in chosen if sample.peak_bytes is not None]
        found.append(
            Figures(
                variant=variant,
                rate=rate,
                lowest=min(rates),
                highest=max(rates),
                relay_is=statistics.median(relay) / rate if relay else None,
                peak_mib=max(peaks, default=None),
                cpu=(own, database, broker),
            )
        )
    return found


def table(samples: Sequence[Sample]) -> str:
    """The figures as text: medians over the runs, extremes in brackets."""
    heading = f"{'':<36}{'rows/s':>10}  {'[min-max]':<20}{'relay is':>9}{'peak RSS':>10}"
    lines = [f"{heading}   CPU s per million rows: itself, database, broker"]
    for each in summary(samples):
        ratio = f"{each.relay_is:.2f} x" if each.relay_is is not None else ""
        peak = f"{each.peak_mib:.0f} MiB" if each.peak_mib is not None else ""
        extremes = f"[{each.lowest:,.0f}-{each.highest:,.0f}]"
        cpu = "".join(f"{seconds:>8.1f}" for seconds in each.cpu)
        lines.append(f"{each.variant:<36}{each.rate:>10,.0f}  {extremes:<20}{ratio:>9}{peak:>10}{cpu}")
    return "\n".join(lines)


_CPU: Sequence[Callable[[Sample], float]] = (
    lambda sample: sample.cpu_seconds,
    lambda sample: sample.database_cpu_seconds,
    lambda sample: sample.broker_cpu_seconds,
)
