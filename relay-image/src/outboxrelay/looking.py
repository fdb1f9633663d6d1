"""Looks at the table for whoever asks /status?look, in a thread of its own that does nothing until asked.

An operator that reads no Secrets asks one relay of each pair every few seconds. Whoever else asks costs the database
no more: the next look comes no sooner than fifty times what the last one took.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Final, Protocol

from outboxrelay.ports import StoreError
from outboxrelay.report import Look, WaitingRows
from outboxrelay.retry import Backoff

_log = logging.getLogger(__name__)

_SHORTEST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 60.0
"""However much a look costs, the numbers are not to be older than this."""

_DUTY: Final = 50.0
"""A look that took d seconds is not repeated before d times this: at most 2 % of a server process."""

_FORGOTTEN_SECONDS: Final = 90.0
"""The session is ended when nobody has asked for so long."""


class Meter(Protocol):
    """Looks at the rows that wait."""

    def look(self) -> WaitingRows:
        """Raises `StoreError`."""

    def close(self) -> None:
        """End the session; never raises."""


class Looker:
    """The newest look, renewed when somebody asks and it is time."""

    def __init__(
        self, meter: Meter, *, monotonic: Callable[[], float], wall: Callable[[], float], rng: random.Random
    ) -> None:
        self._meter = meter
        self._monotonic = monotonic
        self._wall = wall
        self._changed = threading.Condition()
        self._backoff = Backoff(minimum=_SHORTEST_SECONDS, maximum=8.0, rng=rng)
        self._newest: Look | None = None
        self._not_before = 0.0
        self._wanted = False
        self._ended = False
        self._thread = threading.Thread(target=self.run, name="look", daemon=True)

    def start(self) -> None:
        """Begin to wait for somebody who asks."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless the database keeps it, and with it the session."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(timeout=1)

    def newest(self, *, within: float) -> Look | None:
        """The newest look; waits up to `within` seconds for a new one if it is time for that. None: there was none."""
        with self._changed:
            if self._monotonic() < self._not_before:
                return self._newest
            before, self._wanted = self._newest, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._newest is not before or self._ended, timeout=within)
            return self._newest

    def run(self) -> None:
        """Look whenever somebody asks, until the end."""
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._wanted or self._ended, timeout=_FORGOTTEN_SECONDS):
                    self._meter.close()
                    continue
                if self._ended:
                    self._meter.close()
                    return
            look, not_before = self._look()
            with self._changed:
                self._newest, self._not_before, self._wanted = look, not_before, False
                self._changed.notify_all()

    def _look(self) -> tuple[Look, float]:
        began, at = self._monotonic(), self._wall()
        try:
            waiting = self._meter.look()
        except StoreError as error:
            return self._failed(error, began=began, at=at)
        except Exception:
            # A fault of our own. Without this thread nobody would ever look again.
            _log.exception("unexpected fault while looking at the table; the next look starts with a new session")
            self._meter.close()
            fault = StoreError("DatabaseError", "looking at the table failed inside the relay; its log says where")
            return self._failed(fault, began=began, at=at)
        self._backoff.succeeded()
        cost = self._monotonic() - began
        repeat = max(_SHORTEST_SECONDS, min(_LONGEST_SECONDS, _DUTY * cost))
        return Look(at=at, repeat_seconds=repeat, waiting=waiting), began + repeat

    def _failed(self, error: StoreError, *, began: float, at: float) -> tuple[Look, float]:
        now = self._monotonic()
        repeat = now - began + self._backoff.failed(now)
        return Look(at=at, repeat_seconds=repeat, reason=error.reason, message=error.message), began + repeat
