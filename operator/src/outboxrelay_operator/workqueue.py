"""The keyed work queue between events and reconciles.

A key waits at most once, is worked on by at most one worker at a time, and a key that is added while it is being
worked on is worked on once more afterwards. What is urgent comes first, but does not keep all else waiting.
`Schedule` decides, with time passed in; `WorkQueue` adds the waiting.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

URGENT_IN_A_ROW = 3
"""How many urgent keys may overtake the others before it is the turn of one of those."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with jitter: the n-th failure waits first * 2^(n-1), at most `longest`, +- `jitter`."""

    first: float = 0.5
    longest: float = 60.0
    jitter: float = 0.2

    def delay(self, failures: int, *, chance: float) -> float:
        """Seconds to wait after `failures` failures in a row; `chance` is random, 0 to 1."""
        base = min(self.longest, self.first * 2.0 ** min(failures - 1, 32))
        return base * (1 + self.jitter * (2 * chance - 1))


class Schedule(Generic[K]):
    """Which key is next, and when. Knows no clock: every method is told the time in seconds."""

    def __init__(self, *, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._backoff = backoff
        self._chance = chance
        self._urgent: dict[K, None] = {}
        self._ready: dict[K, None] = {}
        """In the order in which they came."""

        self._overtakers = 0
        self._running: dict[K, bool] = {}
        """What is being worked on, and whether that was urgent."""

        self._owed: set[K] = set()
        """What was urgent and failed: it still is when it comes back."""

        self._again: dict[K, bool] = {}
        """To be worked on once more, and whether that is urgent."""

        self._failures: dict[K, int] = {}
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._order = itertools.count()

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Make a key ready; if it is being worked on, it becomes ready when that ends."""
        self._due.pop(key, None)
        if key in self._running:
            self._again[key] = urgent or self._again.get(key, False)
        elif urgent or key in self._owed:
            self._ready.pop(key, None)
            self._urgent.setdefault(key)
        elif key not in self._urgent:
            self._ready.setdefault(key)

    def add_at(self, key: K, when: float) -> None:
        """Make a key ready at `when`; of several delays the earliest counts, and `add` overtakes them all."""
        waits = key in self._urgent or key in self._ready or key in self._again
        if waits or self._due.get(key, when + 1) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._delayed, (when, next(self._order), key))

    def take(self, now: float) -> K | None:
        """The next ready key, which is then being worked on until `done`; None if no key is ready."""
        while self._delayed and self._delayed[0][0] <= now:
            when, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == when:
                self.add(key)
        overtakes = bool(self._urgent) and (not self._ready or self._overtakers < URGENT_IN_A_ROW)
        queue = self._urgent if overtakes else self._ready
        if not queue:
            return None
        self._overtakers = self._overtakers + 1 if overtakes else 0
        key = next(iter(queue))
        del queue[key]
        self._running[key] = overtakes
        self._owed.discard(key)
        return key

    def done(self, key: K, *, now: float, failed: bool) -> None:
        """The work on a key ended; after a failure the key comes back by itself, later each time."""
        urgent = self._running.pop(key)
        if failed:
            if urgent:
                self._owed.add(key)
            self._failures[key] = self._failures.get(key, 0) + 1
            self.add_at(key, now + self._backoff.delay(self._failures[key], chance=self._chance()))
        else:
            self._failures.pop(key, None)
        if key in self._again:
            self.add(key, urgent=self._again.pop(key))

    def next_due(self) -> float | None:
        """When the next delayed key becomes ready; None if there is none."""
        while self._delayed and self._due.get(self._delayed[0][2]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    @property
    def depth(self) -> int:
        """Keys that are ready or being worked on; delayed ones are not counted."""
        return len(self._urgent) + len(self._ready) + len(self._running)

    @property
    def pressed(self) -> bool:
        """Whether urgent keys wait for a worker."""
        return bool(self._urgent)


class WorkQueue(Generic[K]):
    """`Schedule` on the event loop's clock. Every method must be called on that loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        backoff: Backoff = Backoff(),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._schedule: Schedule[K] = Schedule(backoff=backoff, chance=chance)
        self._changed = asyncio.Event()
        self._closed = False
        self.last_tick = clock()
        """When a worker last looked for work, by `clock`: proof that the loop is alive."""

    @property
    def depth(self) -> int:
        """Keys that are ready or being worked on."""
        return self._schedule.depth

    @property
    def pressed(self) -> bool:
        """Whether urgent keys wait for a worker."""
        return self._schedule.pressed

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Reconcile a key as soon as a worker is free; if it is urgent, before others that wait."""
        self._schedule.add(key, urgent=urgent)
        self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile a key after some time, unless it is earlier for another reason."""
        self._schedule.add_at(key, self._clock() + seconds)
        self._changed.set()

    def close(self) -> None:
        """Let waiting workers end; what is being worked on may finish."""
        self._closed = True
        self._changed.set()

    async def take(self) -> K | None:
        """Wait for the next key; None when the queue is closed."""
        while True:
            self.last_tick = self._clock()
            if self._closed:
                self._changed.set()  # for the other workers
                return None
            key = self._schedule.take(self._clock())
            if key is not None:
                return key
            self._changed.clear()
            due = self._schedule.next_due()
            pause = _LONGEST_PAUSE if due is None else min(_LONGEST_PAUSE, max(0.0, due - self._clock()))
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K, *, failed: bool) -> None:
        """The work on a key ended; after a failure it comes back with back-off."""
        self._schedule.done(key, now=self._clock(), failed=failed)
        self._changed.set()


_LONGEST_PAUSE = 5.0
"""Bounds how old `last_tick` may become while there is nothing to do."""
