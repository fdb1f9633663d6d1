"""The bars that a relay is measured by: computed from the samples of one run, so that nobody computes by hand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.bench import held_snapshot
from tests.bench.latency import Latency, over_the_floor
from tests.bench.throughput import DEBEZIUMS, FAT, IN_TURN, KEEP, RELAY, Figures, Sample, summary

_IDLE, _BUSY = 200, 3000
_MOST_OVER_THE_FLOOR: Final = {_IDLE: (8, 40), _BUSY: (15, 50)}
"""Milliseconds of p50 and p99, by rows a second."""


class Bar(NamedTuple):
    """What is to be reached, and what was."""

    name: str
    goal: str
    measured: str
    met: bool
    reading: str = ""
    """Why it falls short where it does, from the profile and the CPU seconds."""

    def cells(self) -> tuple[str, str, str, str]:
        """For a table."""
        return self.name, self.goal, self.measured, "yes" if self.met else "no"


_THROUGHPUTS: Final = (
    (
        "rows/s, Delete, beside the ideal serial relay",
        1.2,
        "Overlap hides the waiting, not the work. The serial relay leaves little of two cores idle, which PostgreSQL "
        "and the broker share with it; and more than half of what a row costs the relay is what any client of "
        "librdkafka pays: headers, the hand-over, librdkafka's own threads.",
    ),
    (
        "rows/s, Delete, beside Debezium Server's best",
        5.0,
        "Debezium Server spends several times the CPU on a row, but in several threads, while a relay is one beside "
        "librdkafka's. So with both cores for itself it is nearer in rows/s than in CPU.",
    ),
    (
        "rows/s, Keep, beside our own Delete",
        1.0,
        "A row that is kept is written twice, which costs PostgreSQL about half as much again; most of that passes "
        "while the relay is at the next batch.",
    ),
)
"""Name, goal and how to read it."""

COLUMNS: Final = ("bar", "goal", "measured", "met")


def bars(samples: Sequence[Sample], latencies: Sequence[Latency], held: held_snapshot.Result | None) -> list[Bar]:
    """Every bar whose figures are there."""
    figures = {each.variant: each for each in summary(samples)}
    return [*_throughput(figures), *_cost(figures), *_latency(latencies), *_held(held)]


def _throughput(figures: dict[str, Figures]) -> list[Bar]:
    found = []
    debezium = max((figures[name].rate for name in DEBEZIUMS if name in figures), default=None)
    relay, keep, in_turn = (figures[name].rate if name in figures else None for name in (RELAY, KEEP, IN_TURN))
    compared = ((relay, in_turn), (relay, debezium), (keep, relay))
    for (name, goal, reading), (rate, other) in zip(_THROUGHPUTS, compared, strict=True):
        if rate is not None and other is not None:
            found.append(_bar(name, operator.ge, goal, rate / other, "{:.2f} x")._replace(reading=reading))
    return found


def _cost(figures: dict[str, Figures]) -> list[Bar]:
    found = []
    debezium = min((figures[name].cpu[0] for name in DEBEZIUMS if name in figures), default=None)
    if RELAY in figures and debezium is not None:
        share = figures[RELAY].cpu[0] / debezium
        found.append(_bar("CPU of the process, beside Debezium Server's least", operator.le, 0.25, share, "{:.2f} x"))
    for name, variant, goal in (("rows of 300 B", RELAY, 96), ("rows of 900 kB", FAT, 256)):
        peak = figures[variant].peak_mib if variant in figures else None
        if peak is not None:
            found.append(_bar(f"peak RSS, {name}", operator.le, goal, peak, "{:.0f} MiB"))
    return found


def _latency(latencies: Sequence[Latency]) -> list[Bar]:
    return [
        _bar(
            f"latency at {each.rows_per_second:,.0f} rows/s over the floor, {name}",
            operator.le,
            goal,
            value,
            "{:.1f} ms",
        )
        for each, p50, p99 in over_the_floor(latencies)
        if each.subject == RELAY and each.rows_per_second in _MOST_OVER_THE_FLOOR
        for name, value, goal in zip(
            ("p50", "p99"), (p50, p99), _MOST_OVER_THE_FLOOR[round(each.rows_per_second)], strict=True
        )
    ]


def _held(held: held_snapshot.Result | None) -> list[Bar]:
    if held is None:
        return []
    share, free = held_snapshot.kept(held.held), held_snapshot.kept(held.free)
    first, last = held_snapshot.first_and_last(held.held)
    bar = _bar("a snapshot is held: rows/s at the end, of those at the start", operator.ge, 0.9, share, "{:.2f}")
    reading = (
        f"In a second database, in turns with it, nothing was held, and there it was {free:.2f}: what both lose is the "
        f"machine's doing. A poll looked at {first.pages_per_poll:,.0f} pages at the start and at "
        f"{last.pages_per_poll:,.0f} at the end."
    )
    return [bar._replace(reading=reading)]


def _bar(name: str, compare: Callable[[float, float], bool], goal: float, measured: float, shape: str) -> Bar:
    sign = ">=" if compare is operator.ge else "<="
    return Bar(name, f"{sign} {shape.format(goal)}", shape.format(measured), compare(measured, goal))
