"""Events of Kubernetes, on transitions only, with fixed texts: names and numbers are in the status. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from outboxrelay_operator import conditions as catalogue
from outboxrelay_operator.api import API_VERSION, KIND
from outboxrelay_operator.conditions import BY_WORD, DATABASE_REACHABLE, READY, SLO_MET, Reason
from outboxrelay_operator.display import timestamp
from outboxrelay_operator.names import MANAGED_BY
from outboxrelay_operator.observed import Object
from outboxrelay_operator.pairs import Owner


def transitions(owner: Owner, *, before: Object, after: Object, now: float, pod: str) -> list[Object]:
    """The Events to post for what changed between two statuses.

    They tell of Ready, SloMet, relays that have to poll, letters and what autoscaling decided.
    """
    return [
        _event(owner, reason, normal=normal, now=now, pod=pod)
        for tell in (_readiness, _scalings, _slo, _polling, _letters)
        for reason, normal in tell(before, after)
    ]


News = tuple[Reason, bool]
"""Reason of an Event, and whether it is a normal one."""


def _readiness(before: Object, after: Object) -> Iterator[News]:
    old, new = _condition(before, READY), _condition(after, READY)
    if new is None or (old is not None and (old["status"], old["reason"]) == (new["status"], new["reason"])):
        return
    reason = BY_WORD[new["reason"]]
    if old is None and reason.word == "Starting":
        return
    yield reason, reason.ready or reason.word in catalogue.CALM


def _scalings(before: Object, after: Object) -> Iterator[News]:
    old = {pair["name"]: pair.get("desiredReplicas", 0) for pair in before.get("pairs", ())}
    steps = [
        pair["desiredReplicas"] - old[pair["name"]]
        for pair in after.get("pairs", ())
        if "scaling" in pair and pair["name"] in old
    ]
    if any(step > 0 for step in steps):
        yield catalogue.SCALED_UP, True
    if any(step < 0 for step in steps):
        yield catalogue.SCALED_DOWN, True


def _slo(before: Object, after: Object) -> Iterator[News]:
    """By what the pairs missed, which outlasts a gap in the measurements."""
    old, new = (any(pair.get("sloMissed") for pair in status.get("pairs", ())) for status in (before, after))
    if new and not old:
        yield catalogue.SLO_MISSED, False
    elif old and not new and _condition(after, SLO_MET) is not None:
        yield catalogue.SLO_MET_AGAIN, True


def _polling(before: Object, after: Object) -> Iterator[News]:
    old, new = ((_condition(status, DATABASE_REACHABLE) or {}).get("reason") for status in (before, after))
    for reason in catalogue.POLLING_REASONS:
        if new == reason.word != old:
            yield reason, False


def _letters(before: Object, after: Object) -> Iterator[News]:
    old = {pair["name"]: _letter_count(pair) for pair in before.get("pairs", ())}
    for pair in after.get("pairs", ()):
        known, count = old.get(pair["name"], 0), pair.get("deadLettered", 0)
        if known is not None and count > known:
            yield catalogue.DEAD_LETTERED, False
            return


def _letter_count(pair: Object) -> int | None:
    """None if relays that run did not say; what they count later may be old."""
    count: int | None = pair.get("deadLettered")
    return 0 if count is None and not pair.get("replicas") else count


def _event(owner: Owner, reason: Reason, *, normal: bool, now: float, pod: str) -> Object:
    when = timestamp(now)
    suffix = hashlib.sha256(f"{owner.uid}{reason.word}{now}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{owner.key.name[:230].rstrip('-.')}.{suffix}", "namespace": owner.key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        },
        "type": "Normal" if normal else "Warning",
        "reason": reason.word,
        "message": reason.text,
        "source": {"component": MANAGED_BY},
        "reportingComponent": MANAGED_BY,
        "reportingInstance": pod,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _condition(status: Object, kind: str) -> Object | None:
    return next((condition for condition in status.get("conditions", ()) if condition["type"] == kind), None)
