"""The field types that several models share: patterns and bounds, with the source of each limit.

Every string and list is bounded, because the API server estimates the cost of a CEL rule from the bounds of
what it touches and refuses a schema that could be too dear.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field


def matching(pattern: str, expected: str, *, min_length: int | None = None, max_length: int) -> Any:
    """A text of that pattern; a refusal says what is expected, beside the pattern that the API server shows.

    The pattern has no single quote. Lengths are in characters.
    """
    rule: dict[str, Any] = {"rule": f"self.matches(r'{pattern}')", "message": f"must be {expected}"}
    return Field(
        min_length=min_length,
        max_length=max_length,
        pattern=pattern,
        json_schema_extra={"x-kubernetes-validations": [rule]},
    )


DnsLabel = Annotated[
    str,
    matching(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "lower-case letters, digits and dashes, such as orders-db",
        min_length=1,
        max_length=63,
    ),
]
"""RFC 1123 label."""

ObjectName = Annotated[
    str,
    matching(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "the name of a Kubernetes object: lower-case letters, digits, dashes and dots, such as orders-db",
        min_length=1,
        max_length=253,
    ),
]
"""Name of a Kubernetes object: RFC 1123 subdomain."""

_A_KEY = "a key of a Secret: letters, digits, dots, dashes and _, such as username"

SecretKey = Annotated[str, matching(r"^[-._a-zA-Z0-9]+$", _A_KEY, min_length=1, max_length=253)]
"""Key in a Secret's data."""

OptionalSecretKey = Annotated[
    str, matching(r"^[-._a-zA-Z0-9]*$", f"{_A_KEY}; or empty, if there is none", max_length=253)
]
"""As `SecretKey`; the empty string says that the Secret holds no such value."""

_A_NAME = "a name as PostgreSQL stores it, without quotation marks around it and without control characters"

Identifier = Annotated[str, matching(r"^[^\x00-\x1f\x7f]+$", _A_NAME, min_length=1, max_length=63)]
"""PostgreSQL identifier, unquoted and case-sensitive; the server keeps 63 bytes (NAMEDATALEN - 1)."""

OptionalIdentifier = Annotated[
    str, matching(r"^[^\x00-\x1f\x7f]*$", f"{_A_NAME}; or empty, if there is none", max_length=63)
]
"""As `Identifier`; the empty string says that the table has no such column."""

HostName = Annotated[
    str,
    matching(
        r"^([a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F.]+)$",
        "one name or IP address without a port, such as orders-db.shop; ports have a field of their own",
        min_length=1,
        max_length=253,
    ),
]
"""DNS name or IP address. No list, no socket directory: libpq would take `a,b` and `/run` as such. Nor host:port, which
it would look up as a name; an IPv6 address has two colons at least."""

BootstrapServer = Annotated[
    str,
    matching(
        r"^(\[[0-9a-fA-F:]+\]|[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?):[0-9]{1,5}$",
        "one host with its port, such as kafka:9092",
        min_length=3,
        max_length=259,
    ),
]
"""host:port of a Kafka broker."""

TopicName = Annotated[
    str,
    matching(
        r"^[a-zA-Z0-9._-]+$", "letters, digits, dots, dashes and _, such as shop.dead", min_length=1, max_length=249
    ),
]
"""Kafka topic name (org.apache.kafka.common.internals.Topic: legal characters, 249 long, neither . nor ..)."""

TopicTemplate = Annotated[
    str,
    matching(
        r"^([a-zA-Z0-9._-]|[$][{]route[}]|[$][{]topic[}])+$",
        "letters, digits, dots, dashes, _, ${route} and ${topic}, such as shop.orders or outbox.event.${route}",
        min_length=1,
        max_length=249,
    ),
]
"""Kafka topic name in which ${route} and ${topic} stand for values of a row."""

HeaderName = Annotated[
    str,
    matching(
        r"^[^\x00-\x1f\x7f]+$",
        "the name of a header without control characters, such as traceparent",
        min_length=1,
        max_length=255,
    ),
]
"""Name of a message's header."""

_A_VALUE = "a value without the character 0, which no text of PostgreSQL holds"

RouteValue = Annotated[str, matching(r"^[^\x00]*$", _A_VALUE, max_length=128)]
"""One value of the route column."""

MarkValue = Annotated[str, matching(r"^[^\x00]*$", _A_VALUE, max_length=63)]
"""One value of a status column."""

_QUANTITY = r"^(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$"

Quantity = Annotated[
    str,
    Field(
        coerce_numbers_to_str=True,
        max_length=32,
        pattern=_QUANTITY,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            # The pattern is of the text alone; the rule sees a number, too.
            "x-kubernetes-validations": [
                {
                    "rule": f"string(self).matches(r'{_QUANTITY}')",
                    "message": "must be a quantity that is not negative, such as 100m or 256Mi",
                }
            ],
        },
    ),
]
"""Kubernetes quantity that is not negative."""
