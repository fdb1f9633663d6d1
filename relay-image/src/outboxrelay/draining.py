"""`outboxrelay drain`: tells when nothing of a pair waits any more, beside a loop that carries its rows.

A table is empty for the one who looks: a transaction that is still open may commit a row a moment later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from outboxrelay.ports import StoreError
from outboxrelay.stop import StopSignal

_LOOK_SECONDS: Final = 0.3
_AGAIN_SECONDS: Final = 2.0


class Backlog(Protocol):
    """Whether rows wait."""

    def any(self) -> bool:
        """Whether a row waits now; raises `StoreError`."""

    def close(self) -> None:
        """End; never raises."""


class Watch:
    """Ends the loop when nothing waits, or when the time is over."""

    def __init__(
        self, backlog: Backlog, *, stop: StopSignal, within_seconds: float | None, clock: Callable[[], float]
    ) -> None:
        """`within_seconds`: how long it may take; None for as long as it takes."""
        self._backlog = backlog
        self._stop = stop
        self._clock = clock
        self._deadline = None if within_seconds is None else clock() + within_seconds
        self.empty = False

    def start(self) -> threading.Thread:
        """Look in a thread of its own until the loop's end."""
        thread = threading.Thread(target=self.run, name="drain-watch", daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Look again and again; sets the stop request at the end."""
        try:
            while not self._stop.is_set():
                if self._look():
                    return
        finally:
            self._backlog.close()
            self._stop.set()

    def _look(self) -> bool:
        """One look and the pause after it; True when it was the last one."""
        pause = _LOOK_SECONDS
        try:
            if not self._backlog.any():
                self.empty = True
                return True
        except StoreError:
            # The loop meets the same trouble, and tells of it.
            pause = _AGAIN_SECONDS
        if self._deadline is not None and self._clock() >= self._deadline:
            return True
        return self._stop.wait(pause)
