"""CloudEvents in the binary content mode of the Kafka protocol binding 1.0.2.

The value is the event's data as it is; the attributes are headers that begin with `ce_`, and the media type is the
header `content-type`. See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md.
"""

from __future__ import annotations

from typing import Final

from outboxrelay.extras import EVENT_TIME_HEADER
from outboxrelay.ports import Header, Row
from outboxrelay.publishers.headers import HeaderBuilder, HeadersInvalidError

ATTRIBUTE_PREFIX: Final = "ce_"
SPEC_VERSION: Final = ("ce_specversion", b"1.0")
ID_HEADER: Final = "ce_id"
SOURCE_HEADER: Final = "ce_source"
TYPE_HEADER: Final = "ce_type"
CONTENT_TYPE_HEADER: Final = "content-type"
RESERVED: Final = frozenset({SPEC_VERSION[0], ID_HEADER, SOURCE_HEADER, TYPE_HEADER, CONTENT_TYPE_HEADER})


class CloudEventHeaders(HeaderBuilder):
    """`HeaderSource` of this format. The headers column may hold extension attributes, as `ce_name`, and others."""

    def __init__(self, *, id_prefix: str, source: str, content_type: str, timed: bool = False) -> None:
        """`source` is a URI reference; together with `id_prefix` and the row's id it tells all events apart.

        `timed`: a column makes the attribute `time`, so the headers column may not.
        """
        reserved = RESERVED | {EVENT_TIME_HEADER} if timed else RESERVED
        super().__init__(id_prefix=id_prefix, reserved=reserved, type_header=TYPE_HEADER)
        self._always: tuple[Header, ...] = (
            SPEC_VERSION,
            (SOURCE_HEADER, source.encode()),
            (CONTENT_TYPE_HEADER, content_type.encode()),
        )

    def build(self, row: Row) -> list[Header]:
        """See `HeaderSource.build`."""
        if not row.type:
            raise HeadersInvalidError("its type is empty, and a CloudEvent must have one")
        headers: list[Header] = [*self._always, (ID_HEADER, self.message_id(row)), self.type(row.type)]
        if row.headers is not None:
            headers.extend(header for header in self.column(row.headers) if not lacks_value(header))
        return headers

    def message_id(self, row: Row) -> bytes:
        """As of `HeaderBuilder`; an id that is empty is none."""
        return super().message_id(row if row.message_id else row._replace(message_id=None))


def lacks_value(header: Header) -> bool:
    """Whether it is an attribute without a value, which an event must not have."""
    name, value = header
    return value is None and name.startswith(ATTRIBUTE_PREFIX)
