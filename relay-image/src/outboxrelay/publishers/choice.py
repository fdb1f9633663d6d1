"""Which publisher a configuration needs: the lean one, unless columns say where rows go or become headers."""

from __future__ import annotations

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of
from outboxrelay.publishers.headers import HeaderSource
from outboxrelay.publishers.kafka import KafkaPublisher
from outboxrelay.publishers.wide import WidePublisher


def kafka_publisher(
    config: RelayConfig, *, client_id: str, letters_of: RelayConfig | None = None, headers: HeaderSource | None = None
) -> KafkaPublisher:
    """A publisher that is not open yet; see `KafkaPublisher`. `letters_of`: it is for the dead letters of that one."""
    kind = WidePublisher if extras_of(letters_of or config) else KafkaPublisher
    return kind(config, client_id=client_id, headers=headers, null_payloads=letters_of is not None)
