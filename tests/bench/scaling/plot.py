"""Backlog and pods over time as SVG, written by hand: no library is worth two polylines."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.scaling.replay import Run

COLOURS = ("#0b6e4f", "#d1495b", "#3066be")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 860, 150, 70, 48, 26
_INNER = _WIDTH - _LEFT - 16
_STEP = 20


def chart(title: str, runs: Sequence[Run]) -> str:
    """Two panels, backlog above and pods below, with a line for each run."""
    panels = (
        ("rows waiting", [run.backlogs for run in runs], _thousands),
        ("pods", [[float(count) for count in run.counts] for run in runs], _plain),
    )
    height = _TOP + 2 * (_HEIGHT + _GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="16" font-size="13">{title}</text>',
    ]
    for place, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        parts.append(f'<text x="{_LEFT + 130 * place}" y="34" fill="{colour}">{run.name}</text>')
    for number, (label, series, show) in enumerate(panels):
        parts += _panel(_TOP + number * (_HEIGHT + _GAP), label, series, show)
    return "\n".join([*parts, "</svg>", ""])


def _panel(top: int, label: str, series: Sequence[Sequence[float]], show: object) -> list[str]:
    assert callable(show)
    highest = max(max(max(values) for values in series), 1.0)
    bottom = top + _HEIGHT
    seconds = len(series[0])
    parts = [
        f'<path d="M{_LEFT} {top}V{bottom}H{_LEFT + _INNER}" fill="none" stroke="#888"/>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{show(highest)}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + 6}" y="{top + 10}" fill="#555">{label}</text>',
    ]
    for minute in range(0, seconds // 60 + 1, 10):
        x = _LEFT + _INNER * minute * 60 / seconds
        parts.append(f'<text x="{x:.0f}" y="{bottom + 13}" text-anchor="middle" fill="#555">{minute}m</text>')
    for values, colour in zip(series, COLOURS, strict=False):
        points = " ".join(
            f"{_LEFT + _INNER * second / seconds:.1f},{bottom - _HEIGHT * values[second] / highest:.1f}"
            for second in range(0, seconds, _STEP)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    return parts


def _thousands(value: float) -> str:
    return f"{value / 1000:,.0f}k"


def _plain(value: float) -> str:
    return f"{value:.0f}"
