"""What the relay knows about itself, shared between the loop, which writes it, and the HTTP server, which reads it.

The loop assigns whole values and never waits; the reader takes what is there when it is asked. No lock is needed for
single assignments, and none may be added on the loop's side.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from outboxrelay.config import RelayConfig
from outboxrelay.parked import Entry
from outboxrelay.ports import Wake
from outboxrelay.report import Holder, LastError, ParkedRow, RelayReport, SideState

_RATE_WINDOW_SECONDS = 10.0
_PARKED_SHOWN = 10
_KEY_SHOWN_CHARACTERS = 200


class RateMeter:
    """Events a second over about the last ten seconds, in one-second slots."""

    def __init__(self, *, window: float = _RATE_WINDOW_SECONDS) -> None:
        self._window = window
        self._slots: deque[tuple[float, int]] = deque()
        self._started: float | None = None

    def add(self, count: int, now: float) -> None:
        """Count `count` events at `now` (monotonic seconds)."""
        if self._started is None:
            self._started = now
        second = float(int(now))
        if self._slots and self._slots[-1][0] == second:
            self._slots[-1] = (second, self._slots[-1][1] + count)
        else:
            self._slots.append((second, count))
            self._trim(now)

    def _trim(self, now: float) -> None:
        while self._slots and self._slots[0][0] < now - self._window:
            self._slots.popleft()

    def rate(self, now: float) -> float:
        """Events a second."""
        if self._started is None:
            return 0.0
        recent = sum(count for second, count in tuple(self._slots) if second >= now - self._window)
        return recent / max(1.0, min(self._window, now - self._started))


def show_key(key: bytes | None) -> str | None:
    """A key for people: text as far as it is text, cut to a length that fits a status."""
    return None if key is None else key.decode("utf-8", "backslashreplace")[:_KEY_SHOWN_CHARACTERS]


class StatusBoard:
    """Counters and states of one relay process."""

    def __init__(
        self,
        config: RelayConfig,
        *,
        pod: str,
        config_digest: str,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._pod = pod
        self._digest = config_digest
        self._monotonic = monotonic
        self._wall = wall
        self._started_at = wall()
        self._last_tick = monotonic()
        self.cycles = 0
        self.sent_rows = 0
        self.sent_bytes = 0
        self.batches = 0
        self.publish_seconds = 0.0
        """Spent on batches from their first message to the last acknowledgement, but for what the database took."""

        self.row_faults = 0
        self.halted_lanes: tuple[int, ...] = ()
        self.dead_lettered: dict[str, int] = {}
        """Rows that went to the dead-letter topic, by reason."""

        self.store_failures = 0
        self.publisher_failures = 0
        self.lanes_owned: tuple[int, ...] = ()
        self.members = 0
        self.partitions: int | None = None
        self.parked_total = 0
        self._parked: tuple[ParkedRow, ...] = ()
        self.last_error: LastError | None = None
        self.held_back_by: Holder | None = None
        self._rate = RateMeter()
        self.database = SideState(ok=False, reason="Starting", since=self._started_at)
        self.broker = SideState(ok=False, reason="Starting", since=self._started_at)
        self.wake: SideState | None = None

    def tick(self) -> None:
        """The loop is alive: a cycle, an idle one or one spent waiting, was completed."""
        self.cycles += 1
        self._last_tick = self._monotonic()

    def seconds_since_tick(self) -> float:
        """Age of the last completed cycle, seconds."""
        return self._monotonic() - self._last_tick

    def settled(self, *, rows: int, size: int) -> None:
        """Count rows acknowledged and removed."""
        self.batches += 1
        self.sent_rows += rows
        self.sent_bytes += size
        self._rate.add(rows, self._monotonic())

    def dead_lettered_one(self, reason: str) -> None:
        """Count a row that went to the dead-letter topic and was removed."""
        # A new dictionary each time, since other threads walk over it.
        self.dead_lettered = self.dead_lettered | {reason: self.dead_lettered.get(reason, 0) + 1}

    def database_is(self, *, ok: bool, reason: str, message: str = "") -> None:
        """Set the state of the database side."""
        self.database = self._state(self.database, ok=ok, reason=reason, message=message)

    def broker_is(self, *, ok: bool, reason: str, message: str = "") -> None:
        """Set the state of the Kafka side."""
        self.broker = self._state(self.broker, ok=ok, reason=reason, message=message)

    def wake_is(self, wake: Wake | None) -> None:
        """Set how new rows are known of."""
        before = self.wake or SideState(ok=False, reason="", since=self._wall())
        self.wake = None if wake is None else self._state(before, ok=wake.ok, reason=wake.reason, message=wake.message)

    def _state(self, before: SideState, *, ok: bool, reason: str, message: str) -> SideState:
        if (before.ok, before.reason, before.message) == (ok, reason, message):
            return before
        since = before.since if (before.ok, before.reason) == (ok, reason) else self._wall()
        return SideState(ok=ok, reason=reason, message=message, since=since)

    def failed(self, *, reason: str, message: str, row_id: int | None = None, key: bytes | None = None) -> None:
        """Remember the newest failure."""
        self.last_error = LastError(
            reason=reason,
            message=message,
            row_id=None if row_id is None else str(row_id),
            key=show_key(key),
            at=self._wall(),
        )

    def parked_are(self, *, total: int, oldest: Sequence[Entry]) -> None:
        """Set what is parked now; `oldest` are the entries to show."""
        offset = self._wall() - self._monotonic()
        self.parked_total = total
        self._parked = tuple(
            ParkedRow(
                row_id=str(entry.fault.row.id),
                key=show_key(entry.fault.row.key),
                reason=entry.fault.reason,
                message=entry.fault.message,
                attempts=entry.attempts,
                first_failed_at=entry.first_failed_at + offset,
                next_attempt_at=entry.next_attempt_at + offset,
            )
            for entry in oldest[:_PARKED_SHOWN]
        )

    @property
    def ready(self) -> bool:
        """Database and broker are both reachable."""
        return self.database.ok and self.broker.ok

    def rate(self) -> float:
        """Rows settled a second, over about the last ten seconds."""
        return self._rate.rate(self._monotonic())

    def report(self) -> RelayReport:
        """Everything, for /status."""
        return RelayReport(
            pod=self._pod,
            pair=self._config.pair.name,
            owner=self._config.pair.owner,
            started_at=self._started_at,
            now=self._wall(),
            cycles=self.cycles,
            sent_rows=self.sent_rows,
            sent_bytes=self.sent_bytes,
            rate_per_second=round(self.rate(), 1),
            lanes=self._config.lanes,
            lanes_owned=self.lanes_owned,
            members=self.members,
            database=self.database,
            broker=self.broker,
            partitions=self.partitions,
            parked_total=self.parked_total,
            parked=self._parked,
            row_faults=self.row_faults,
            dead_lettered=self.dead_lettered,
            halted_lanes=self.halted_lanes,
            last_error=self.last_error,
            held_back_by=self.held_back_by,
            wake=self.wake,
            config_digest=self._digest,
        )
