"""`python -m tests.bench`: throughput and latency of one relay, beside what the machine can do without it."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import get_args

from tests.bench import latency, page, relay_page
from tests.bench.services import PARTITIONS
from tests.bench.table import KEYS, PAYLOAD_BYTES
from tests.bench.throughput import PEERS, VARIANTS, measure, table
from tests.testbed.services.table import PayloadType


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="rows per run (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each variant, in turns (default %(default)s)")
    parser.add_argument(
        "--payload", choices=get_args(PayloadType), default="jsonb", help="column type (default %(default)s)"
    )
    parser.add_argument(
        "--only", choices=(*VARIANTS, *PEERS), action="append", help="a variant; may be given several times"
    )
    parser.add_argument("--peers", action="store_true", help="also Debezium Server (fetched once, 760 MB)")
    parser.add_argument("--write", action="store_true", help="throughput, latency and peers into docs/benchmarks.md")
    parser.add_argument("--latency", action="store_true", help="latency from commit to consumer, not throughput")
    parser.add_argument("--seconds", type=float, default=30, help="length of a latency run (default %(default)s)")
    options = parser.parse_args(arguments)
    print(
        f"{options.rows:,} rows, {PAYLOAD_BYTES} B {options.payload}, 2 headers, {KEYS:,} keys, "
        f"{PARTITIONS} partitions; PostgreSQL with fsync, Kafka acks=all, one broker; "
        f"{os.cpu_count()} cores shared by all of it",
        flush=True,
    )
    say = partial(print, flush=True)
    if options.latency:
        latency.measure(seconds=options.seconds, debezium=options.peers, say=say)
        return 0
    machine = page.machine()
    samples = measure(
        rows=options.rows,
        runs=options.runs,
        payload=options.payload,
        variants=options.only or (*VARIANTS, *(PEERS if options.peers or options.write else ())),
        say=say,
    )
    print(f"\nmedian of {options.runs} runs, in turns:\n{table(samples)}")
    if options.write:
        latencies = latency.measure(seconds=options.seconds, debezium=True, say=say)
        relay_page.write(samples, latencies, rows=options.rows, runs=options.runs, machine=machine)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
