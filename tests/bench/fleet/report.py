"""The section of docs/benchmarks.md, and its plots."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from tests.bench import page, plot
from tests.bench.fleet.bars import PAIRS, BlackHoles, Created, Restarted, Steady, percentile
from tests.bench.fleet.requests import summary

_TITLE: Final = "The operator with a large fleet"
_MIB: Final = 2**20

_TEXT: Final = """\
`make bench-operator` writes this section. etcd, kube-apiserver, controllers and scheduler are real; kwok plays the
nodes, so that a pod costs nothing, and one process answers /status for all of them. 20 databases of one real PostgreSQL
server are measured every 5 s. Each OutboxRelay has two pairs; there are 20 namespaces with logins of their own. All
of it shares the same cores, so what a wall time says depends on what else they do: {load}. CPU seconds do so less.
"""


_READING: Final = """\
Creating all at once takes at least the CPU seconds of operator and control plane together, divided by the cores. A
status is written at rest where a measurement came later than it may."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a fleet of one size costs."""

    crs: int
    created: Created
    steady: Steady


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured."""

    crs: int
    created: Created
    steady: Steady
    edits: tuple[float, ...]
    restarted: Restarted
    peak: int
    """Bytes."""

    holes: BlackHoles
    servers: int
    silent: int
    growth: tuple[Growth, ...]
    load: float


def write(figures: Figures) -> None:
    """Write the section and its plots."""
    (page.DOCS / "benchmarks-fleet.svg").write_text(_costs(figures.growth), encoding="utf-8")
    (page.DOCS / "benchmarks-creation.svg").write_text(_creation(figures.created), encoding="utf-8")
    page.put(_TITLE, section(figures))


def section(figures: Figures) -> str:
    """The text below the heading."""
    load = f"{os.cpu_count()} cores, load average {figures.load:.0f}"
    costs = ("OutboxRelays", "CPU to create, s", "of each, ms", "CPU at rest", "of each, ms/s", "peak memory, MiB")
    return "\n\n".join(
        [
            _TEXT.format(load=load).rstrip(),
            page.markdown(("", "goal", "measured"), _rows(figures), numbers=False),
            _READING,
            f"At rest the operator asked for: {summary(figures.steady.counted)}.",
            page.markdown(costs, map(_size, figures.growth)),
            "![What a fleet costs](benchmarks-fleet.svg)",
            "![Deployments over time](benchmarks-creation.svg)",
        ]
    )


def _rows(figures: Figures) -> list[tuple[str, str, str]]:
    created, steady, restarted = figures.created, figures.steady, figures.restarted
    holes = figures.holes.ready_seconds
    return [
        (
            f"{figures.crs:,} OutboxRelays x {PAIRS} pairs created at once: all Deployments applied",
            "120 s",
            f"{created.seconds:.0f} s; {created.operator_cpu:.0f} s CPU of the operator, {created.plane_cpu:.0f} s of "
            f"the control plane; all Ready after {created.ready_seconds:.0f} s",
        ),
        ("Memory of the operator, the most of all that follows", "250 MiB", f"{figures.peak / _MIB:.0f} MiB"),
        (
            f"Nothing changes for {steady.seconds:.0f} s",
            "0 status writes, 0 applies, 1 request/s besides watches and Lease",
            f"{steady.status_writes} status writes, {steady.applies} other writes, "
            f"{len(steady.counted) / steady.seconds:.2f} requests/s; {steady.operator_cpu:.0%} of a core",
        ),
        (
            f"Each of {len(figures.edits)} edits of a spec: Deployments applied",
            "p99 2 s",
            f"median {percentile(figures.edits, 0.5):.2f} s, p99 {percentile(figures.edits, 0.99):.2f} s",
        ),
        (
            f"{figures.silent} of {figures.servers} databases are silent: a new OutboxRelay is Ready",
            "30 s",
            f"median {percentile(holes, 0.5):.1f} s, longest of {len(holes)} {max(holes):.1f} s",
        ),
        (
            "Restart of the operator",
            "no pod restarted, converged in 60 s",
            f"{restarted.pods_replaced} pods replaced, {restarted.deployments_changed} Deployments changed, "
            f"{restarted.seconds:.0f} s; {restarted.cpu:.0f} s CPU",
        ),
    ]


def _size(one: Growth) -> tuple[str, ...]:
    created, steady = one.created, one.steady
    return (
        f"{one.crs:,}",
        f"{created.operator_cpu:.1f}",
        f"{created.operator_cpu / one.crs * 1000:.0f}",
        f"{steady.operator_cpu:.1%}",
        f"{steady.operator_cpu / one.crs * 1000:.2f}",
        f"{steady.peak / _MIB:.0f}",
    )


def _costs(growth: tuple[Growth, ...]) -> str:
    creating = [(one.crs, one.created.operator_cpu / one.crs * 1000) for one in growth]
    resting = [(one.crs, one.steady.operator_cpu / one.crs * 1000) for one in growth]
    memory = [(one.crs, one.steady.peak / _MIB) for one in growth]
    panels = [
        plot.Panel(label, [line], highest=max(value for _, value in line), show=show)
        for label, line, show in (
            ("CPU to create one OutboxRelay, ms", creating, "{:.0f}".format),
            ("CPU at rest for one OutboxRelay, ms a second", resting, "{:.2f}".format),
            ("peak memory, MiB", memory, "{:.0f}".format),
        )
    ]
    ticks = {float(one.crs): str(one.crs) for one in growth}
    end = max(one.crs for one in growth)
    return plot.chart(
        "What the operator costs by the size of its fleet", ["the operator"], panels, end=end, ticks=ticks
    )


def _creation(created: Created) -> str:
    order = sorted(created.applied)
    line = [(0.0, 0.0), *((at, float(number)) for number, at in enumerate(order, start=1) if number % 10 == 0)]
    panel = plot.Panel("Deployments applied", [line], highest=float(len(order)), show="{:.0f}".format)
    ticks = {float(second): f"{second}s" for second in range(0, int(created.seconds) + 1, 30)}
    return plot.chart("All created at once", ["the operator"], [panel], end=created.seconds, ticks=ticks)
