"""What a consumer can prove about order, repeats and loss while messages arrive, in memory bounded by the keys.

Pure: no clock, no database, no broker. It rests on one property of the writers: the versions of a key are
1, 2, 3... without a gap among committed transactions, since a version is drawn under the key's row lock and
a rollback gives it back. So a gap in what arrives is a row that is lost or that comes too late.

What the consumer saw is compared with what the databases committed by `Audit`, batch after batch: a batch
that was compared is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Outcome = Literal["first", "repeat", "reordered"]


class Arrival(NamedTuple):
    """One message as the consumer received it."""

    key: str
    version: int
    digest: bytes
    """SHA-256 of the payload."""
    at: float
    """Unix time of receipt, seconds."""


class Committed(NamedTuple):
    """One row as its database committed it."""

    digest: bytes
    at: float
    """Unix time just before the commit, seconds."""


@dataclass(slots=True)
class _Key:
    highest: int = 0
    newest: int = 0  # version of the message that came last
    missing: set[int] = field(default_factory=set)  # empty unless something is wrong


class OrderChecker:
    """Per key: is this version the next one, one that was seen before, or one that a later one overtook?"""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        self.first = 0
        self.repeated = 0
        self.reordered = 0

    def observe(self, key: str, version: int) -> Outcome:
        """Take one message into account, in the order of arrival.

        A message that was overtaken is counted once as reordered; a later copy of it is a repeat.

        Raises:
            ValueError: if the version is below 1.
        """
        if version < 1:
            raise ValueError(f"version {version} of key {key!r}: versions begin at 1")
        state = self._keys.setdefault(key, _Key())
        state.newest = version
        if version > state.highest:
            state.missing.update(range(state.highest + 1, version))
            state.highest = version
            self.first += 1
            return "first"
        if version in state.missing:
            state.missing.remove(version)
            self.reordered += 1
            return "reordered"
        self.repeated += 1
        return "repeat"

    def delivered(self, key: str) -> int:
        """How many different versions of this key have arrived."""
        state = self._keys.get(key)
        return state.highest - len(state.missing) if state is not None else 0

    @property
    def keys(self) -> int:
        """How many keys have been seen."""
        return len(self._keys)

    def outdated(self) -> list[str]:
        """Keys whose last message is not their highest version: after a compaction of the topic they would be stale."""
        return [key for key, state in self._keys.items() if state.newest != state.highest]

    def undelivered(self, committed: Mapping[str, int]) -> dict[str, int]:
        """Keys of which less has arrived than was committed, with the number of rows that lack.

        Args:
            committed: number of committed rows of each key.
        """
        return {key: rows - seen for key, rows in committed.items() if (seen := self.delivered(key)) < rows}


@dataclass(slots=True)
class Audit:
    """The running comparison of arrivals with committed rows."""

    compared: int = 0
    altered: int = 0
    """Messages whose bytes differ from what was committed."""
    phantom: int = 0
    """Messages of rows that no transaction committed."""
    examples: list[str] = field(default_factory=list)
    """The first few findings, for people."""

    MAX_EXAMPLES = 5

    def compare(self, arrivals: Iterable[Arrival], ledger: Mapping[tuple[str, int], Committed]) -> list[float]:
        """Compare arrivals with the ledger's rows of the same keys and versions; returns the latencies in seconds."""
        latencies = []
        for arrival in arrivals:
            self.compared += 1
            row = ledger.get((arrival.key, arrival.version))
            if row is None:
                self.phantom += 1
                self._example(arrival, "was never committed")
                continue
            if row.digest != arrival.digest:
                self.altered += 1
                self._example(arrival, "arrived with other bytes than were committed")
            latencies.append(max(0.0, arrival.at - row.at))
        return latencies

    def _example(self, arrival: Arrival, what: str) -> None:
        if len(self.examples) < self.MAX_EXAMPLES:
            self.examples.append(f"{arrival.key} version {arrival.version} {what}")
