"""Whether a new status is worth a write: OL-08 is the operator that wakes itself by its own status. Pure.

A flip of a condition and a pair's reason are written at once; counts of pods, which come and go in groups, and numbers
that moved far at most every five seconds; other numbers and texts at most every ten, and only if they moved visibly.
What did not move is not written again: a thousand resources at rest cost nothing. Only a pair that is about to be
scaled down is confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from outboxrelay_operator.display import unix

FAR_INTERVAL_SECONDS = 5.0
"""Between two writes while numbers move far."""

NEAR_INTERVAL_SECONDS = 10.0
"""Between two writes while only numbers and texts move."""

CONFIRM_SECONDS = 300.0
"""How old `measuredAt` of a pair may become while it waits to be scaled down: after a restart of the operator that
tells how much of the wait was watched."""

NOISE = 0.05
"""Smaller changes of a number than this part of it are noise."""

FAR = 0.25
"""Larger changes of a number than this part of it are what somebody waits for."""

_NUMBERS = frozenset(
    {
        "arrivalPerSecond",
        "backlog",
        "catchUpSeconds",
        "deadLettered",
        "lagSeconds",
        "parked",
        "ratePerPod",
        "ratePerSecond",
        "unrouted",
    }
)
_PODS = frozenset({"readyReplicas", "replicas", "replicasPerPair"})
_TEXTS = frozenset({"message", "lastError", "backlogExact", "lagExact", "blockedBy"})
_IGNORED = frozenset({"measuredAt", "display", "at", "lastTransitionTime"})


def delay(before: Mapping[str, Any], after: Mapping[str, Any], *, now: float, last_write: float) -> float | None:
    """Seconds to wait before `after` must be written over `before`: 0 is now, None is not at all.

    `now` and `last_write` are Unix times.
    """
    change = _compare(before, after)
    if change is Change.URGENT:
        return 0.0
    if change is not Change.NONE:
        interval = FAR_INTERVAL_SECONDS if change is Change.FAR else NEAR_INTERVAL_SECONDS
        # A clock that was set back has not seen the last write yet.
        return max(0.0, last_write + interval - now) if last_write <= now else 0.0
    waiting = (pair for pair in before.get("pairs", ()) if (pair.get("scaling") or {}).get("calm"))
    oldest = min((unix(pair["measuredAt"]) for pair in waiting if "measuredAt" in pair), default=now)
    return 0.0 if now - oldest >= CONFIRM_SECONDS else None


class Change(IntEnum):
    """How much two statuses differ."""

    NONE = 0
    NEAR = 1
    FAR = 2
    URGENT = 3


def _compare(before: Any, after: Any, key: str = "") -> Change:
    """The largest change of all parts."""
    if key in _IGNORED:
        return Change.NONE
    if key in _NUMBERS:
        return _moved(key, before, after)
    if key in _PODS:
        return Change.FAR if before != after else Change.NONE
    if key == "scaling" and before is not None and after is not None:
        # What was decided is in desiredReplicas; this only explains it.
        return min(Change.NEAR, _parts(before, after))
    if key in _TEXTS:
        return Change.NEAR if _words(before) != _words(after) else Change.NONE
    return _parts(before, after)


def _parts(before: Any, after: Any) -> Change:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        parts = [_compare(before.get(name), after.get(name), name) for name in before.keys() | after.keys()]
    elif isinstance(before, Sequence) and isinstance(after, Sequence) and not isinstance(after, str):
        if len(before) != len(after):
            return Change.URGENT
        parts = [_compare(one, other) for one, other in zip(before, after, strict=True)]
    else:
        return Change.URGENT if before != after else Change.NONE
    return max(parts, default=Change.NONE)


def _moved(key: str, before: float | None, after: float | None) -> Change:
    if before is None or after is None:
        return Change.FAR if before is not after else Change.NONE
    moved, largest = abs(after - before), max(abs(before), abs(after))
    if moved <= (max(NOISE * largest, 1) if key == "lagSeconds" else NOISE * largest):
        return Change.NONE
    return Change.FAR if moved > FAR * largest else Change.NEAR


def _words(value: Any) -> Any:
    """A last error without its time, which moves with every attempt."""
    return {name: part for name, part in value.items() if name != "at"} if isinstance(value, Mapping) else value
