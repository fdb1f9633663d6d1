"""How many relays a pair should have, decided from what is known of its load. Pure: no I/O, no clock.

Capacity is not a setting: it is what relays have shown while rows waited for them. A count goes up as soon as the load
asks for it and down only after the load has been low for a whole window; what is unknown never takes it down. What a
decision has to remember is in `Scale`, which survives a restart of the operator as a part of the status.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from outboxrelay.wording import counted
from outboxrelay_operator.learning import learned, needed
from outboxrelay_operator.scale import (
    BLIND,
    BLOCKED,
    CALM,
    IDLE,
    INITIAL,
    KEPT_TO_MEASURE,
    LOAD,
    MAXIMUM,
    MINIMUM,
    PARTITIONS,
    ROWS_HELD_BACK,
    UNKNOWN,
    UNKNOWN_SECONDS,
    UNPROVEN,
    Limits,
    Load,
    Scale,
    lasting,
    set_back,
    ways_down,
)

TOLERANCE: Final = 0.05
"""A load this much above what the present relays can do adds none yet: the backlog that it makes will, if it stays."""

BLIND_FAILURES: Final = 3
"""After so many failed measurements in a row, a pair without relays gets one: it may reach what the operator cannot."""

BLIND_SECONDS: Final = 15.0
"""And after this time at least: a database that restarts must not start a pod for each pair that sleeps there."""


def first(present: int, limits: Limits, *, now: float) -> Scale:
    """The decision for a pair that never had one. `present` are the pods that it has already."""
    count = limits.clamped(max(1, present), None)
    message = f"{counted(count, 'pod')} to begin with: until the load and a pod's rate are known"
    return Scale(replicas=count, reason=INITIAL, message=message, changed_at=now, at=now)


def decide(load: Load, limits: Limits, before: Scale, *, now: float) -> Scale:
    """The next decision; deciding again at the same moment changes nothing. `now` is Unix time."""
    before = set_back(before, now=now)
    if load.partitions is None:
        load = replace(load, partitions=before.partitions)
    known = replace(learned(load, limits, before, now=now), partitions=load.partitions)
    count, reason, message = _choose(load, limits, known, now=now)
    if (count, reason) == (before.replicas, before.reason):
        return known
    changed_at = now if count != before.replicas else before.changed_at
    return replace(known, replicas=count, reason=reason, message=message, changed_at=changed_at)


Choice = tuple[int, str, str]


def _choose(load: Load, limits: Limits, known: Scale, *, now: float) -> Choice:
    """Count, reason and message."""
    present = limits.clamped(known.replicas, load.partitions)
    if load.rows is None:
        return _unseen(load, known, present=present, now=now)
    if load.blocked and present > 0:
        return present, BLOCKED, "no pod reaches both database and brokers: more or fewer would change nothing"
    if known.rate_per_pod is None and not load.keeping_up:
        count = max(present, 1)
        pods = counted(count, "pod")
        return count, UNPROVEN, f"rows wait, and no pod has shown yet how many it can send a second: {pods}"
    held_back = False
    if known.rate_per_pod is not None:
        need, held_back = needed(load, limits, known.rate_per_pod, known.resting)
        wanted = limits.enough_for(need / (1.0 + TOLERANCE)) if load.rows > 0 or need > 0 else 0
        if wanted > present > 0 and known.reason == PARTITIONS and load.partitions is None:
            # After a restart: the topic has no more of them only because no relay was asked yet.
            return present, PARTITIONS, known.message
        if wanted > present:
            return _up(load, limits, known, wanted=wanted)
    if known.unknown_since is not None and present > 0:
        return _unseen(load, known, present=present, now=now)
    return _down(load, limits, known, present=present, held_back=held_back, now=now)


def _unseen(load: Load, known: Scale, *, present: int, now: float) -> Choice:
    """What is not known keeps the count; a short gap is not even news."""
    gap = 0.0 if known.unknown_since is None else now - known.unknown_since
    failing = load.failures >= BLIND_FAILURES and gap >= BLIND_SECONDS
    if present == 0 and (failing or gap >= UNKNOWN_SECONDS):
        return 1, BLIND, "the backlog cannot be measured: a pod may reach the database all the same"
    if present == known.replicas and (known.reason == BLIND or gap < UNKNOWN_SECONDS):
        return present, known.reason, known.message
    return present, UNKNOWN, f"{counted(present, 'pod')} kept: how many rows wait and are written is not known"


def _up(load: Load, limits: Limits, known: Scale, *, wanted: int) -> Choice:
    count, because = limits.clamped(wanted, load.partitions), _because(load, limits, known)
    if count == wanted:
        return count, LOAD, because
    most = min(limits.spec.max_replicas, limits.lanes)
    if load.partitions is not None and load.partitions < most:
        return count, PARTITIONS, f"{because}: the topic has {counted(load.partitions, 'partition')}"
    if count < most:
        return count, MAXIMUM, f"{because}: at most {most}, which share {limits.lanes} lanes no better than {count}"
    return count, MAXIMUM, f"{because}: at most {counted(most, 'pod')}"


def _down(load: Load, limits: Limits, known: Scale, *, present: int, held_back: bool, now: float) -> Choice:
    """The load asks for no more than there is; it may have asked for less for long enough."""
    possible = (count for calm in known.calm for count, window in ways_down(calm, limits) if now - calm.since >= window)
    fewest = present if now < known.hold_until else min(possible, default=present)
    count = limits.clamped(min(present, fewest), load.partitions)
    if count == 0:
        return 0, IDLE, "no row waits and none was written lately: the next one starts a pod"
    if held_back:
        return count, ROWS_HELD_BACK, "parked rows hold back the rows of their keys: more pods would not send them"
    if count < present:
        return count, LOAD, f"fewer pods have been enough for {limits.spec.scale_down_after_seconds} s"
    if count == limits.spec.min_replicas and limits.kept_to_measure:
        return count, KEPT_TO_MEASURE, "1 pod kept: only pods see the next row, since the operator reads no Secrets"
    if count == limits.spec.min_replicas:
        return count, MINIMUM, f"the load asks for no more than minReplicas: {count}"
    if any(calm.replicas < count for calm in lasting(known, limits, now=now)):
        return count, CALM, f"{counted(count, 'pod')} kept until fewer have been enough for long enough"
    return count, LOAD, _because(load, limits, known)


def _because(load: Load, limits: Limits, known: Scale) -> str:
    arrival = "an unknown number of" if load.arrival is None else _rounded(load.arrival)
    written = counted(arrival, "row a second is written", "rows a second are written")
    waiting = "an unknown number" if load.rows is None else load.rows
    text = f"{written} and {counted(waiting, 'waits', 'wait')}"
    if known.rate_per_pod is None:
        return text
    return f"{text}; a pod sends {_rounded(known.rate_per_pod)}, catchUpSeconds is {limits.spec.catch_up_seconds}"


def _rounded(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{float(f'{value:.3g}'):.0f}"
