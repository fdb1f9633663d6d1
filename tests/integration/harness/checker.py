"""Pure: compares what was committed with what arrived, and says what is lost, reordered, repeated or changed.

Rows are recognised by key and payload bytes alone, not by anything the relay adds: so a changed payload cannot
hide, and nothing here depends on how the relay identifies rows. Writers make every payload unique.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Committed:
    """One outbox row whose transaction committed; `version` counts the commits of its key, from 1."""

    row_id: int
    key: str | None
    version: int
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message; the order of one key is the order of the offsets in its partition."""

    partition: int
    offset: int
    key: bytes | None
    payload: bytes | None
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Reordered:
    """Two rows of one key whose first deliveries are the wrong way round."""

    key: str | None
    first: int
    then: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the committed rows. Rows are named by id, except `foreign`: those have none."""

    committed: int
    delivered: int
    lost: tuple[int, ...]
    foreign: tuple[Delivered, ...]
    reordered: tuple[Reordered, ...]
    outdated: tuple[str | None, ...]
    repeated: Mapping[int, int]
    scattered: tuple[str | None, ...]
    identity: tuple[str, ...]

    @property
    def repeats(self) -> int:
        """Messages beyond the first of each row."""
        return sum(self.repeated.values())

    def problems(
        self, *, repeatable: Collection[int] = (), most_repeats: int = 0, stood_still: bool = False
    ) -> list[str]:
        """Everything that breaks the delivery contract, in words.

        Args:
            repeatable: rows that were unsettled when a relay crashed, and so may be repeated.
            most_repeats: how many repeats the batches in flight at those crashes can explain.
            stood_still: whether a relay or a broker stood still beside a crash: a repeat that was on its way may then
                arrive behind a newer row (docs/delivery.md, "a fence against a frozen process").
        """
        beyond = sorted(set(self.repeated) - set(repeatable))
        found = [
            (self.lost, f"{len(self.lost)} rows lost"),
            (self.foreign, f"{len(self.foreign)} messages with bytes that nobody committed"),
            (self.reordered, f"{len(self.reordered)} pairs of one key reordered"),
            (
                () if stood_still else self.outdated,
                f"{len(self.outdated)} keys whose last message is not their newest row",
            ),
            (self.scattered, f"{len(self.scattered)} keys in several partitions"),
            (self.identity, f"{len(self.identity)} faults of the outbox-id header"),
            (beyond, f"{len(beyond)} rows repeated that were settled before any crash"),
        ]
        words = [f"{text}: {', '.join(map(str, items[:SHOWN]))}" for items, text in found if items]
        if self.repeats > most_repeats:
            words.append(f"{self.repeats} repeats where at most {most_repeats} rows were in flight at a crash")
        return words

    def __str__(self) -> str:
        return (
            f"committed {self.committed}, delivered {self.delivered}, lost {len(self.lost)}, "
            f"reordered {len(self.reordered)}, repeated {self.repeats}, foreign {len(self.foreign)}"
        )


def check(*, committed: Iterable[Committed], delivered: Iterable[Delivered]) -> Verdict:
    """Compare; `delivered` in any order.

    Raises:
        ValueError: when two committed rows cannot be told apart; that is a fault of the test.
    """
    known: dict[tuple[bytes | None, bytes | None], Committed] = {}
    for row in committed:
        seen_as = (row.key.encode() if row.key is not None else None, row.payload)
        if seen_as in known:
            raise ValueError(f"rows {known[seen_as].row_id} and {row.row_id} have the same key and payload")
        known[seen_as] = row
    messages = sorted(delivered, key=lambda message: (message.partition, message.offset))

    foreign: list[Delivered] = []
    arrivals: dict[str | None, list[Committed]] = defaultdict(list)
    partitions: dict[str | None, set[int]] = defaultdict(set)
    counts: Counter[int] = Counter()
    identities: dict[int, set[bytes | None]] = defaultdict(set)
    for message in messages:
        found = known.get((message.key, message.payload))
        if found is None:
            foreign.append(message)
            continue
        arrivals[found.key].append(found)
        partitions[found.key].add(message.partition)
        counts[found.row_id] += 1
        identities[found.row_id].add(message.headers.get("outbox-id"))
    newest: dict[str | None, int] = {}
    for row in known.values():
        newest[row.key] = max(row.version, newest.get(row.key, 0))
    # Rows without a key have no order and may go to any partition.
    keyed = {key: rows for key, rows in arrivals.items() if key is not None}
    return Verdict(
        committed=len(known),
        delivered=len(messages),
        lost=tuple(sorted(row.row_id for row in known.values() if row.row_id not in counts)),
        foreign=tuple(foreign),
        reordered=tuple(pair for key, rows in keyed.items() for pair in _reordered(key, rows)),
        outdated=tuple(key for key, rows in keyed.items() if rows[-1].version != newest[key]),
        repeated={row_id: count - 1 for row_id, count in counts.items() if count > 1},
        scattered=tuple(key for key in keyed if len(partitions[key]) > 1),
        identity=tuple(_identity_faults(identities)),
    )


def _reordered(key: str | None, rows: Iterable[Committed]) -> Iterable[Reordered]:
    """Neighbours among the first deliveries of one key that descend."""
    seen: set[int] = set()
    last: Committed | None = None
    for row in rows:
        if row.row_id in seen:
            continue
        seen.add(row.row_id)
        if last is not None and row.version < last.version:
            yield Reordered(key=key, first=last.row_id, then=row.row_id)
        last = row


def _identity_faults(identities: Mapping[int, set[bytes | None]]) -> Iterable[str]:
    """The header that lets consumers drop repeats: there, stable over repeats, and of one row only."""
    owners: dict[bytes, int] = {}
    for row_id, values in identities.items():
        if None in values:
            yield f"row {row_id} without outbox-id"
        elif len(values) > 1:
            yield f"row {row_id} with {len(values)} different outbox-ids"
        for value in values - {None}:
            if value is not None and owners.setdefault(value, row_id) != row_id:
                yield f"rows {owners[value]} and {row_id} with the same outbox-id {value!r}"
