"""`outboxrelay bench`: writes rows as an application would, at a chosen pace, to see whether the relays keep up.

The rows are real: whoever consumes the topic gets them. Knows nothing of tables; who writes is handed in. Each writer
has keys of its own, since nobody locks a key before its row is written.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from outboxrelay.draining import Backlog
from outboxrelay.stop import StopSignal
from outboxrelay.wording import counted

_LOOK_SECONDS: Final = 0.1
_NAP_SECONDS: Final = 0.2
"""How long a writer sleeps before it sees that another one has failed."""

_STEP: Final = 1.02
"""Between the bounds within which durations are counted: what is told of them is at most so much too high."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is written."""

    rows_per_second: float
    """Of all writers; 0 for as fast as it goes."""

    seconds: float
    writers: int = 1
    rows_per_transaction: int = 1
    keys: int = 10_000


class Writer(Protocol):
    """Writes rows."""

    def write(self, keys: Sequence[int]) -> None:
        """Commit one transaction with a row for each key; raises `StoreError`."""

    def close(self) -> None:
        """End; never raises."""


class Bench(BaseModel):
    """What was written, and whether the relays kept up."""

    model_config = ConfigDict(frozen=True)

    table: str
    rows: int
    transactions: int
    writers: int
    payload_bytes: int
    seconds: float
    rows_per_second: float
    wanted_rows_per_second: float | None = Field(description="None: as fast as it went")
    commit_p50_seconds: float | None = Field(description="Of a transaction, from its begin to its commit")
    commit_p99_seconds: float | None
    looked: bool = Field(description="Whether it was waited for the relays")
    none_waits_after_seconds: float | None = Field(
        default=None, description="From the last commit until no row of the pair waited; None: not seen"
    )

    def text(self) -> str:
        """For people."""
        wanted = "as fast as it goes"
        if self.wanted_rows_per_second is not None:
            wanted = f"{self.wanted_rows_per_second:,.0f} rows/s wanted"
        written = counted(f"{self.rows:,}", "row")
        inside = counted(f"{self.transactions:,}", "transaction")
        by = counted(self.writers, "writer")
        lines = [
            f"written  {written} of {self.payload_bytes:,} B in {inside} by {by} into {self.table}",
            f"pace     {self.rows_per_second:,.0f} rows/s for {self.seconds:.1f} s ({wanted})",
        ]
        if self.commit_p50_seconds is not None and self.commit_p99_seconds is not None:
            p50, p99 = self.commit_p50_seconds * 1000, self.commit_p99_seconds * 1000
            lines.append(f"commit   p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        seen = (
            "rows waited still when the bench ended; `outboxrelay lag` tells more" if self.looked else "not looked at"
        )
        if self.none_waits_after_seconds is not None:
            seen = f"no row waited {self.none_waits_after_seconds:.1f} s after the last commit"
        return "\n".join([*lines, f"relayed  {seen}"]) + "\n"


@dataclass(slots=True)
class Tally:
    """Transactions and how long they took; its size does not grow with their number."""

    rows: int = 0
    transactions: int = 0
    _steps: Counter[int] = field(default_factory=Counter)

    def note(self, *, rows: int, seconds: float) -> None:
        """Count one transaction."""
        self.rows += rows
        self.transactions += 1
        self._steps[math.ceil(math.log(max(seconds, 1e-6), _STEP))] += 1

    def add(self, other: Tally) -> None:
        """Count those of another one."""
        self.rows += other.rows
        self.transactions += other.transactions
        self._steps.update(other._steps)

    def percentile(self, share: float) -> float | None:
        """The seconds within which this share of the transactions was done; None if there was none."""
        left = math.ceil(share * self.transactions)
        for step, number in sorted(self._steps.items()):
            left -= number
            if left <= 0:
                return _STEP**step
        return None


def generate(
    load: Load, writers: Sequence[Writer], *, stop: StopSignal, clock: Callable[[], float], rng: Random
) -> tuple[Tally, float]:
    """Write until the time is over or the request to end comes; returns what was written, and in how many seconds.

    Raises:
        StoreError: by a writer, once the others have ended, too.
    """
    failed = threading.Event()
    began = clock()

    def ended() -> bool:
        return failed.is_set() or stop.is_set()

    def work(number: int) -> Tally:
        tally, pace = Tally(), load.rows_per_second / load.writers
        try:
            while not ended():
                now = clock()
                due = began + tally.rows / pace if pace else now
                if max(due, now) >= began + load.seconds:
                    break
                if due > now:
                    stop.wait(min(due - now, _NAP_SECONDS))
                    continue
                keys = [rng.randrange(number, load.keys, load.writers) for _ in range(load.rows_per_transaction)]
                writers[number].write(keys)
                tally.note(rows=len(keys), seconds=clock() - now)
        except BaseException:
            failed.set()
            raise
        return tally

    total = Tally()
    with ThreadPoolExecutor(load.writers, thread_name_prefix="writer") as pool:
        for one in pool.map(work, range(load.writers)):
            total.add(one)
    return total, clock() - began


def await_none(
    backlog: Backlog, *, within_seconds: float, stop: StopSignal, clock: Callable[[], float]
) -> float | None:
    """The seconds until no row waited; None if some still do at the end of the time, or of the process.

    Raises:
        StoreError: the database cannot be asked.
    """
    began = clock()
    try:
        while not stop.is_set() and clock() - began < within_seconds:
            if not backlog.any():
                return clock() - began
            stop.wait(_LOOK_SECONDS)
        return None
    finally:
        backlog.close()
