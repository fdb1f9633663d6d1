"""`python -m tests.bench`: throughput and latency of one relay, beside what the machine can do without it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import get_args

from tests.bench import debezium, held_snapshot, latency, page, polling, profile, relay_page
from tests.bench.services import PARTITIONS
from tests.bench.table import KEYS, PAYLOAD_BYTES
from tests.bench.throughput import DEBEZIUM_ROWS, FAT, PEERS, VARIANTS, measure, table
from tests.testbed.services import packages
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
        "--only", choices=(*VARIANTS, *PEERS, FAT), action="append", help="a variant; may be given several times"
    )
    parser.add_argument("--peers", action="store_true", help="also the peers (fetched once: 760 MB, Java 21, node)")
    parser.add_argument(
        "--debezium-rows", type=int, default=DEBEZIUM_ROWS, help="of Debezium Server, once warm (default %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="everything, into docs/benchmarks.md")
    parser.add_argument("--latency", action="store_true", help="latency from commit to consumer, not throughput")
    parser.add_argument("--profile", action="store_true", help="where the relay's time goes, not throughput")
    parser.add_argument("--seconds", type=float, default=30, help="length of a latency run (default %(default)s)")
    parser.add_argument(
        "--held-seconds", type=float, default=60, help="length of the run with a held snapshot (default %(default)s)"
    )
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
    elif options.profile:
        say(profile.table(profile.measure(rows=options.rows, runs=options.runs, payload=options.payload)))
    else:
        _measure(options, say, command=shlex.join(["python", "-m", "tests.bench", *arguments]))
    return 0


def _measure(options: argparse.Namespace, say: Callable[[str], None], *, command: str) -> None:
    machine = page.machine()
    if options.write:
        # What is missing is better known before than after a quarter of an hour.
        packages.program("rsvg-convert")
    if options.write or options.peers:
        debezium.distribution()
        polling.ready()
    samples = measure(
        rows=options.rows,
        runs=options.runs,
        payload=options.payload,
        variants=options.only or (*VARIANTS, *((*PEERS, FAT) if options.peers or options.write else ())),
        debezium_rows=options.debezium_rows,
        say=say,
    )
    say(f"\nmedian of {options.runs} runs, in turns:\n{table(samples)}")
    if options.write:
        measured = relay_page.Measured(
            samples=samples,
            latencies=latency.measure(seconds=options.seconds, debezium=True, say=say),
            held=held_snapshot.measure(seconds=options.held_seconds, policies=["delete"])["delete"],
            profile=profile.measure(rows=options.rows, runs=options.runs, payload=options.payload),
            command=command,
            rows=options.rows,
            machine=machine,
        )
        relay_page.write(measured)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
