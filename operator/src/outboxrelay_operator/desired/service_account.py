"""The service account of the relays of one OutboxRelay.

It has no right and no token: relays never talk to the API server. It is there so that they share none with others, and
so that policies, and OpenShift's security context constraints, can tell them from other pods.
"""

from __future__ import annotations

from outboxrelay_operator.desired.applied import marked
from outboxrelay_operator.desired.metadata import Object, metadata
from outboxrelay_operator.names import shared_name
from outboxrelay_operator.pairs import Owner


def service_account(owner: Owner) -> Object:
    """One for all pairs."""
    return marked(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(owner, shared_name(owner.key.name)),
            "automountServiceAccountToken": False,
        }
    )
