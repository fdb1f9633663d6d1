"""Texts in the encodings of PostgreSQL's databases, into UTF-8 and back."""

from __future__ import annotations

import pytest

from outboxrelay.stores.encoding import Texts, texts_of

SINGLE_BYTE = (
    *(f"ISO_8859_{number}" for number in range(5, 9)),
    *("KOI8R", "KOI8U"),
    *(f"LATIN{number}" for number in range(1, 11)),
    *("WIN866", "WIN874"),
    *(f"WIN{number}" for number in range(1250, 1259)),
)
SEVERAL_BYTES = ("EUC_CN", "EUC_JP", "EUC_JIS_2004", "EUC_KR")
UNKNOWN = ("EUC_TW", "MULE_INTERNAL", "SQL_ASCII")
"""To Python, or as such."""


def converted(texts: Texts, value: bytes) -> bytes:
    (result,) = texts.into_utf8([value], {0})
    assert isinstance(result, bytes)
    return result


@pytest.mark.parametrize("encoding", SINGLE_BYTE)
def test_dv_10_every_byte_finds_its_way_back(encoding: str) -> None:
    """cases.md DV-10: keys are held by what the table has, also where a byte has no character."""
    texts = Texts(encoding)
    assert texts.change
    for byte in range(1, 256):
        assert texts.stored(converted(texts, bytes([byte]))) == bytes([byte])
    assert converted(texts, b"plain") == b"plain"


@pytest.mark.parametrize("encoding", SEVERAL_BYTES)
def test_dv_10_characters_of_several_bytes(encoding: str) -> None:
    """cases.md DV-10."""
    texts = Texts(encoding)
    assert texts.change
    stored = "一".encode(encoding.replace("EUC_CN", "gb2312")) + b" \xff"
    assert converted(texts, stored) == "一 ".encode() + b"\xff"
    assert texts.stored(converted(texts, stored)) == stored


@pytest.mark.parametrize(
    ("encoding", "stored"),
    [("WIN1253", b"k\xd2\x81"), ("ISO_8859_7", b"\xe2\xd2\xae "), ("EUC_KR", b"\xb0\xa1 \xc9\xa1")],
)
def test_dv_10_odd_bytes_that_look_like_utf8_find_their_way_back(encoding: str, stored: bytes) -> None:
    """cases.md DV-10: bytes without a character may together be one of UTF-8, which the encoding has not."""
    texts = Texts(encoding)
    assert texts.stored(converted(texts, stored)) == stored


@pytest.mark.parametrize("encoding", UNKNOWN)
def test_dv_10_what_nobody_knows_is_left_as_it_is(encoding: str) -> None:
    """cases.md DV-10."""
    texts = Texts(encoding)
    assert not texts.change
    assert texts.stored(b"\xff") == b"\xff"


def test_dv_10_only_what_is_text_is_converted() -> None:
    """cases.md DV-10."""
    assert list(Texts("LATIN1").into_utf8([7, b"\xe9", b"\xe9", None], {0, 1, 3})) == [7, b"\xc3\xa9", b"\xe9", None]


@pytest.mark.parametrize(
    ("encoding", "refused", "here"),
    [("UTF8", False, False), ("LATIN1", False, False), ("WIN1252", True, True), ("SQL_ASCII", False, True)],
)
def test_dv_10_the_server_converts_what_it_can(encoding: str, refused: bool, here: bool) -> None:
    """cases.md DV-10."""
    assert (texts_of(encoding, refused=refused) is not None) == here
