"""Lines over a common axis as SVG, written by hand: no library is worth a few polylines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

COLOURS: Final = ("#0b6e4f", "#d1495b", "#3066be")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 860, 150, 70, 48, 26
_INNER: Final = _WIDTH - _LEFT - 16

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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="16" font-size="13">{title}</text>',
    ]
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        parts.append(f'<text x="{_LEFT + 130 * place}" y="34" fill="{colour}">{name}</text>')
    for number, panel in enumerate(panels):
        parts += _panel(_TOP + number * (_HEIGHT + _GAP), panel, end=end, ticks=ticks)
    return "\n".join([*parts, "</svg>", ""])


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
