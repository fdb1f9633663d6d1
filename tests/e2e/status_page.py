"""docs/status.md: how OutboxRelays in different states read in kubectl. Written by a run on a cluster, never by hand.

It must not judge: whether a state was reached is the business of the test that shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "status.md"

_HEAD: Final = """\
# Reading the status

What `kubectl` shows of four OutboxRelays: one whose rows flow, one that lags behind, one that is misconfigured, and one
whose rows another one already takes. Everything below was printed by a run on a cluster (`make status-page`); what each
reason means and what to do about it is in [troubleshooting.md](troubleshooting.md).
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A command and what it printed."""

    command: str
    output: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence or two on what to look at, and what was shown."""

    title: str
    text: str
    shown: Sequence[Shown]


def render(sections: Sequence[Section]) -> str:
    """The whole page."""
    parts = [_HEAD]
    for section in sections:
        parts.append(f"## {section.title}\n\n{section.text}\n")
        parts += [f"```console\n$ {each.command}\n{each.output.rstrip()}\n```\n" for each in section.shown]
    return "\n".join(parts)


def vocabulary(page: str) -> frozenset[str]:
    """What a reader learns from the page: its headings, the columns of its tables, and the types of the conditions."""
    headings = re.findall(r"^## .*$", page, re.MULTILINE)
    columns = re.findall(r"\S+", " ".join(re.findall(r"^(?:NAMESPACE\s+)?NAME\s.*$", page, re.MULTILINE)))
    types = re.findall(r"^ {4}Type: +(\S+)$", page, re.MULTILINE)
    return frozenset((*headings, *columns, *types))
