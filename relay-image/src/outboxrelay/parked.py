"""Rows that cannot be sent as they are, and the keys they hold back.

The first answer to a row fault is to park: the row stays in the table, no later row of its key is read (so order
holds), and it is tried again with exponential back-off. Outages never come here. Pure but for its own memory;
the clock's readings are passed in.

Details are kept of as many rows as the caller's `limit` says. Of further ones, the crowd, only key and id are kept, and
all of them are tried again together: good rows behind any usual number of faulty ones must pass.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from outboxrelay.ports import Batch, Row, RowFault
from outboxrelay.report import RowFaultReason
from outboxrelay.retry import delay

CROWD_ROWS: Final = 100_000
CROWD_KEY_BYTES: Final = 8 * 1024 * 1024

UNCHARGED: Final[frozenset[RowFaultReason]] = frozenset({"TopicMissing", "TopicAuthorizationFailed"})
"""Faults that park a row and are no attempt of it.

Brokers give the same answers while they start, before they have heard of a new topic, and while an ACL is withdrawn:
that is an outage, and no row may be given up for one.
"""


@dataclass(slots=True)
class Entry:
    """One parked row. Times are monotonic seconds; `released` means that its key is read again."""

    fault: RowFault
    attempts: int
    first_failed_at: float
    next_attempt_at: float
    charged: int = 0
    """How many of the attempts count towards giving the row up."""
    released: bool = False
    lane: int | None = None
    """The lane that it halts, with policy Halt."""


class Crowd:
    """The rows beyond those of which details are kept: held like them, but all of them are let go at once.

    Bounded by `rows` and by the bytes of their keys. Each pass that ends with a crowd again doubles the wait.
    """

    def __init__(
        self,
        *,
        minimum: float,
        maximum: float,
        rng: random.Random,
        rows: int,
        key_bytes: int,
    ) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._rng = rng
        self._rows = rows
        self._room = self._key_bytes = key_bytes
        self._passes = 0
        self._due = 0.0
        self.keys: dict[bytes, int] = {}
        self.ids: set[int] = set()

    def __len__(self) -> int:
        return len(self.keys) + len(self.ids)

    def has(self, row: Row) -> bool:
        """Whether the row is one of these."""
        return row.id in self.ids if row.key is None else self.keys.get(row.key) == row.id

    def leave(self, row: Row) -> None:
        """Let go of one row, if it is here."""
        if row.key is None:
            self.ids.discard(row.id)
        elif self.keys.get(row.key) == row.id:
            del self.keys[row.key]
            self._room += len(row.key)

    def join(self, row: Row, now: float) -> bool:
        """Hold the row's key, or the row; False if there is no room."""
        size = 0 if row.key is None else len(row.key)
        if len(self) >= self._rows or size > self._room:
            return False
        if not self:
            if now >= self._due + self._maximum:
                self._passes = 0
            self._passes += 1
            self._due = now + delay(attempt=self._passes, minimum=self._minimum, maximum=self._maximum, rng=self._rng)
        self._room -= size
        if row.key is None:
            self.ids.add(row.id)
        else:
            self.keys[row.key] = row.id
        return True

    def is_due(self, now: float) -> bool:
        """Whether their time has come."""
        return bool(self) and now >= self._due

    def release_due(self, now: float) -> int | None:
        """Let go of all if their time has come; the lowest row id among them, or None."""
        return self.clear() if self.is_due(now) else None

    def clear(self) -> int:
        """Let go of all; the lowest row id among them. There must be some."""
        lowest = min([*self.keys.values(), *self.ids])
        self.keys.clear()
        self.ids.clear()
        self._room = self._key_bytes
        return lowest


class ParkedRows:
    """At most one row per key, and single rows that have no key."""

    def __init__(self, *, minimum: float, maximum: float, limit: int, rng: random.Random) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._limit = limit
        self._rng = rng
        self._by_key: dict[bytes, Entry] = {}
        self._by_id: dict[int, Entry] = {}
        self._crowd = Crowd(minimum=minimum, maximum=maximum, rows=CROWD_ROWS, key_bytes=CROWD_KEY_BYTES, rng=rng)
        self._held: tuple[list[bytes], list[int]] | None = None

    def __len__(self) -> int:
        return len(self._by_key) + len(self._by_id) + len(self._crowd)

    def park(self, fault: RowFault, now: float) -> int | None:
        """Hold the row's key (or the row, if it has none) until the next attempt.

        Returns how often it failed because of itself, as far as is known: of the crowd it is not counted. None if there
        is no room even in the crowd: then nothing is held.
        """
        charge = int(fault.reason not in UNCHARGED)
        row = _light(fault.row)
        self._held = None
        entry = self._entry(row)
        if entry is None:
            if len(self._by_key) + len(self._by_id) >= self._limit:
                return charge if self._crowd.join(row, now) else None
            entry = self._admit(row, Entry(fault=fault, attempts=0, first_failed_at=now, next_attempt_at=now))
        elif entry.fault.row.id != row.id:
            entry.attempts = entry.charged = 0
            entry.first_failed_at = now
        entry.fault = replace(fault, row=row)
        self._failed(entry, now, charge=charge)
        return entry.charged

    def _admit(self, row: Row, entry: Entry) -> Entry:
        if row.key is None:
            self._by_id[row.id] = entry
        else:
            self._by_key[row.key] = entry
        return entry

    def _failed(self, entry: Entry, now: float, *, charge: int) -> None:
        entry.attempts += 1
        entry.charged += charge
        entry.released = False
        entry.next_attempt_at = now + delay(
            attempt=entry.attempts, minimum=self._minimum, maximum=self._maximum, rng=self._rng
        )

    def forget(self, rows: Collection[Row]) -> None:
        """These rows have left the table: their keys are free."""
        self._forget(row.id for row in rows)
        for row in rows:
            self._crowd.leave(row)
        self._held = None

    def halt(self, faults: Iterable[tuple[RowFault, int]], now: float) -> None:
        """Hold back the whole lanes of these parked rows, each for as long as its rows are parked.

        Of the lowest row of a lane details are kept even beyond the limit: by it the lane is tried again.
        """
        lowest = {lane: entry.fault.row.id for lane, entry in self._lowest_halted().items()}
        for fault, lane in faults:
            row = _light(fault.row)
            entry = self._entry(row)
            if entry is not None and entry.fault.row.id == row.id:
                entry.lane = lane
            elif self._crowd.has(row) and row.id < lowest.get(lane, row.id + 1):
                self._crowd.leave(row)
                self._held = None
                fault = replace(fault, row=row)
                entry = Entry(fault=fault, attempts=0, first_failed_at=now, next_attempt_at=now, lane=lane)
                self._failed(self._admit(row, entry), now, charge=1)
            else:
                continue
            lowest[lane] = min(row.id, lowest.get(lane, row.id))

    def halted(self) -> frozenset[int]:
        """Lanes that are held back as a whole."""
        return frozenset(self._lowest_halted())

    def on_trial(self) -> tuple[int, int] | None:
        """A halted lane that is to be tried again, and the id of the row by which: the lowest that halts it."""
        tried = ((lane, entry) for lane, entry in self._lowest_halted().items() if entry.released)
        return next(((lane, entry.fault.row.id) for lane, entry in tried), None)

    def _lowest_halted(self) -> dict[int, Entry]:
        """Of each halted lane the lowest of the rows that halt it."""
        lowest: dict[int, Entry] = {}
        for entry in self._entries():
            if entry.lane is not None:
                best = lowest.setdefault(entry.lane, entry)
                if entry.fault.row.id < best.fault.row.id:
                    lowest[entry.lane] = entry
        return lowest

    def _whose_turn(self) -> list[Entry]:
        """The entries that are tried again when they are due: of a halted lane only the lowest."""
        free = [entry for entry in self._entries() if entry.lane is None]
        return [*free, *self._lowest_halted().values()]

    def annotate(self, row: Row, message: str) -> None:
        """Say more about a parked row, if details of it are kept."""
        entry = self._entry(row)
        if entry is not None and entry.fault.row.id == row.id:
            entry.fault = replace(entry.fault, message=message)

    def _entry(self, row: Row) -> Entry | None:
        return self._by_id.get(row.id) if row.key is None else self._by_key.get(row.key)

    def release_due(self, now: float) -> int | None:
        """Let go of the keys whose next attempt is due; the lowest row id among them, or None."""
        lowest = self._crowd.release_due(now)
        if lowest is not None:
            self._held = None
        for entry in self._whose_turn():
            if not entry.released and entry.next_attempt_at <= now:
                entry.released = True
                self._held = None
                row_id = entry.fault.row.id
                lowest = row_id if lowest is None else min(lowest, row_id)
        return lowest

    def stirs(self, now: float) -> bool:
        """Whether a row is being tried again, or is due to be."""
        return self._crowd.is_due(now) or any(
            entry.released or entry.next_attempt_at <= now for entry in self._whose_turn()
        )

    def held_keys(self) -> list[bytes]:
        """Keys that must not be read now; the same list until something changes."""
        return self._held_now()[0]

    def held_ids(self) -> list[int]:
        """Rows without a key that must not be read now; the same list until something changes."""
        return self._held_now()[1]

    def _held_now(self) -> tuple[list[bytes], list[int]]:
        if self._held is None:
            self._held = (
                [*(key for key, entry in self._by_key.items() if not entry.released), *self._crowd.keys],
                [*(row_id for row_id, entry in self._by_id.items() if not entry.released), *self._crowd.ids],
            )
        return self._held

    def settled(self, ids: Iterable[int]) -> None:
        """Forget the released rows among `ids`: they were sent."""
        gone = set(ids)
        self._forget(row_id for row_id in self._released_ids() if row_id in gone)

    def seen(self, batch: Batch, *, lane: int | None = None) -> None:
        """Forget released rows that this read would have returned if they were still in the table.

        `lane`: it was a read of this halted lane alone; else of none that is halted.
        """
        looked_for = {entry.fault.row.id for entry in self._entries() if entry.released and entry.lane == lane}
        if not looked_for:
            return
        present = {row.id for row in batch.rows}
        end = batch.rows[-1].id if batch.rows else None
        self._forget(
            row_id
            for row_id in looked_for
            if row_id not in present and (batch.complete or (end is not None and row_id < end))
        )

    def ids(self) -> list[int]:
        """The rows of which details are kept."""
        return [entry.fault.row.id for entry in self._entries()]

    def keep(self, ids: Collection[int]) -> int | None:
        """Forget all but these rows: another relay has the others' lanes now. Returns the lowest id forgotten.

        The crowd is forgotten as a whole.
        """
        self._held = None
        gone = [row_id for row_id in self.ids() if row_id not in ids]
        self._forget(gone)
        if self._crowd:
            gone.append(self._crowd.clear())
        return min(gone, default=None)

    def oldest(self, count: int) -> list[Entry]:
        """Up to `count` entries, the longest parked first."""
        return sorted(self._entries(), key=lambda entry: entry.first_failed_at)[:count]

    def _entries(self) -> list[Entry]:
        return [*self._by_key.values(), *self._by_id.values()]

    def _released_ids(self) -> list[int]:
        return [entry.fault.row.id for entry in self._entries() if entry.released]

    def _forget(self, row_ids: Iterable[int]) -> None:
        gone = set(row_ids)
        if not gone:
            return
        self._held = None
        for key in [key for key, entry in self._by_key.items() if entry.fault.row.id in gone]:
            del self._by_key[key]
        for row_id in gone & self._by_id.keys():
            del self._by_id[row_id]


def _light(row: Row) -> Row:
    """The row as it is kept: one too large for the broker, by whatever column, is the last thing to have in memory."""
    return Row._make(row[: len(Row._fields)])._replace(payload=None, headers=None)
