"""Lines over a common axis, and bars, as SVG written by hand: no library is worth a few polylines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

COLOURS: Final = ("#0b6e4f", "#d1495b", "#3066be", "#c58b00")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 860, 150, 70, 48, 26
_INNER: Final = _WIDTH - _LEFT - 16
_BARS_LEFT, _BARS_RIGHT, _BARS_TOP, _BAR = 250, 110, 30, 20

Line = Sequence[tuple[float, float]]
"""Points: where on the axis, and how high."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity of several things, each a line of its colour."""

    label: str
    lines: Sequence[Line]
    highest: float
    """The upper end of its scale."""

    show: Callable[[float], str]
    """The text of that."""


def chart(title: str, names: Sequence[str], panels: Sequence[Panel], *, end: float, ticks: dict[float, str]) -> str:
    """Panels one below another, over an axis from 0 to `end`; `names` are those of the lines."""
    height = _TOP + len(panels) * (_HEIGHT + _GAP) + 8
    parts = _head(title, height=height, left=_LEFT)
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        parts.append(f'<text x="{_LEFT + 130 * place}" y="34" fill="{colour}">{name}</text>')
    for number, panel in enumerate(panels):
        parts += _panel(_TOP + number * (_HEIGHT + _GAP), panel, end=end, ticks=ticks)
    return "\n".join([*parts, "</svg>", ""])


def bars(title: str, series: Mapping[str, Sequence[float]], *, names: Sequence[str], unit: str) -> str:
    """A bar for each name, made of a part for each series."""
    totals = [sum(parts) for parts in zip(*series.values(), strict=True)]
    most = max(totals) or 1.0
    height = _BARS_TOP + _BAR * len(names) + 24
    parts = _head(title, height=height, left=8)
    for place, (name, total) in enumerate(zip(names, totals, strict=True)):
        y, x = _BARS_TOP + _BAR * place, float(_BARS_LEFT)
        parts.append(f'<text x="{_BARS_LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        for values, colour in zip(series.values(), COLOURS, strict=False):
            width = (_WIDTH - _BARS_LEFT - _BARS_RIGHT) * values[place] / most
            parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_BAR - 6}" fill="{colour}"/>')
            x += width
        shown = f"{total:,.0f}" if total >= 100 else f"{total:.1f}"
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{shown} {unit}</text>')
    if len(series) > 1:
        for place, (name, colour) in enumerate(zip(series, COLOURS, strict=False)):
            parts.append(f'<text x="{_BARS_LEFT + 120 * place}" y="{height - 8}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _head(title: str, *, height: int, left: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="16" font-size="13">{title}</text>',
    ]


def _panel(top: int, panel: Panel, *, end: float, ticks: dict[float, str]) -> list[str]:
    bottom = top + _HEIGHT
    parts = [
        f'<path d="M{_LEFT} {top}V{bottom}H{_LEFT + _INNER}" fill="none" stroke="#888"/>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{panel.show(panel.highest)}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + 6}" y="{top + 10}" fill="#555">{panel.label}</text>',
    ]
    for place, text in ticks.items():
        x = _LEFT + _INNER * place / end
        parts.append(f'<text x="{x:.0f}" y="{bottom + 13}" text-anchor="middle" fill="#555">{text}</text>')
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        points = " ".join(
            f"{_LEFT + _INNER * place / end:.1f},{bottom - _HEIGHT * value / panel.highest:.1f}"
            for place, value in line
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    return parts
