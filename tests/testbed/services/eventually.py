"""Waiting for a condition with a deadline, and letting time pass on purpose: where the tests may sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DeadlineExceededError(AssertionError):
    """The condition did not come true in time; the message says what was awaited and what was seen last."""


def eventually(
    condition: Callable[[], T | None],
    *,
    seconds: float,
    what: str,
    interval_seconds: float = 0.05,
    tolerate: tuple[type[Exception], ...] = (),
    detail: Callable[[], str] | None = None,
) -> T:
    """Call `condition` until it returns something true, and return that.

    Args:
        seconds: how long to try; a generous bound, never a measure of speed.
        what: what is awaited, for the message.
        tolerate: errors of `condition` that mean "not yet".
        detail: adds to the message, for example the end of a log file.

    Raises:
        DeadlineExceededError: when the time is up.
    """
    deadline = time.monotonic() + seconds
    seen: object = "never called"
    while True:
        try:
            result = condition()
        except tolerate as error:
            seen = f"{type(error).__name__}: {error}"
        else:
            if result:
                return result
            seen = result
        if time.monotonic() >= deadline:
            more = f"\n{detail()}" if detail is not None else ""
            raise DeadlineExceededError(f"{what}: not within {seconds:g} s; last seen: {seen!r}{more}")
        time.sleep(interval_seconds)


def pass_time(seconds: float) -> None:
    """Let a fault last. Only for a duration that is part of the case itself, never in place of a condition."""
    time.sleep(seconds)
