"""Backlog and pods over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.bench import plot
from tests.bench.scaling.replay import Run

_STEP = 20


def chart(title: str, runs: Sequence[Run]) -> str:
    """Two panels, backlog above and pods below, with a line for each run."""
    seconds = len(runs[0].backlogs)

    panels = (
        _panel("rows waiting", [run.backlogs for run in runs], _thousands),
        _panel("pods", [run.counts for run in runs], _plain),
    )
    ticks = {60.0 * minute: f"{minute}m" for minute in range(0, seconds // 60 + 1, 10)}
    return plot.chart(title, [run.name for run in runs], panels, end=seconds, ticks=ticks)


def _panel(label: str, series: Sequence[Sequence[float]], show: Callable[[float], str]) -> plot.Panel:
    lines = [[(second, values[second]) for second in range(0, len(values), _STEP)] for values in series]
    return plot.Panel(label, lines, highest=max(*map(max, series), 1.0), show=show)


def _thousands(value: float) -> str:
    return f"{value / 1000:,.0f}k"


def _plain(value: float) -> str:
    return f"{value:.0f}"
