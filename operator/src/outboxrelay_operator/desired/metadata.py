"""Metadata that all owned objects share."""

from __future__ import annotations

from typing import Any

from outboxrelay_operator.api import API_VERSION, KIND
from outboxrelay_operator.names import labels
from outboxrelay_operator.pairs import Owner

Object = dict[str, Any]


def metadata(owner: Owner, name: str) -> Object:
    """Name, labels and the owner reference, by which the garbage collector removes the object."""
    return {
        "name": name,
        "namespace": owner.key.namespace,
        "labels": labels(owner.key.name),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": owner.key.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
