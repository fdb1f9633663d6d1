"""The PodDisruptionBudget of one pair: a drain of nodes takes one of its relays at a time.

It is made for a pair that may have more than one relay; of a single one it would only repeat what is so anyway. Relays
that are not ready may always be evicted, or one that cannot start would keep a node from being drained.
"""

from __future__ import annotations

from outboxrelay_operator.api.spec import OutboxRelaySpec
from outboxrelay_operator.desired.applied import marked
from outboxrelay_operator.desired.metadata import Object, metadata
from outboxrelay_operator.names import NAME_LABEL, PAIR_LABEL
from outboxrelay_operator.pairs import Owner, Pair


def may_have_several(spec: OutboxRelaySpec) -> bool:
    """Whether a pair may have more than one relay; what autoscaling wants at the moment does not matter."""
    most = spec.replicas if spec.autoscaling is None else spec.autoscaling.max_replicas
    return most > 1


def disruption_budget(owner: Owner, pair: Pair) -> Object:
    """The budget bears the pair's name, as its Deployment does."""
    meta = metadata(owner, pair.name)
    meta["labels"] = meta["labels"] | {PAIR_LABEL: pair.name}
    return marked(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta,
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": {NAME_LABEL: "outboxrelay", PAIR_LABEL: pair.name}},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    )
