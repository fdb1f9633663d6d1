"""What every client of the brokers has in common, whatever it is for: where they are, who we are, and what it said.

librdkafka tries for ever and tells why it fails only on the side; a request meanwhile just runs out of time. So the
side remarks are kept, and the one that says most counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from outboxrelay.config import RelayConfig
from outboxrelay.publishers.errors import tells_why

CONNECT_TIMEOUT_MS: Final = 5_000
"""A broker that is away may lose our packets instead of refusing them; librdkafka's 30 s would outlast its return."""

_FIRST_BACKOFF_MS: Final = 100
_LONGEST_BACKOFF_MS: Final = 3_600_000
"""librdkafka takes no longer one, and none that is shorter than the first."""

client_log = logging.getLogger("outboxrelay.librdkafka")
"""Takes librdkafka's own lines."""


def client_settings(config: RelayConfig, *, client_id: str, secured: Mapping[str, str]) -> dict[str, Any]:
    """Settings of any client; `secured` are those of `Security.settings`."""
    longest = min(_LONGEST_BACKOFF_MS, round(config.tuning.reconnect_max_seconds * 1000))
    return {
        "bootstrap.servers": ",".join(config.kafka.bootstrap_servers),
        "client.id": client_id,
        "socket.connection.setup.timeout.ms": CONNECT_TIMEOUT_MS,
        "reconnect.backoff.ms": min(_FIRST_BACKOFF_MS, longest),
        "reconnect.backoff.max.ms": longest,
        **config.kafka.settings.given(),
        **secured,
    }


class Remarks:
    """The newest error that a client told by its `error_cb`; a cause stays while only its consequences follow."""

    def __init__(self) -> None:
        self.latest: KafkaError | None = None

    def take(self, error: KafkaError) -> None:
        """The `error_cb`."""
        if self.latest is None or tells_why(error) or not tells_why(self.latest):
            self.latest = error

    def forget(self) -> None:
        """What was said is over."""
        self.latest = None
