"""Names of topics made of rows, and the waves in which a batch is sent."""

from __future__ import annotations

import random

import pytest

from outboxrelay.extras import FIRST, Extra, extras_of, header_positions, position
from outboxrelay.ports import Row, WideRow
from outboxrelay.publishers.routing import MisroutedError, TopicTemplate, is_template, waves
from tests.unit.relay.world import World


def wide(row_id: int, key: bytes | None, *more: bytes | int | None) -> WideRow:
    return tuple.__new__(WideRow, (row_id, key, b"p", b"t", None, None, 1, *more))


def test_a_template_takes_the_values_of_the_row() -> None:
    template = TopicTemplate("a.${route}.b-${topic}", {"route": FIRST, "topic": FIRST + 1})
    assert template.name(wide(1, b"k", b"order", b"x_1")) == "a.order.b-x_1"
    assert template.name(wide(2, b"k", b"", b"y")) == "a..b-y"


@pytest.mark.parametrize("value", [b"a b", b"caf\xc3\xa9", b"\xff", b"a/b", b"x" * 250, b"\n", b"${topic}"])
def test_an_illegal_name_is_the_rows_fault_and_not_quoted(value: bytes) -> None:
    template = TopicTemplate("${route}", {"route": FIRST})
    for _ in range(2):
        with pytest.raises(MisroutedError, match="no legal topic name") as caught:
            template.name(wide(1, b"k", value))
        assert caught.value.reason == "TopicInvalid"
        assert value.decode("utf-8", "replace") not in caught.value.message or value in (b"\n", b"a b")


@pytest.mark.parametrize("value", [b".", b"..", b""])
def test_names_that_kafka_reserves_are_illegal(value: bytes) -> None:
    with pytest.raises(MisroutedError):
        TopicTemplate("${route}", {"route": FIRST}).name(wide(1, b"k", value))


def test_null_makes_no_name() -> None:
    with pytest.raises(MisroutedError, match="its route is NULL"):
        TopicTemplate("x.${route}", {"route": FIRST}).name(wide(1, b"k", None))


def test_what_a_template_is() -> None:
    assert is_template("a.${route}")
    assert is_template("${topic}")
    assert not is_template("a.route")


def test_the_name_cache_is_bounded() -> None:
    template = TopicTemplate("${route}", {"route": FIRST})
    for number in range(10_010):
        template.name(wide(number, b"k", b"%d" % number))
    assert len(template._names) <= 10_000


@pytest.mark.parametrize("seed", range(30))
def test_waves_keep_each_keys_order_and_have_one_place_for_a_key(seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        wide(number, rng.choice([None, b"a", b"b", b"c"]), rng.choice([b"x", b"y", b"z"])) for number in range(1, 60)
    ]
    places = {row.id: (str(row[FIRST]), -1) if rng.random() < 0.9 else None for row in rows}
    parts = waves(rows, lambda row: places[row.id])
    assert sorted(row.id for part in parts for row in part) == [row.id for row in rows]
    for key in (b"a", b"b", b"c"):
        sent = [row.id for part in parts for row in part if row.key == key]
        assert sent == sorted(sent)
        for part in parts:
            assert len({places[row.id] for row in part if row.key == key}) <= 1
    assert all(row.key is not None for part in parts[1:] for row in part)


def test_rows_of_one_place_are_one_wave() -> None:
    rows = [wide(number, b"k%d" % (number % 3)) for number in range(20)]
    assert waves(rows, lambda _row: ("t", -1)) == [rows]
    assert waves([], lambda _row: None) == [[]]


def test_a_wide_row_keeps_its_further_columns_when_a_field_is_replaced() -> None:
    row = wide(7, b"k", b"x", 3)
    changed = row._replace(payload=None)
    assert (changed.payload, changed.id, tuple(changed[FIRST:])) == (None, 7, (b"x", 3))
    assert row.narrow == Row(7, b"k", b"p", b"t", None, None, 1)


def test_only_what_a_configuration_needs_is_read() -> None:
    config = World().config
    assert extras_of(config) == ()
    document = config.model_dump()
    document["kafka"] |= {"topic": "a.${route}"}
    document["timestamps"] = "CreatedAt"
    document["table"]["columns"] |= {
        "created_at": "c",
        "topic": "unused",
        "partition": "p",
        "extra_headers": ({"column": "x", "header": "h"},),
    }
    extras = extras_of(type(config).model_validate(document))
    assert extras == (
        Extra("route", "aggregatetype"),
        Extra("partition", "p"),
        Extra("timestamp", "c"),
        Extra("header", "x", "h"),
    )
    assert [position(extras, role) for role in ("route", "topic", "partition", "timestamp")] == [7, None, 8, 9]
    assert header_positions(extras) == (("h", 10),)
