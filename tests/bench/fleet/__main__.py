"""`python -m tests.bench.fleet`: the operator with a large fleet, against a real API server.

Runs in a network namespace of its own, where it may listen on every address and reaches nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.fleet import bars, isolation, kwok
from tests.bench.fleet.report import Figures, Growth, write
from tests.bench.fleet.requests import summary
from tests.testbed.errors import ClusterError


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parser.add_argument("--crs", type=int, default=1000, help="OutboxRelays of two pairs (default %(default)s)")
    parser.add_argument("--steady-seconds", type=float, default=600, help="of nothing changing (default %(default)s)")
    parser.add_argument("--edits", type=int, default=100, help="edits of a spec (default %(default)s)")
    parser.add_argument(
        "--growth", type=int, nargs="*", default=(100, 250, 500), help="sizes of smaller fleets (default %(default)s)"
    )
    parser.add_argument("--growth-seconds", type=float, default=120, help="of their quiet (default %(default)s)")
    parser.add_argument("--servers", type=int, default=200, help="beside 30 %% that are silent (default %(default)s)")
    parser.add_argument("--profile", type=Path, help="profile the operator of the large fleet to this file")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its plots")
    options = parser.parse_args(arguments)
    try:
        isolation.enter("tests.bench.fleet", arguments)
        figures = _measure(options, kwok.ensure())
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    if options.write:
        write(figures)
    return 0


def _measure(options: argparse.Namespace, kwok_program: Path) -> Figures:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  load {bars.load_average():4.1f}  {text}", flush=True)

    growth = [_grow(size, options.growth_seconds, kwok_program, say) for size in options.growth]
    crs = options.crs
    with bars.world(crs=crs, kwok=kwok_program, profile=options.profile) as here:
        created = bars.create_at_once(here, crs=crs)
        _say_created(crs, created, say)
        say(f"  the last write came {bars.settle(here):.0f} s later")
        steady = bars.stay(here, seconds=options.steady_seconds)
        _say_steady(steady, say)
        edits = bars.edit(here, crs=crs, edits=options.edits)
        say(
            f"edits: median {bars.percentile(edits, 0.5):.2f} s, p99 {bars.percentile(edits, 0.99):.2f} s, "
            f"longest {max(edits):.2f} s"
        )
        here.await_ready(crs)
        peak = here.operator.peak_bytes()
        restarted = bars.restart(here, crs=crs)
        say(
            f"restart: {restarted.seconds:.1f} s, {restarted.cpu:.1f} s CPU, {restarted.deployments_changed} "
            f"Deployments changed, {restarted.pods_replaced} pods replaced; {summary(list(restarted.requests))}"
        )
        say(f"peak memory {peak / 2**20:.0f} MiB, after the restart {restarted.peak / 2**20:.0f} MiB")
    growth.append(Growth(crs, created, steady))
    silent = options.servers * 3 // 10
    holes = bars.black_holes(kwok=kwok_program, servers=options.servers, silent=silent, fresh=20, say=say)
    say(
        f"new ones Ready: median {bars.percentile(holes.ready_seconds, 0.5):.1f} s, "
        f"longest {max(holes.ready_seconds):.1f} s"
    )
    return Figures(
        crs=crs,
        created=created,
        steady=steady,
        edits=tuple(edits),
        restarted=restarted,
        peak=max(peak, restarted.peak),
        holes=holes,
        servers=options.servers,
        silent=silent,
        growth=tuple(growth),
        load=bars.load_average(),
    )


def _grow(size: int, seconds: float, kwok_program: Path, say: bars.Say) -> Growth:
    with bars.world(crs=size, kwok=kwok_program) as here:
        created = bars.create_at_once(here, crs=size)
        _say_created(size, created, say)
        say(f"  the last write came {bars.settle(here):.0f} s later")
        steady = bars.stay(here, seconds=seconds)
        _say_steady(steady, say)
    return Growth(size, created, steady)


def _say_created(crs: int, created: bars.Created, say: bars.Say) -> None:
    say(f"{crs} OutboxRelays: all Deployments after {created.seconds:.1f} s, Ready after {created.ready_seconds:.0f} s")
    say(f"  CPU {created.operator_cpu:.1f} s operator, {created.plane_cpu:.1f} s control plane")


def _say_steady(steady: bars.Steady, say: bars.Say) -> None:
    say(
        f"  quiet for {steady.seconds:.0f} s: {len(steady.counted) / steady.seconds:.2f} requests/s "
        f"({summary(steady.counted)}), {steady.status_writes} status writes, {steady.applies} other writes"
    )
    say(
        f"  CPU {steady.operator_cpu:.1%} operator, {steady.plane_cpu:.1%} control plane; memory "
        f"{steady.resident / 2**20:.0f} MiB, peak {steady.peak / 2**20:.0f} MiB; {steady.sessions} database sessions"
    )
    for line in steady.said:
        say(f"  {line}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
