"""What the person at the terminal sees: steps with their usual duration, real commands with their real output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.demo.verdict import Check

MINIMUM_COLUMN = 7
PIPE_WIDTH = 120
"""Columns of the tables when the output is no terminal."""


class Columns:
    """Keeps the columns of a table in place that a program prints line by line, each time with other widths."""

    def __init__(self, head: str) -> None:
        self._names = _cells(head)
        self._widths = [max(len(name), MINIMUM_COLUMN) for name in self._names]
        self.head = self.line(head)

    def line(self, text: str) -> str:
        """The line with its cells below their heads; as it is, if an empty cell makes them uncertain."""
        cells = _cells(text)
        if len(cells) != len(self._names):
            return text
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        return "  ".join(f"{cell:<{width}}" for width, cell in zip(self._widths, cells, strict=True)).rstrip()


def _cells(text: str) -> list[str]:
    return re.split(r" {2,}", text.strip())


class Screen:
    """Prints to standard output; colours only on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = PIPE_WIDTH

    def title(self, text: str) -> None:
        """A new part of the demo begins."""
        self._console.print(f"\n[bold]== {escape(text)}[/bold]")

    def say(self, text: str) -> None:
        """One or more lines of explanation."""
        self._console.print(escape(text))

    def command(self, line: str, output: str) -> None:
        """A command and what it printed."""
        self._console.print(f"[cyan]$ {escape(line)}[/cyan]")
        self.output(output)

    def output(self, text: str) -> None:
        """Text that a program printed, as it is."""
        self._console.print(escape(text.rstrip("\n")))

    def row(self, prefix: str, text: str) -> None:
        """One line of a table that is watched."""
        self._console.print(f"[dim]{escape(prefix):>8}[/dim]{escape(text)}")

    @contextmanager
    def step(self, what: str, *, usually: str) -> Iterator[None]:
        """Announce a step and how long it usually takes, then tell how long it took."""
        self._console.print(f"-- {escape(what)} [dim](usually {escape(usually)})[/dim]")
        began = time.monotonic()
        yield
        self._console.print(f"   [dim]done in {time.monotonic() - began:.1f} s[/dim]")

    def verdict(self, checks: Iterable[Check]) -> None:
        """The final table."""
        table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        marks = {True: "[green]ok[/green]", False: "[bold red]FAILED[/bold red]", None: ""}
        for check in checks:
            table.add_row(escape(check.name), escape(check.value), marks[check.ok])
        self._console.print(table)
