"""docs/benchmarks.md: each bench writes its own section from what it measured, and leaves the others alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "benchmarks.md"

_HEAD: Final = """\
# Benchmarks

Every section is written by the command in it. Compare figures within a section only: those are from one run on one
machine.
"""

_COLOURS: Final = ("#0b6e4f", "#d1495b", "#3066be")
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 250, 110, 20, 30


def machine() -> str:
    """What the figures depend on, for people; the load says whether anything else ran."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores ({model[1] if model else 'of unknown kind'}), load {os.getloadavg()[1]:.1f} before"


def put(title: str, text: str, *, page: Path = PAGE) -> None:
    """Write the section with that title, in the place of the one before if there is one."""
    whole = page.read_text() if page.exists() else _HEAD
    head, *sections = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    section = f"## {title}\n\n{text.strip()}\n"
    kept = {each.partition("\n")[0]: each.strip() + "\n" for each in sections}
    kept[f"## {title}"] = section
    page.write_text("\n".join([head.strip() + "\n", *kept.values()]))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is words and whose others are numbers."""
    lines = [columns, ("---", *("---:" for _ in columns[1:])), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bars(title: str, series: Mapping[str, Sequence[float]], *, names: Sequence[str], unit: str) -> str:
    """An SVG with a bar for each name, made of a part for each series."""
    most = max(sum(values[place] for values in series.values()) for place in range(len(names))) or 1.0
    height = _TOP + _ROW * len(names) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" font-size="13">{title}</text>',
    ]
    for place, name in enumerate(names):
        y, x = _TOP + _ROW * place, float(_LEFT)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        for values, colour in zip(series.values(), _COLOURS, strict=False):
            width = (_WIDTH - _LEFT - _RIGHT) * values[place] / most
            parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 6}" fill="{colour}"/>')
            x += width
        total = sum(values[place] for values in series.values())
        shown = f"{total:,.0f}" if total >= 100 else f"{total:.1f}"
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{shown} {unit}</text>')
    if len(series) > 1:
        for place, (name, colour) in enumerate(zip(series, _COLOURS, strict=False)):
            parts.append(f'<text x="{_LEFT + 120 * place}" y="{height - 8}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
