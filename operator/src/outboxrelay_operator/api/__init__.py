"""The OutboxRelay resource as models: the only place that knows its fields, defaults and rules."""

from outboxrelay_operator.api.spec import MAX_PAIRS, OutboxRelaySpec

GROUP = "outboxrelay.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "OutboxRelay"
PLURAL = "outboxrelays"
SHORT_NAME = "obr"

__all__ = ["API_VERSION", "GROUP", "KIND", "MAX_PAIRS", "PLURAL", "SHORT_NAME", "VERSION", "OutboxRelaySpec"]
