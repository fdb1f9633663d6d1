"""docs/benchmarks.md: each bench writes its own section from what it measured, and leaves the others alone."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.testbed.paths import REPOSITORY
from tests.testbed.services.packages import program

DOCS: Final = REPOSITORY / "docs"
PAGE: Final = DOCS / "benchmarks.md"
PICTURES: Final = REPOSITORY / "build" / "benchmarks"
"""Where plots are kept as PNG, for slides and the like: git ignores it."""

_HEAD: Final = """\
# Benchmarks

Every section is written by the command in it. Compare figures within a section only: those are from one run on one
machine.
"""


def machine() -> str:
    """What the figures depend on, for people; the load says whether anything else ran."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores ({model[1] if model else 'of unknown kind'}), load {os.getloadavg()[1]:.1f} before"


def draw(name: str, drawing: str, *, docs: Path = DOCS, pictures: Path = PICTURES) -> None:
    """Write a plot, an SVG of that name, beside the page, and the same as PNG.

    Raises:
        MissingProgramError: rsvg-convert is not there.
    """
    (docs / name).write_text(drawing, encoding="utf-8")
    pictures.mkdir(parents=True, exist_ok=True)
    png = (pictures / name).with_suffix(".png")
    subprocess.run([program("rsvg-convert"), "--zoom", "2", "--output", png, docs / name], check=True, timeout=60)


def put(title: str, text: str, *, page: Path = PAGE) -> None:
    """Write the section with that title, in the place of the one before if there is one."""
    whole = page.read_text() if page.exists() else _HEAD
    head, *sections = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    section = f"## {title}\n\n{text.strip()}\n"
    kept = {each.partition("\n")[0]: each.strip() + "\n" for each in sections}
    kept[f"## {title}"] = section
    page.write_text("\n".join([head.strip() + "\n", *kept.values()]))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A table whose first column is words, and whose others are numbers or words as well."""
    lines = [columns, ("---", *("---:" if numbers else "---" for _ in columns[1:])), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
