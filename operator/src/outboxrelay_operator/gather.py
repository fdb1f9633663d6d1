"""Reads what a pass needs from the API server. Absent is None; nothing is decided here."""

from __future__ import annotations

from outboxrelay_operator.kube import Kind, Kube
from outboxrelay_operator.names import selector, shared_name
from outboxrelay_operator.observed import Object, Observed, parse
from outboxrelay_operator.pairs import Key


async def gather(kube: Kube, key: Key) -> Observed | None:
    """Read an OutboxRelay and its objects; None if it is gone or going. Raises `KubeError`."""
    relay = await kube.get(Kind.OUTBOX_RELAY, key.namespace, key.name)
    if relay is None or relay["metadata"].get("deletionTimestamp"):
        return None
    observed = parse(relay)
    for kind in (Kind.CONFIG_MAP, Kind.SERVICE_ACCOUNT, Kind.NETWORK_POLICY):
        shared = await kube.get(kind, key.namespace, shared_name(key.name))
        if shared is not None:
            observed.shared[kind.word] = shared
    for kind in (Kind.DEPLOYMENT, Kind.DISRUPTION_BUDGET):
        for live in await kube.list(kind, key.namespace, selector=selector(key.name)):
            observed.of_kind(kind.word)[live["metadata"]["name"]] = _without_managers(live)
    return observed


def _without_managers(obj: Object) -> Object:
    """Drop what nobody reads and what is most of an object's size."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj
