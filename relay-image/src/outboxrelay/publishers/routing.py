"""To which topic a row goes, and in which waves the rows of a batch are sent so that a key's rows stay in order. Pure.

Within one partition the broker keeps the order of what is sent at once. Between topics nobody does: rows of a key that
go to different places are sent one after the other's acknowledgement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from outboxrelay.ports import Row
from outboxrelay.report import RowFaultReason

_VARIABLE: Final = re.compile(r"\$\{(route|topic)\}")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CACHED_NAMES: Final = 10_000

Place = tuple[str, int]
"""Topic and partition; -1 lets the key choose the partition."""


class MisroutedError(Exception):
    """A row cannot be sent to where it should go. The message does not quote values that are no legal names."""

    def __init__(self, reason: RowFaultReason, message: str) -> None:
        super().__init__(message)
        self.reason: RowFaultReason = reason
        self.message = message


def is_template(topic: str) -> bool:
    """Whether the name of the topic depends on the row."""
    return _VARIABLE.search(topic) is not None


class TopicTemplate:
    """Makes the names of topics from a template such as `outbox.event.${route}`."""

    def __init__(self, template: str, positions: Mapping[str, int], *, forbidden: str | None = None) -> None:
        """`positions`: where in a row the value of each variable is; `forbidden` is a topic that no row may name."""
        self._forbidden = forbidden
        self._parts = _VARIABLE.split(template)
        self._variables = [(name, positions[name]) for name in self._parts[1::2]]
        self._names: dict[tuple[bytes | None, ...], str] = {}

    def name(self, row: Row) -> str:
        """The topic of a row.

        Raises:
            MisroutedError: the values make no legal name.
        """
        cells: tuple[Any, ...] = row
        values = tuple([cells[at] for _, at in self._variables])
        return self._names.get(values) or self._make(values)

    def _make(self, values: tuple[bytes | None, ...]) -> str:
        parts = list(self._parts)
        for number, ((variable, _), value) in enumerate(zip(self._variables, values, strict=True)):
            if value is None:
                raise MisroutedError("TopicInvalid", f"its {variable} is NULL, and the topic is named by it; set it")
            parts[2 * number + 1] = value.decode("utf-8", "replace")
        name = "".join(parts)
        if name == self._forbidden:
            raise MisroutedError(
                "TopicInvalid", "it names the dead-letter topic, which takes no messages; correct or delete the row"
            )
        if name in (".", "..") or not _LEGAL.fullmatch(name):
            variables = " and ".join(variable for variable, _ in self._variables)
            raise MisroutedError(
                "TopicInvalid",
                f"its {variables} makes no legal topic name (1 to 249 letters, digits, dots, dashes and underscores);"
                " correct or delete the row",
            )
        if len(self._names) >= _CACHED_NAMES:
            self._names.clear()
        self._names[values] = name
        return name


def waves(rows: Sequence[Row], place: Callable[[Row], Place | None]) -> list[list[Row]]:
    """Split a batch so that in each part all rows of a key have one place; what `place` cannot tell has one of its own.

    Each row is in the same part as the row of its key before it, or in a later one. There is at least one part.
    """
    parts: list[list[Row]] = [[]]
    latest: dict[bytes, tuple[Place | None, int]] = {}
    for row in rows:
        key = row.key
        if key is None:
            parts[0].append(row)
            continue
        where = place(row)
        before = latest.get(key)
        number = 0
        if before is not None:
            number = before[1] if before[0] == where else before[1] + 1
        latest[key] = where, number
        if number == len(parts):
            parts.append([])
        parts[number].append(row)
    return parts
