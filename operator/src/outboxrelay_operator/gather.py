"""Reads what a pass needs from the API server. Absent is None; nothing is decided here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from outboxrelay_operator.kube import Kind, Kube
from outboxrelay_operator.names import INSTANCE_LABEL, OWNED_SELECTOR, instance_label, selector, shared_name
from outboxrelay_operator.observed import Observed, Versions, parse
from outboxrelay_operator.pairs import Key

_SHARED = (Kind.CONFIG_MAP, Kind.SERVICE_ACCOUNT, Kind.NETWORK_POLICY)
_OF_PAIRS = (Kind.DEPLOYMENT, Kind.DISRUPTION_BUDGET)


async def gather(kube: Kube, key: Key) -> Observed | None:
    """Read an OutboxRelay and its objects; None if it is gone or going. Raises `KubeError`."""
    relay = await kube.get(Kind.OUTBOX_RELAY, key.namespace, key.name)
    if relay is None or relay["metadata"].get("deletionTimestamp"):
        return None
    observed = parse(relay)
    for kind in _SHARED:
        shared = await kube.get(kind, key.namespace, shared_name(key.name))
        if shared is not None:
            observed.shared[kind.word] = shared
    for kind in _OF_PAIRS:
        for live in await kube.list(kind, key.namespace, selector=selector(key.name)):
            observed.of_kind(kind.word)[live["metadata"]["name"]] = live
    return observed


async def complete(kube: Kube, namespace: str | None, found: Iterable[Observed]) -> None:
    """Put their objects into OutboxRelays of a namespace, or of the cluster, as `gather` does. Raises `KubeError`.

    A thousand of them cost as many requests as one.
    """
    owners = {(one.owner.key.namespace, instance_label(one.owner.key.name)): one for one in found}
    for kind in (*_SHARED, *_OF_PAIRS):
        for live in await kube.list(kind, namespace, selector=OWNED_SELECTOR):
            meta = live["metadata"]
            observed = owners.get((meta["namespace"], _instance(meta)))
            if observed is None:
                continue
            if kind in _OF_PAIRS:
                observed.of_kind(kind.word)[meta["name"]] = live
            elif meta["name"] == shared_name(observed.owner.key.name):
                observed.shared[kind.word] = live


async def survey(kube: Kube, namespace: str | None) -> dict[Key, Versions]:
    """The versions of all OutboxRelays of a namespace, or of the cluster, and of their objects. Raises `KubeError`.

    A thousand of them cost as many requests as one.
    """
    owned: defaultdict[tuple[str, str], set[tuple[str, str, str]]] = defaultdict(set)
    for kind in (*_SHARED, *_OF_PAIRS):
        for meta in await kube.list_metadata(kind, namespace, selector=OWNED_SELECTOR):
            owned[meta["namespace"], _instance(meta)].add((kind.word, meta["name"], meta["resourceVersion"]))
    relays = await kube.list_metadata(Kind.OUTBOX_RELAY, namespace)
    return {
        Key(meta["namespace"], meta["name"]): frozenset(
            {
                (Kind.OUTBOX_RELAY.word, meta["name"], meta["resourceVersion"]),
                *owned[meta["namespace"], instance_label(meta["name"])],
            }
        )
        for meta in relays
    }


def _instance(meta: dict[str, Any]) -> str:
    return str((meta.get("labels") or {}).get(INSTANCE_LABEL, ""))
