"""What one more look at the load teaches: what a relay can send, and since when fewer would have been enough. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from outboxrelay_operator.scale import UNKNOWN_SECONDS, Calm, Limits, Load, Resting, Scale

RESERVE: Final = 0.05
"""Fewer relays must have this much to spare: what is between the two thresholds moves no count."""

PROOF_SECONDS: Final = 15.0
"""How long relays must be busy before a low rate counts: they report a mean over ten seconds, up to five late."""

FADE_SECONDS: Final = 15.0
"""Time constant with which a higher rate of before is forgotten."""

HELD_BACK: Final = 0.5
"""Relays that do less than this part of what they can, while rows are parked, may hold back the rows of parked keys."""

HELD_BACK_SECONDS: Final = 60.0
"""Rows behind a parked key rest: a backlog that moves by more than relays send in so long is not made of them."""


def learned(load: Load, limits: Limits, before: Scale, *, now: float) -> Scale:
    """What is remembered after this look, with the count still as it was."""
    busy_since = (before.busy_since if before.busy_since is not None else now) if load.busy else None
    busy_seconds = 0.0 if busy_since is None else now - busy_since
    held = _resting(load, before)
    rate = _rate(load, before, busy_seconds, held, now=now)
    held = None if rate is not None and max(load.pod_rates, default=0.0) >= HELD_BACK * rate else held
    after = replace(before, rate_per_pod=rate, busy_since=busy_since, resting=held, at=now)
    enough = _enough(load, limits, after)
    if enough is not None:
        return replace(after, calm=_calmer(before, enough, now=now), unknown_since=None)
    unknown_since = now if before.unknown_since is None else before.unknown_since
    calm = before.calm if now - unknown_since < UNKNOWN_SECONDS else ()
    return replace(after, calm=calm, unknown_since=unknown_since)


def _resting(load: Load, before: Scale) -> Resting | None:
    """How far the backlog has moved since rows are parked, which may be why relays send little."""
    if load.parked is None and load.rows is not None:
        return before.resting
    if load.parked == 0 or load.rows is None:
        return None
    if before.resting is None:
        return Resting(load.rows, load.rows)
    return Resting(min(before.resting.lowest, load.rows), max(before.resting.highest, load.rows))


def _rate(load: Load, before: Scale, busy_seconds: float, held: Resting | None, *, now: float) -> float | None:
    """The best of the relays is what counts: one that is slow, or has no keys to send, says nothing of the others."""
    best, known = max(load.pod_rates, default=0.0), before.rate_per_pod
    if best <= 0.0:
        return known
    if known is not None and best >= known:
        return best
    # While rows are parked, those of their keys wait, too, and make relays look busy.
    moved = 0 if held is None else held.highest - held.lowest
    flowing = load.parked == 0 or moved > HELD_BACK_SECONDS * (known or best) * max(1, before.replicas)
    if busy_seconds < PROOF_SECONDS or not flowing:
        return known
    if known is None:
        return best
    return best + (known - best) * math.exp(min(0.0, before.at - now) / FADE_SECONDS)


def _enough(load: Load, limits: Limits, known: Scale) -> int | None:
    """The fewest relays that would do, with a reserve; None if that is not known."""
    if load.idle:
        return 0
    if load.rows is None or load.blocked or load.arrival is None:
        return None
    if known.rate_per_pod is None:
        # They keep up, so one less may: the load will tell.
        return max(1, known.replicas - 1 if load.keeping_up else known.replicas)
    need, _ = needed(load, limits, known.rate_per_pod, known.resting)
    return limits.enough_for(need / (1.0 - RESERVE))


def needed(load: Load, limits: Limits, rate: float, held: Resting | None) -> tuple[float, bool]:
    """Relays that the load asks for, as a fraction; and whether rows that nobody can send now were left out.

    What comes on top of the rows that rest is work like any other: one parked row must not hide a growing backlog.
    """
    backlog = load.rows or 0
    if held is not None:
        backlog = backlog - held.lowest if any(load.pod_rates) else 0
    return ((load.arrival or 0.0) + backlog / limits.spec.catch_up_seconds) / rate, held is not None


def _calmer(before: Scale, enough: int, *, now: float) -> tuple[Calm, ...]:
    """The calm after so many relays were found to be enough."""
    kept = tuple(calm for calm in before.calm if enough <= calm.replicas < before.replicas)
    if enough >= before.replicas or (kept and kept[-1].replicas == enough):
        return kept
    # Fewer were enough since then, and so these.
    since = next((calm.since for calm in before.calm if calm.replicas < enough), now)
    return (*kept, Calm(enough, since))
