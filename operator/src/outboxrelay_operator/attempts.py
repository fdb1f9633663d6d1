"""How soon an object may be sent to the API server again. Pure.

News of pods and databases start passes all the time, so the back-off of the work queue holds nothing back: an
object that is refused, or that somebody else changes back at once, has a pause of its own, longer each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.workqueue import Backoff

_BACKOFF = Backoff(first=1.0, longest=60.0, jitter=0.0)
"""Without jitter, so that all objects that one quota refuses stay together in one pass."""

_QUIET_SECONDS = 2 * _BACKOFF.longest
"""An object that was left alone for so long is applied at once again."""

_CONTESTED = 5

What = tuple[str, str]
"""Kind, or what is done with it, and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The newest attempt at one object, and how many there were in a row."""

    wanted: str
    at: float
    times: int
    failed: bool
    finding: Finding | None
    """What the pair's status says of it."""

    @property
    def not_before(self) -> float:
        """When the next attempt may be made. The first repair of what was applied need not wait."""
        waits = self.times if self.failed else self.times - 1
        return self.at + (_BACKOFF.delay(waits, chance=0.5) if waits else 0.0)

    @property
    def contested(self) -> bool:
        """Whether this is the moment to say that somebody else changes the object back."""
        return not self.failed and self.times == _CONTESTED


class Attempts:
    """The attempts at the objects of one OutboxRelay. `wanted` is a digest: what is new need not wait."""

    def __init__(self) -> None:
        self._newest: dict[What, Attempt] = {}

    def waiting(self, what: What, wanted: str, *, now: float) -> Attempt | None:
        """The attempt after which it is too early for another one; None if it may be made."""
        newest = self._newest.get(what)
        early = newest is not None and newest.wanted == wanted and newest.at <= now < newest.not_before
        return newest if early else None

    def made(
        self, what: What, wanted: str, *, now: float, failed: bool = False, finding: Finding | None = None
    ) -> Attempt:
        """Note an attempt."""
        before = self._newest.get(what)
        again = (
            before is not None
            and (before.wanted, before.failed) == (wanted, failed)
            and now - before.at <= _QUIET_SECONDS
        )
        times = before.times + 1 if before is not None and again else 1
        newest = Attempt(wanted=wanted, at=now, times=times, failed=failed, finding=finding)
        self._newest[what] = newest
        return newest
