"""The request to end, set from a signal handler and waited for in the loop.

Not a `threading.Event`: its lock is not re-entrant, so a handler that runs while the same thread is inside `wait`
could block for ever. Must stay light, since it is imported before the handlers are in place.
"""

from __future__ import annotations

import os

from outboxrelay.readable import readable


class StopSignal:
    """Set once, never cleared; may be set from a signal handler and waited for in several threads."""

    def __init__(self) -> None:
        self._set = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    @property
    def wakeup(self) -> int:
        """For `signal.set_wakeup_fd`: whoever waits is woken by the signal itself.

        A handler runs in the main thread alone, and not before a call of a driver or of the resolver has come back.
        """
        return self._writer

    def set(self) -> None:
        """Ask the process to end."""
        if not self._set:
            self._set = True
            # Never read again: whoever waits now or later finds the pipe readable.
            os.write(self._writer, b"!")

    def is_set(self) -> bool:
        """Whether the process shall end."""
        return self._set

    def wait(self, timeout: float | None, *, also: int | None = None) -> bool:
        """Sleep up to `timeout` seconds (None: for ever), or until the request comes; returns `is_set`.

        `also`: a file descriptor; the sleep also ends when there is something to read from it.
        """
        descriptors = [self._reader] if also is None else [self._reader, also]
        if self._reader in readable(*descriptors, within=timeout):
            # The handler may not have run yet.
            self._set = True
        return self._set
