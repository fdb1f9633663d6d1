"""Headers: the relay's own, every shape of the column, what is refused, and the bounded cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxrelay.ports import Header, Row
from outboxrelay.publishers import headers
from outboxrelay.publishers.headers import HeaderBuilder, HeadersInvalidError, parse


def row(headers: bytes | None = None, *, kind: bytes | None = b"created", message_id: bytes | None = None) -> Row:
    return Row(17, b"k", b"p", kind, headers, message_id, 1)


def test_the_id_is_stable_and_names_database_table_and_row() -> None:
    builder = HeaderBuilder(id_prefix="shop.public.outbox:")
    assert builder.build(row(kind=None)) == [("outbox-id", b"shop.public.outbox:17")]


def test_a_name_may_hold_a_percent_sign() -> None:
    builder = HeaderBuilder(id_prefix="100%d.public.outbox:")
    assert builder.build(row(kind=None)) == [("outbox-id", b"100%d.public.outbox:17")]
    assert builder.message_id(row()) == b"100%d.public.outbox:17"


def test_the_senders_own_id_comes_first() -> None:
    assert HeaderBuilder(id_prefix="x").build(row(message_id=b"abc"))[0] == ("outbox-id", b"abc")


def test_type_and_column_follow() -> None:
    assert HeaderBuilder(id_prefix="x:").build(row(b'{"a": "1"}')) == [
        ("outbox-id", b"x:17"),
        ("outbox-type", b"created"),
        ("a", b"1"),
    ]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"{}", ()),
        (b"null", ()),
        (b"[]", ()),
        (b'{"s": "caf\xc3\xa9", "e": ""}', (("s", b"caf\xc3\xa9"), ("e", b""))),
        (
            b'{"i": 1, "f": 1.10, "big": 12345678901234567890}',
            (("i", b"1"), ("f", b"1.10"), ("big", b"12345678901234567890")),
        ),
        (b'{"t": true, "f": false, "n": null}', (("t", b"true"), ("f", b"false"), ("n", None))),
        (b'["a", "1", "a", "2"]', (("a", b"1"), ("a", b"2"))),
        (b'["a", null]', (("a", None),)),
        (b'{"a": "\\u0000"}', (("a", b"\x00"),)),
        (b'{"a": "\\ud800"}', (("a", b"\xed\xa0\x80"),)),
        (b'{"outbox-id": "forged", "outbox-type": "forged", "a": "1"}', (("a", b"1"),)),
    ],
)
def test_shapes_of_the_column(raw: bytes, wanted: tuple[tuple[str, bytes | None], ...]) -> None:
    assert parse(raw) == wanted


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'"text"',
        b"5",
        b'{"a": {}}',
        b'{"a": []}',
        b'["a"]',
        b'["a", ["1"]]',
        b'[1, "a"]',
        b'{"": "a"}',
        b'{"a\\u0000b": "a"}',
        b'{"\\ud800": "a"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_headers_is_refused_without_quoting_values(raw: bytes) -> None:
    with pytest.raises(HeadersInvalidError):
        parse(raw)


def test_the_cache_is_bounded_and_right() -> None:
    builder = HeaderBuilder(id_prefix="x:", cache_entries=4, cache_value_bytes=64)
    for _ in range(3):
        for number in range(20):
            raw = b'{"n": "%d"}' % number
            assert builder.build(row(raw, kind=b"type %d" % number))[1:] == [
                ("outbox-type", b"type %d" % number),
                ("n", b"%d" % number),
            ]
    assert len(builder._columns) <= 4
    assert len(builder._types) <= 4


def test_documents_that_never_repeat_leave_those_that_do_in_the_cache() -> None:
    builder = HeaderBuilder(id_prefix="x:", cache_entries=4, cache_value_bytes=64)
    often = b'{"tenant": "a"}'
    for number in range(20):
        builder.build(row(b'{"trace": "%d"}' % number))
        assert builder.build(row(often))[2:] == [("tenant", b"a")]
    assert often in builder._columns


def test_empty_headers_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def count(raw: bytes, *, reserved: frozenset[str]) -> object:
        parsed.append(raw)
        return parse(raw, reserved=reserved)

    monkeypatch.setattr(headers, "parse", count)
    builder = HeaderBuilder(id_prefix="x:")
    assert [builder.build(row(b"{}")) for _ in range(3)] == [[("outbox-id", b"x:17"), ("outbox-type", b"created")]] * 3
    assert parsed == [b"{}"]


def test_what_is_wrong_with_a_header_is_said_without_its_name() -> None:
    """Messages go to logs and into the status; what is in the column does not."""
    with pytest.raises(HeadersInvalidError) as caught:
        parse(b'{"a": 1, "secret-4111": {"b": 1}}')
    assert "header number 2" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_large_values_do_not_fill_the_cache() -> None:
    builder = HeaderBuilder(id_prefix="x:", cache_value_bytes=64)
    builder.build(row(b'{"n": "' + b"x" * 100 + b'"}'))
    assert len(builder._columns) == 0


def test_large_types_do_not_fill_the_cache() -> None:
    builder = HeaderBuilder(id_prefix="x:", cache_value_bytes=64)
    large = row(b"{}")._replace(type=b"t" * 100)
    assert builder.build(large)[1] == ("outbox-type", b"t" * 100)
    assert len(builder._types) == 0


def outcome(read: Callable[[bytes], Iterable[Header]], raw: bytes) -> list[Header] | str:
    try:
        return list(read(raw))
    except HeadersInvalidError as error:
        return str(error)


@pytest.mark.parametrize(
    "document",
    [
        '{"a": "VALUE", "b": "VALUE"}',
        '{"a":"VALUE","b":"VALUE"}',
        ' { "a" : "VALUE" , "b" : "VALUE" } ',
        '{"a": "VALUE", "a": "VALUE"}',
        '{"a": "VALUE", "n": 5}',
        '{"n": 5, "a": "VALUE"}',
        '{"n": null, "a": "VALUE", "b": "VALUE"}',
        '{"outbox-id": "5", "k": 5, "VALUE": "z"}',
        '{"outbox-id": "VALUE", "a": "VALUE"}',
        '["a", "VALUE", "b", "VALUE"]',
        '["VALUE", "a", "VALUE", "b"]',
        '["a", null, "b", "VALUE"]',
        "{}",
    ],
)
def test_documents_of_one_form_are_read_as_the_parser_reads_them(document: str) -> None:
    builder = HeaderBuilder(id_prefix="x:")
    for values in (("z", "z"), ("z", "1"), ("", ":"), (", ", "}"), ("caf\u00e9", r"\""), (r"\u0041", r"\\")):
        raw = document
        for value in values:
            raw = raw.replace("VALUE", value, 1)
        found = outcome(lambda raw: builder.build(row(raw, kind=None))[1:], raw.encode())
        assert found == outcome(parse, raw.encode()), raw


def test_a_document_of_a_known_form_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = HeaderBuilder(id_prefix="x:")
    builder.build(row(b'{"tenant": "a", "traceparent": "1"}'))
    monkeypatch.setattr(headers, "parse", None)
    assert builder.build(row(b'{"tenant": "b", "traceparent": "2"}'))[2:] == [("tenant", b"b"), ("traceparent", b"2")]


def test_forms_are_bounded_in_number_and_length() -> None:
    builder = HeaderBuilder(id_prefix="x:", cache_entries=4, cache_value_bytes=64)
    for number in range(20):
        builder.build(row(b'{"n%d": "a"}' % number))
    assert len(builder._forms) <= 4
    before = dict(builder._forms)
    builder.build(row(b'{"n": 1%s}' % (b"0" * 100)))
    assert builder._forms == before


_TEXT = st.text(st.sampled_from('ab{}[]:, "\\\u00e9\n\0'), max_size=4)
_DOCUMENTS = st.builds(
    json.dumps,
    st.dictionaries(st.sampled_from(["a", "b", "outbox-id", 'q"', ""]), _TEXT | st.none() | st.integers(), max_size=3),
    ensure_ascii=st.booleans(),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]),
)


@given(documents=st.lists(_DOCUMENTS, max_size=12), entries=st.integers(1, 6))
def test_headers_are_those_of_the_parser_whatever_came_before(documents: list[str], entries: int) -> None:
    builder = HeaderBuilder(id_prefix="x:", cache_entries=entries)
    for raw in (document.encode() for document in documents):
        found = outcome(lambda raw: builder.build(row(raw, kind=None))[1:], raw)
        assert found == outcome(parse, raw), raw
