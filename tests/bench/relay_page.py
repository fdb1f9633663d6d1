"""The section of docs/benchmarks.md on one relay, beside the limits of the machine and beside peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench import bars, debezium, held_snapshot, profile
from tests.bench.latency import Latency, over_the_floor
from tests.bench.page import draw, markdown, put
from tests.bench.plot import bars as bar_chart
from tests.bench.polling import FASTSTREAM, PG_TRANSACTIONAL
from tests.bench.services import PARTITIONS
from tests.bench.table import KEYS, PAYLOAD_BYTES
from tests.bench.throughput import FAT, IN_TURN, POLLING_WARM_UP_ROWS, RELAY, Figures, Profile, Sample, summary

TITLE: Final = "One relay"
THROUGHPUT: Final = "bench-throughput.svg"
COST: Final = "bench-cpu.svg"


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the section tells."""

    samples: Sequence[Sample]
    latencies: Sequence[Latency]
    held: held_snapshot.Result
    profile: Profile
    command: str
    rows: int
    machine: str


def write(measured: Measured) -> None:
    """Write the section and its plots."""
    figures = [each for each in summary(measured.samples) if each.variant != FAT]
    names = [each.variant for each in figures]
    rates = {"rows/s": [each.rate for each in figures]}
    draw(THROUGHPUT, bar_chart("Throughput", rates, names=names, unit="rows/s"))
    parts = enumerate(("itself", "PostgreSQL", "broker"))
    cpu = {part: [each.cpu[place] for each in figures] for place, part in parts}
    draw(COST, bar_chart("CPU seconds per million rows", cpu, names=names, unit="s"))
    put(TITLE, text(measured, figures))


def text(measured: Measured, figures: Sequence[Figures]) -> str:
    """The text below the heading."""
    found = bars.bars(measured.samples, measured.latencies, measured.held)
    return f"""\
`{measured.command}`: {measured.rows:,} rows of {PAYLOAD_BYTES} B (jsonb) with 2 headers and
{KEYS:,} keys; PostgreSQL with fsync, one Kafka broker with {PARTITIONS} partitions, acks=all. Everything shares the
machine: {measured.machine}.

{markdown(bars.COLUMNS, [each.cells() for each in found], numbers=False)}

{_shortfalls(found)}
Rows become visible all at once, to a process that is already connected. Medians, in turns; of peers one run.
"{IN_TURN}" is the ideal serial relay: it does nothing else, keeps no order between processes, and
survives nothing. The peers have acks=all and an idempotent producer, too:

- Debezium Server {debezium.VERSION} with its outbox event router, as it comes and tuned (batches as large as the
  relay's, lz4, 5 ms of patience, no schemas in headers), warmed up with {measured.rows:,} rows.
- {FASTSTREAM.name}: eight workers, a hundred rows fetched and a hundred removed at a time. It keeps no order.
- {PG_TRANSACTIONAL.name}, polling: 32 rows in work at a time, the key as the segment, which keeps the order of a key.
  Both have sent {POLLING_WARM_UP_ROWS} rows before.

![rows a second]({THROUGHPUT})

{_throughput(figures)}

![CPU seconds per million rows]({COST})

Latency, from the commit to the consumer. The floor is measured at the same rows: their writer sends a message itself,
right after its commit.

{_latency(measured.latencies)}

Where the relay's CPU time goes, microseconds a row, in runs of their own:

{markdown(("step", "us"), profile.lines(measured.profile))}
"""


def _shortfalls(found: Sequence[bars.Bar]) -> str:
    short = [each for each in found if not each.met and each.reading]
    lines = "".join(f"- {each.name}: {each.reading}\n" for each in short)
    return f"What falls short, and why:\n\n{lines}" if short else ""


def _throughput(figures: Sequence[Figures]) -> str:
    columns = (
        "",
        "rows",
        "runs",
        "rows/s",
        "lowest-highest",
        f"{RELAY} is",
        "peak RSS, MiB",
        "CPU s per million rows",
        "PostgreSQL",
        "broker",
    )
    return markdown(
        columns,
        [
            (
                each.variant,
                f"{each.rows:,}",
                f"{each.runs}",
                f"{each.rate:,.0f}",
                f"{each.lowest:,.0f}-{each.highest:,.0f}",
                f"{each.relay_is:.2f} x" if each.relay_is is not None else "",
                f"{each.peak_mib:.0f}" if each.peak_mib is not None else "",
                *(f"{seconds:.1f}" for seconds in each.cpu),
            )
            for each in figures
        ],
    )


def _latency(latencies: Sequence[Latency]) -> str:
    return markdown(
        ("", "rows/s", "p50, ms", "p99, ms", "longest, ms", "p50 over the floor", "p99 over the floor"),
        [
            (
                each.subject,
                f"{each.rows_per_second:,.0f}",
                *(f"{value:.1f}" for value in (each.p50, each.p99, each.highest, p50, p99)),
            )
            for each, p50, p99 in over_the_floor(latencies)
        ],
    )
