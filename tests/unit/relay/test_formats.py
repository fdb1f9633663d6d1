"""The headers of each format; key and value are the row's own in all of them."""

from __future__ import annotations

from typing import Any

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of
from outboxrelay.ports import Row, WideRow
from outboxrelay.publishers.formats.choice import header_source, null_payloads_pass
from outboxrelay.publishers.headers import HeadersInvalidError
from tests.unit.relay.world import World

ROW = Row(17, b"k", b"{}", b"OrderPlaced", b'{"trace": "1", "id": "x", "ce_id": "x", "ce_tenant": "t"}', None, 10)


def config(**changes: Any) -> RelayConfig:
    return RelayConfig.model_validate(World().config.model_dump() | changes)


def test_debezium_names_the_event_by_its_id_and_nothing_else() -> None:
    build = header_source(config(format="Debezium")).build
    assert build(ROW._replace(headers=None)) == [("id", b"17")]
    assert build(ROW._replace(headers=None, message_id=b"0a-1b")) == [("id", b"0a-1b")]
    assert build(ROW) == [("id", b"17"), ("trace", b"1"), ("ce_id", b"x"), ("ce_tenant", b"t")]


def test_null_payloads_pass_as_with_debezium_only() -> None:
    assert null_payloads_pass(config(format="Debezium"))
    assert not null_payloads_pass(config())
    assert not null_payloads_pass(config(format="CloudEvents"))


def test_a_cloud_event_has_its_attributes_in_headers() -> None:
    build = header_source(config(format="CloudEvents")).build
    assert build(ROW) == [
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/shop/r/d"),
        ("content-type", b"application/json"),
        ("ce_id", b"d.public.outbox:17"),
        ("ce_type", b"OrderPlaced"),
        ("trace", b"1"),
        ("id", b"x"),
        ("ce_tenant", b"t"),
    ]
    given = header_source(
        config(format="CloudEvents", cloud_events={"source": "urn:shop", "content_type": "text/plain"})
    ).build(ROW._replace(headers=None, message_id=b"m"))
    assert given == [
        ("ce_specversion", b"1.0"),
        ("ce_source", b"urn:shop"),
        ("content-type", b"text/plain"),
        ("ce_id", b"m"),
        ("ce_type", b"OrderPlaced"),
    ]


def test_a_cloud_event_has_no_attribute_without_a_value() -> None:
    """An attribute that an event has not is left out, by the specification; other headers may be without a value."""
    table = World().config.table.model_dump(by_alias=True)
    table["columns"]["extra_headers"] = ({"column": "a", "header": "ce_subject"}, {"column": "b", "header": "n"})
    row = tuple.__new__(WideRow, (*ROW._replace(headers=b'{"ce_x": null, "y": null}', message_id=b""), None, None))
    assert header_source(config(format="CloudEvents", table=table)).build(row)[3:] == [
        ("ce_id", b"d.public.outbox:17"),
        ("ce_type", b"OrderPlaced"),
        ("y", None),
        ("n", None),
    ]


WHEN = b"2026-01-02T03:04:05.678901Z"


def timed(*extra_headers: dict[str, str], **changes: Any) -> RelayConfig:
    table = World().config.table.model_dump(by_alias=True)
    table["columns"] |= {"created_at": "c", "extra_headers": extra_headers}
    return config(**({"format": "CloudEvents", "table": table} | changes))


def test_a_cloud_event_happened_when_its_row_was_created() -> None:
    build = header_source(timed()).build
    plain = header_source(config(format="CloudEvents")).build(ROW)
    assert build(tuple.__new__(WideRow, (*ROW, WHEN))) == [*plain, ("ce_time", WHEN)]
    assert build(tuple.__new__(WideRow, (*ROW, None))) == plain
    # Two of a name would be two times.
    named = ROW._replace(headers=b'{"ce_time": "then"}')
    assert build(tuple.__new__(WideRow, (*named, WHEN)))[5:] == [("ce_time", WHEN)]
    assert header_source(config(format="CloudEvents")).build(named)[5:] == [("ce_time", b"then")]


def test_a_column_of_its_own_says_better_when_a_cloud_event_happened() -> None:
    row = tuple.__new__(WideRow, (*ROW._replace(headers=None), b"then"))
    assert header_source(timed({"column": "happened", "header": "ce_time"})).build(row)[5:] == [("ce_time", b"then")]


def test_no_other_format_pays_for_the_time() -> None:
    assert extras_of(timed(format="Plain")) == extras_of(timed(format="Debezium")) == ()


@pytest.mark.parametrize("kind", [None, b""])
def test_a_cloud_event_without_a_type_is_at_fault(kind: bytes | None) -> None:
    with pytest.raises(HeadersInvalidError, match="must have one"):
        header_source(config(format="CloudEvents")).build(ROW._replace(type=kind))


@pytest.mark.parametrize("name", ["Plain", "Debezium", "CloudEvents"])
def test_columns_become_headers_in_every_format(name: str) -> None:
    table = World().config.table.model_dump(by_alias=True)
    table["columns"]["extra_headers"] = ({"column": "a", "header": "traceparent"}, {"column": "b", "header": "n"})
    plain = header_source(config(format=name)).build(ROW)
    row = tuple.__new__(WideRow, (*ROW, b"00-1", None))
    assert header_source(config(format=name, table=table)).build(row) == [*plain, ("traceparent", b"00-1"), ("n", None)]
