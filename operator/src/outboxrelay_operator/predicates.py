"""Which events of the API server are news. Pure.

The operator's own status writes come back as events: what does not concern the spec must wake nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outboxrelay_operator.api import KIND
from outboxrelay_operator.observed import Sign, sign_of
from outboxrelay_operator.pairs import Key

Body = Mapping[str, Any]


class News:
    """Remembers what was last seen of each object."""

    def __init__(self) -> None:
        self._relays: dict[Key, Sign] = {}
        self._deployments: dict[tuple[str, str], tuple[Key, int]] = {}
        """By namespace and name the owner, and a hash of what matters: of thousands that is no small part."""

    def of_relay(self, event: str | None, body: Body) -> Key | None:
        """The resource to reconcile after an event of an OutboxRelay; None if nothing changed that matters."""
        meta = body["metadata"]
        key = Key(meta["namespace"], meta["name"])
        if event == "DELETED":
            self._relays.pop(key, None)
            return key
        sign = sign_of(body)
        if self._relays.get(key) == sign:
            return None
        self._relays[key] = sign
        return key

    def of_deployment(self, event: str | None, body: Body) -> Key | None:
        """The owner to reconcile after an event of a Deployment; None if nothing changed that matters."""
        meta, status = body["metadata"], body.get("status") or {}
        where = (meta["namespace"], meta["name"])
        known = self._deployments.get(where)
        key = _owner(meta) or (known[0] if known is not None else None)
        if event == "DELETED":
            self._deployments.pop(where, None)
            return key
        if key is None:
            return None
        matters = (
            sign_of(body),
            sorted((meta.get("labels") or {}).items()),
            meta.get("ownerReferences"),
            status.get("observedGeneration"),
            status.get("replicas"),
            status.get("readyReplicas"),
            status.get("updatedReplicas"),
            [_said(condition) for condition in status.get("conditions") or ()],
        )
        sign = hash(repr(matters))
        if known is not None and known[1] == sign:
            return None
        self._deployments[where] = (key, sign)
        return key


def _said(condition: Mapping[str, Any]) -> tuple[object, ...]:
    """What of a condition is shown. Only this message says more than the reason; others move by themselves."""
    message = condition.get("message") if condition.get("type") == "ReplicaFailure" else None
    return condition.get("type"), condition.get("status"), condition.get("reason"), message


def _owner(meta: Mapping[str, Any]) -> Key | None:
    for reference in meta.get("ownerReferences") or ():
        if reference.get("kind") == KIND and reference.get("controller"):
            return Key(meta["namespace"], reference["name"])
    return None
