"""Throughput of one relay process beside the bare clients, interleaved on the same machine in the same run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import psycopg

from tests.bench import baselines, profiled_relay
from tests.bench.baselines import BareProducer
from tests.bench.cpu import cpu_seconds
from tests.bench.debezium import TUNED
from tests.bench.polling import POLLING, PollingPeer
from tests.bench.services import PARTITIONS, Services
from tests.integration.harness import consumer
from tests.integration.harness.relay import RelayProcess
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import Topic
from tests.testbed.services.processes import ServiceProcess, peak_resident_bytes
from tests.testbed.services.table import PayloadType

DRAIN_SECONDS = 600
WARM_UP_ROUNDS = 3
DEBEZIUM_ROWS = 1_000_000
POLLING_ROWS = 5_000
"""Of the peers that poll: they would be at 300,000 rows for ten minutes and more."""
POLLING_WARM_UP_ROWS = 200
POLLING_START_SECONDS = 120
FAT_ROWS, FAT_BYTES = 300, 900_000

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

FAT = f"relay (Delete), rows of {FAT_BYTES // 1000} kB"
"""For its memory alone."""

VARIANTS = (RELAY, KEEP, READ, READ_DELETE, PRODUCE, IN_TURN)
DEBEZIUMS = (DEBEZIUM, DEBEZIUM_TUNED)
PEERS = (*DEBEZIUMS, *POLLING)
"""Fetched with Maven (760 MB), pip and npm, and measured only when asked for."""


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


class Subject(NamedTuple):
    """A process that relays."""

    variant: str
    pid: int
    log_tail: Callable[[], str]


Fill = Callable[[psycopg.Connection[tuple[object, ...]]], None]
"""Inserts rows in the transaction of a connection."""

Profile = dict[str, float]
"""Microseconds of CPU time a row, by step."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The runs on one set of services."""

    services: Services
    debezium_rows: int = DEBEZIUM_ROWS

    def run(self, variant: str) -> Sample:
        """Run one variant once, on a fresh table and a fresh topic."""
        with self._topic() as topic:
            if variant in RELAYS or variant == FAT:
                sample, warm_up = self._relay(variant, topic), 0
            elif variant in DEBEZIUMS:
                sample, warm_up = self._debezium(topic, tuned=variant == DEBEZIUM_TUNED), self.services.outbox.rows
            elif variant in POLLING:
                sample, warm_up = self._polling(POLLING[variant], topic), POLLING_WARM_UP_ROWS
            else:
                sample, warm_up = self._bare(variant, topic), 0
            expected = 0 if variant in (READ, READ_DELETE) else sample.rows + warm_up
            arrived = consumer.count(self.services.kafka, topic)
            if arrived != expected:
                raise RuntimeError(f"{variant}: {arrived} messages of {expected}")
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
        if count != self.services.outbox.rows:
            raise RuntimeError(f"{variant}: {count} rows of {self.services.outbox.rows}")
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
        """Drained twice: the first time, with the table's rows, warms the Java machine up and does not count."""
        outbox, variant = self.services.outbox, DEBEZIUM_TUNED if tuned else DEBEZIUM
        outbox.empty()
        with self.services.debezium(topic, settings=TUNED if tuned else {}) as server:
            subject = Subject(variant, server.pid, server.log_tail)
            first, then = outbox.rows, self.debezium_rows
            self._drain(subject, outbox.fill, lambda: self._holds(topic, first), rows=first)
            return self._drain(
                subject, partial(outbox.fill, rows=then), lambda: self._holds(topic, first + then), rows=then
            )

    def _polling(self, peer: PollingPeer, topic: Topic) -> Sample:
        """A few rows show that it is there; timed until it has sent and settled all that come after them."""
        outbox = self.services.outbox
        few, rows = (min(wanted, outbox.rows) for wanted in (POLLING_WARM_UP_ROWS, POLLING_ROWS))

        def drain(process: ServiceProcess, *, rows: int, messages: int) -> Sample:
            return self._drain(
                Subject(peer.name, process.id.pid, process.log_tail),
                partial(peer.insert, outbox=outbox, rows=rows),
                lambda: self._holds(topic, messages) and peer.settled(outbox.database),
                rows=rows,
            )

        with self.services.polling(peer, topic) as process:
            eventually(
                lambda: drain(process, rows=few, messages=few),
                seconds=POLLING_START_SECONDS,
                what=f"{peer.name} to make its table",
                tolerate=(psycopg.errors.UndefinedTable,),
                detail=process.log_tail,
            )
            return drain(process, rows=rows, messages=few + rows)

    def _holds(self, topic: Topic, messages: int) -> bool:
        return consumer.count(self.services.kafka, topic) >= messages

    def _relay(self, variant: str, topic: Topic) -> Sample:
        outbox = self.services.outbox
        outbox.empty()
        rows, fill = (FAT_ROWS, _fill_fat) if variant == FAT else (outbox.rows, outbox.fill)
        with self.services.relay(topic, policy=RELAYS.get(variant, "delete")) as relay:
            return self._settle(relay, variant, fill, rows=rows)

    def profile(self) -> Profile:
        """What each step of a relay takes; see `profiled_relay`."""
        outbox = self.services.outbox
        outbox.empty()
        with self._topic() as topic, self.services.relay(topic, command=profiled_relay.COMMAND) as relay:
            self._settle(relay, RELAY, outbox.fill, rows=outbox.rows)
            relay.terminate()
            found: Profile = json.loads((self.services.directory / f"{relay.name}.profile").read_text())
        return found

    def _settle(self, relay: RelayProcess, variant: str, fill: Fill, *, rows: int) -> Sample:
        """Timed until it has settled all."""
        subject = Subject(variant, relay.pid, relay.log_tail)
        return self._drain(subject, fill, lambda: relay.report().sent_rows >= rows, rows=rows)

    def _drain(self, subject: Subject, fill: Fill, done: Callable[[], bool], *, rows: int) -> Sample:
        """Rows become visible all at once to a process that is already connected; timed until it is done with them."""
        with self.services.outbox.database.connect(autocommit=False) as connection:
            fill(connection)
            cpu, before = cpu_seconds(subject.pid), self._others()
            began = time.perf_counter()
            connection.commit()
        eventually(
            done,
            seconds=DRAIN_SECONDS,
            what=f"{rows} rows from {subject.variant}",
            interval_seconds=0.1,
            tolerate=(OSError,),
            detail=subject.log_tail,
        )
        seconds = time.perf_counter() - began
        used, peak = cpu_seconds(subject.pid) - cpu, peak_resident_bytes(subject.pid)
        return self._sample(subject.variant, rows, seconds, used, before=before, peak_bytes=peak)


def _fill_fat(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload)"
        " select 'order', 'key-' || n %% 100, 'Fat', to_jsonb(n || repeat(md5(n::text), %s))"
        " from generate_series(1, %s) n",
        [FAT_BYTES // 32, FAT_ROWS],
    )


def measure(
    *,
    rows: int,
    runs: int,
    payload: PayloadType = "jsonb",
    variants: Sequence[str] = VARIANTS,
    debezium_rows: int = DEBEZIUM_ROWS,
    say: Callable[[str], None] | None = None,
) -> list[Sample]:
    """Run every variant `runs` times, in turns; peers, which take long, and rows of 900 kB in the first turn only.

    Before that the broker is warmed up: while Java still compiles, whoever comes first pays for it, up to 7 CPU seconds
    per million messages.
    """
    samples: list[Sample] = []
    with Services.started(payload=payload, rows=rows) as services:
        bench = Bench(services, debezium_rows)
        for _ in range(WARM_UP_ROUNDS):
            for variant in (RELAY, PRODUCE):
                bench.run(variant)
        for number in range(1, runs + 1):
            for variant in variants if number == 1 else [each for each in variants if each in VARIANTS]:
                sample = bench.run(variant)
                if say is not None:
                    say(f"run {number}/{runs}  {variant:<36}{sample.rate:>10,.0f} rows/s")
                samples.append(sample)
    return samples


@dataclass(frozen=True, slots=True)
class Figures:
    """What the runs of one variant showed: medians, and the extremes of the rate."""

    variant: str
    rows: int
    runs: int
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
                rows=chosen[0].rows,
                runs=len(chosen),
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
