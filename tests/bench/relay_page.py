"""The section of docs/benchmarks.md on one relay, beside the limits of the machine and beside peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.bench.latency import Latency
from tests.bench.page import DOCS, markdown, put
from tests.bench.plot import bars
from tests.bench.services import PARTITIONS
from tests.bench.table import KEYS, PAYLOAD_BYTES
from tests.bench.throughput import IN_TURN, RELAY, Figures, Sample, summary

TITLE: Final = "One relay"
THROUGHPUT: Final = "bench-throughput.svg"
COST: Final = "bench-cpu.svg"


def write(samples: Sequence[Sample], latencies: Sequence[Latency], *, rows: int, runs: int, machine: str) -> None:
    """Write the section and its plots."""
    figures = summary(samples)
    names = [each.variant for each in figures]
    rates = {"rows/s": [each.rate for each in figures]}
    (DOCS / THROUGHPUT).write_text(bars("Throughput", rates, names=names, unit="rows/s"))
    cpu = {part: [each.cpu[place] for each in figures] for place, part in enumerate(("itself", "PostgreSQL", "broker"))}
    (DOCS / COST).write_text(bars("CPU seconds per million rows", cpu, names=names, unit="s"))
    put(TITLE, _text(figures, latencies, rows=rows, runs=runs, machine=machine))


def _text(figures: Sequence[Figures], latencies: Sequence[Latency], *, rows: int, runs: int, machine: str) -> str:
    return f"""\
`python -m tests.bench --write --rows {rows} --runs {runs}`: {rows:,} rows of {PAYLOAD_BYTES} B (jsonb) with 2 headers
and {KEYS:,} keys; PostgreSQL with fsync, one Kafka broker with {PARTITIONS} partitions, acks=all. Everything shares the
machine: {machine}. Medians, in turns; Debezium Server is warmed up with as many rows before. "{IN_TURN}"
is the ideal serial relay: it does nothing else, keeps no order between processes, and survives nothing.

![rows a second]({THROUGHPUT})

{_throughput(figures)}

![CPU seconds per million rows]({COST})

Latency, from the commit to the consumer. The floor is measured at the same rows: their writer sends a message itself,
right after its commit.

{_latency(latencies)}
"""


def _throughput(figures: Sequence[Figures]) -> str:
    columns = (
        "",
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
        ("", "rows/s", "p50, ms", "p99, ms", "longest, ms"),
        [
            (each.subject, f"{each.rows_per_second:,.0f}", f"{each.p50:.1f}", f"{each.p99:.1f}", f"{each.highest:.1f}")
            for each in latencies
        ],
    )
