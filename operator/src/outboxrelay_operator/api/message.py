"""What messages look like: `spec.format` and what belongs to one of the formats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from outboxrelay_operator.api.fields import matching
from outboxrelay_operator.api.model import Model

Format = Literal["Plain", "Debezium", "CloudEvents"]

FORMAT_DESCRIPTION = (
    "What messages look like; key and value are always the columns' own bytes. Plain: headers outbox-id and "
    "outbox-type, then those of the headers column. Debezium: as its outbox event router makes them with string "
    "converters, so the header id, and SQL NULL becomes a tombstone in any topic. CloudEvents: binary content mode of "
    "the Kafka binding 1.0.2, so ce_id, ce_source, ce_specversion, ce_type and content-type, and ce_time from "
    "table.columns.createdAt if that is given; needs table.columns.type."
)


class CloudEvents(Model):
    source: (
        Annotated[
            str,
            matching(
                r"^[A-Za-z0-9._~:/?#\[\]@!$&\x27()*+,;=%-]+$",
                "a URI reference, such as /shop/orders or https://shop.example",
                min_length=1,
                max_length=1024,
            ),
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "The attribute source, a URI reference. Omitted: /namespace/name of this OutboxRelay/name of the database."
        ),
    )
    content_type: Annotated[
        str, matching(r"^[ -~]+/[ -~]+$", "a media type, such as application/json", min_length=3, max_length=256)
    ] = Field(default="application/json", description="The header content-type: the media type of the payload column.")
