"""What a dead letter says, beside what the fault tests have of it."""

from __future__ import annotations

from typing import Any

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of
from outboxrelay.ports import DeadLetter, Header, Row, RowFault, WideRow
from outboxrelay.publishers.dead_letter import LetterHeaders
from outboxrelay.publishers.formats.choice import header_source, plain_header_source
from tests.unit.relay.world import World


def letter(row: Row, *, topic: str = "t", columns: dict[str, Any] | None = None, **changes: Any) -> list[Header]:
    """The headers of a row's letter."""
    document = World().config.model_dump() | changes
    document["kafka"]["topic"] = topic
    document["table"]["columns"] |= columns or {}
    config = RelayConfig.model_validate(document)
    headers = LetterHeaders(
        header_source(config),
        topic=topic,
        source="s",
        wall=lambda: 0.0,
        extras=extras_of(config),
        plain=plain_header_source(config),
    )
    headers.letters = {row.id: DeadLetter(RowFault(row, "HeadersInvalid", "m"), 3)}
    return headers.build(row)


def wide(*more: bytes | int | None) -> WideRow:
    return tuple.__new__(WideRow, (1, b"k", b"p", b"t", None, None, 1, *more))


def test_a_letter_says_where_and_when_its_row_was_to_go() -> None:
    columns = {"partition": "part", "created_at": "at"}
    found = dict(
        letter(wide(b"orders", 77, 1_700_000_000_123), topic="out.${route}", columns=columns, timestamps="CreatedAt")
    )
    assert found["outbox-error-topic"] == b"out.orders"
    assert found["outbox-error-route"] == b"orders"
    assert found["outbox-error-partition"] == b"77"
    assert found["outbox-error-created-at"] == b"1700000000123"
    assert "outbox-error-topic-column" not in found


def test_a_letter_keeps_what_makes_no_name_of_a_topic() -> None:
    both = {"topic": "destination"}
    found = dict(letter(wide(b"or der", b"\xff"), topic="${route}.${topic}", columns=both))
    assert found["outbox-error-topic"] == b"${route}.${topic}"
    assert (found["outbox-error-route"], found["outbox-error-topic-column"]) == (b"or der", b"\xff")
    found = dict(letter(wide(None, b"x"), topic="${route}.${topic}", columns=both))
    assert (found["outbox-error-route"], found["outbox-error-topic-column"]) == (None, b"x")


def test_a_letter_of_a_row_that_chooses_nothing_has_none_of_these() -> None:
    names = [name for name, _ in letter(wide())]
    assert "outbox-error-topic" in names
    assert not {name for name in names if name.removeprefix("outbox-error-") in {"route", "partition", "created-at"}}


@pytest.mark.parametrize(
    ("type_", "headers", "expected"),
    [
        (None, b'{"a": "1"}', [("outbox-id", b"d.public.outbox:1"), ("a", b"1")]),
        (b"", b"[1", [("outbox-id", b"d.public.outbox:1"), ("outbox-type", b"")]),
        (b"t", b'{"a": "1"}', [("ce_specversion", b"1.0")]),
    ],
)
def test_a_row_that_makes_no_cloud_event_makes_a_letter(
    type_: bytes | None, headers: bytes, expected: list[Header]
) -> None:
    """What a CloudEvent must have and the row has not, no letter may wait for."""
    found = letter(Row(1, b"k", b"p", type_, headers, None, 1), format="CloudEvents")
    assert found[: len(expected)] == expected
    assert (("outbox-error-headers", headers) in found) == (headers == b"[1")


def test_a_letter_of_a_timed_event_is_made_with_and_without_its_format() -> None:
    columns = {"created_at": "at", "extra_headers": ({"column": "trace", "header": "traceparent"},)}
    found = letter(wide(b"00-1", b"2026-01-02T03:04:05Z"), columns=columns, format="CloudEvents")
    assert ("ce_time", b"2026-01-02T03:04:05Z") in found
    bare = wide(b"00-1", b"2026-01-02T03:04:05Z")._replace(type=None)
    found = letter(bare, columns=columns, format="CloudEvents")
    assert found[:2] == [("outbox-id", b"d.public.outbox:1"), ("traceparent", b"00-1")]
