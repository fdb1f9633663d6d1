"""Turns the text of a real demo run into the picture of the README.

    make demo | tee run.txt
    python -m tests.demo.record docs/demo.svg < run.txt

It takes what the run printed while the broker was away, and the final table. Nothing is drawn that was not
printed; the picture names no font server.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

SHOWN_PARTS = ("The broker stops", "The count")
WIDTH = 108


def excerpt(output: str, parts: tuple[str, ...] = SHOWN_PARTS) -> str:
    """The parts of a run that the picture shows, by the beginnings of their titles.

    Raises:
        ValueError: if the run has no such part.
    """
    sections = re.split(r"(?m)^(?=== )", output)
    chosen = []
    for part in parts:
        found = next((section for section in sections if section.startswith(f"== {part}")), None)
        if found is None:
            raise ValueError(f"the run has no part that begins with {part!r}")
        chosen.append(found.strip("\n"))
    return "\n\n".join(chosen)


def picture(text: str, *, title: str) -> str:
    """The text as an SVG of a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    for line in text.splitlines():
        console.print(_coloured(line), soft_wrap=True)
    svg = without_addresses(console.export_svg(title=title, unique_id="demo"))
    # Some viewers drop leading blanks otherwise, and with them the columns.
    return svg.replace("<text ", '<text xml:space="preserve" ')


def without_addresses(svg: str) -> str:
    """Drop the font faces, which a viewer would fetch from somewhere (any monospaced font will do), and comments."""
    return re.sub(r"\s*@font-face\s*\{[^}]*\}|\s*<!--.*?-->", "", svg, flags=re.DOTALL)


def _coloured(line: str) -> Text:
    text = Text(line)
    if line.startswith("== "):
        text.stylize("bold")
    elif line.startswith("$ "):
        text.stylize("cyan")
    text.highlight_regex(r"\bok$", "green")
    if not line.startswith("Conflict"):  # the one condition that is good when it is False
        text.highlight_regex(r"\b(?:False|FAILED|BrokerUnreachable)\b", "red")
    text.highlight_regex(r"(?<= )True\b", "green")
    return text


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(picture(excerpt(sys.stdin.read()), title="make demo"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
