"""Names and labels of what belongs to an OutboxRelay. They are frozen: a changed name would orphan objects,
and a Deployment's selector cannot be changed at all.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

MANAGED_BY: Final = "outboxrelay-operator"

NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
PAIR_LABEL: Final = "outboxrelay.io/pair"

CONFIG_DIGEST_ANNOTATION: Final = "outboxrelay.io/config-digest"
TEMPLATE_DIGEST_ANNOTATION: Final = "outboxrelay.io/template-digest"
APPLIED_DIGEST_ANNOTATION: Final = "outboxrelay.io/applied-digest"
SECRETS_ANNOTATION: Final = "outboxrelay.io/secrets-changed"

OWNED_SELECTOR: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
"""Selects everything the operator made, of all OutboxRelays."""

_MAX_PAIR = 52
"""Room for the pod's name, which must be a DNS label: Deployment name, template hash (10) and dash."""

_MAX_LABEL = 63
_MAX_OBJECT = 253


def _hash(*parts: str, length: int) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:length]


def pair_name(*, relay: str, database: str, topic: str) -> str:
    """Name of a pair and of its Deployment: a DNS label that differs whenever one of the three does.

    The hash keeps `a-b` + `c` apart from `a` + `b-c`. Where the middle has to go it is longer, since it is then
    all that tells two pairs apart.
    """
    readable = f"{relay}-{database}-{topic}".replace(".", "-")
    suffix = _hash(relay, database, topic, length=6)
    if len(readable) + 1 + len(suffix) > _MAX_PAIR:
        suffix = _hash(relay, database, topic, length=10)
        half = (_MAX_PAIR - 2 - len(suffix)) // 2
        readable = f"{readable[:half].rstrip('-')}-{readable[-half:].strip('-')}"
    return f"{readable}-{suffix}"


def instance_label(relay: str) -> str:
    """The OutboxRelay's name as a label value."""
    return _shortened(relay, limit=_MAX_LABEL)


def shared_name(relay: str) -> str:
    """Name of the objects that all relays of one OutboxRelay share: config map, service account, network policy."""
    return _shortened(relay, limit=_MAX_OBJECT - len("-relays")) + "-relays"


def _shortened(name: str, *, limit: int) -> str:
    if len(name) <= limit:
        return name
    suffix = _hash(name, length=10)
    return f"{re.sub('[^a-z0-9]+$', '', name[: limit - 1 - len(suffix)])}-{suffix}"


def labels(relay: str) -> dict[str, str]:
    """Labels of everything that belongs to one OutboxRelay."""
    return {
        NAME_LABEL: "outboxrelay",
        COMPONENT_LABEL: "relay",
        MANAGED_BY_LABEL: MANAGED_BY,
        INSTANCE_LABEL: instance_label(relay),
    }


def selector(relay: str) -> str:
    """Label selector for everything that belongs to one OutboxRelay."""
    return f"{OWNED_SELECTOR},{INSTANCE_LABEL}={instance_label(relay)}"
