"""The headers that Debezium's outbox event router gives a message, so that consumers notice no change of relay.

The router (io.debezium.transforms.outbox.EventRouter with its defaults) adds one header, `id`, with the event's id. Key
and value are those of the columns. Kafka Connect writes them as text with its StringConverter, and headers with its
default SimpleHeaderConverter.
"""

from __future__ import annotations

from typing import Final

from outboxrelay.ports import Header, Row
from outboxrelay.publishers.headers import HeaderBuilder

ID_HEADER: Final = "id"


class DebeziumHeaders(HeaderBuilder):
    """`HeaderSource` of this format: the event's id, then what the headers column holds, which Debezium has not."""

    def __init__(self) -> None:
        super().__init__(id_prefix="", reserved=frozenset({ID_HEADER}))

    def build(self, row: Row) -> list[Header]:
        """See `HeaderSource.build`."""
        message_id = row.message_id
        headers: list[Header] = [(ID_HEADER, b"%d" % row.id if message_id is None else message_id)]
        if row.headers is not None:
            headers.extend(self.column(row.headers))
        return headers
