"""The headers of a message: the relay's own, then those of the headers column.

The column's JSON is parsed once per distinct value and kept in a bounded cache, since most tables repeat a handful of
values. Where each row's headers differ (a trace id), what repeats is the form of the document: an object of strings
without escapes needs no parser, once a document of the same names has been through it. All of this is for each row:
making the headers is the larger part of handing a message over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from outboxrelay.ports import Header, Row

ID_HEADER: Final = "outbox-id"
TYPE_HEADER: Final = "outbox-type"
_ESCAPE: Final = ord("\\")
"""As a number: looking for a single byte takes a tenth of the time."""

RESERVED: Final = frozenset({ID_HEADER, TYPE_HEADER})


class HeaderSource(Protocol):
    """Makes the headers of each message of a topic."""

    def build(self, row: Row) -> list[Header]:
        """The headers of `row`, in a list of the caller's own. Raises `HeadersInvalidError`."""


class HeadersInvalidError(ValueError):
    """The headers column holds something that cannot become headers. The message does not quote it."""


class _Number(str):
    """The text of a number, told apart from a string."""

    __slots__ = ()


# Numbers as they are written: header values are bytes, and 1.10 must not become 1.1. Made once, since `json.loads`
# with such arguments makes a decoder for each call, which takes longer than decoding.
_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def _scalar(number: int, value: Any) -> bytes | None:
    if value is None:
        return None
    if value is True or value is False:
        return b"true" if value else b"false"
    if isinstance(value, str):
        # A lone surrogate escape is valid JSON but no text; it is passed on as the bytes it stands for.
        return value.encode("utf-8", "surrogatepass")
    raise HeadersInvalidError(f"header number {number} is neither a string, a number, a boolean nor null")


def parse(raw: bytes, *, reserved: frozenset[str] = RESERVED) -> tuple[Header, ...]:
    """Headers from a JSON object of scalars, or from a flat JSON array of names and values.

    Numbers keep the text they have in the document; names that are `reserved`, for the relay's own, are left out.

    Raises:
        HeadersInvalidError: saying what is wrong.
    """
    try:
        document = _DECODER.decode(raw.decode())
    except ValueError:
        raise HeadersInvalidError("the headers are not JSON") from None
    except RecursionError:
        raise HeadersInvalidError("the headers are nested too deeply") from None
    if document is None:
        return ()
    if isinstance(document, dict):
        pairs = list(document.items())
    elif isinstance(document, list):
        if len(document) % 2:
            raise HeadersInvalidError("the headers array has a name without a value")
        pairs = list(zip(document[::2], document[1::2], strict=True))
    else:
        raise HeadersInvalidError("the headers are neither a JSON object nor an array of names and values")
    headers: list[Header] = []
    for number, (name, value) in enumerate(pairs, start=1):
        if type(name) is not str or not name:
            raise HeadersInvalidError("a header has no name")
        if "\0" in name:
            raise HeadersInvalidError("a header name contains a NUL character")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise HeadersInvalidError("a header name is not valid text") from None
        if name not in reserved:
            headers.append((name, _scalar(number, value)))
    return tuple(headers)


class HeaderBuilder:
    """Builds each row's list of headers; one per publisher."""

    def __init__(
        self,
        *,
        id_prefix: str,
        reserved: frozenset[str] = RESERVED,
        type_header: str = TYPE_HEADER,
        cache_entries: int = 1024,
        cache_value_bytes: int = 1024,
    ) -> None:
        """`reserved`: names that headers of the column cannot have; `type_header` is the name of the type's header."""
        self._id = id_prefix.encode().replace(b"%", b"%%") + b"%d"
        self._reserved = reserved
        self._type_header = type_header
        self._entries = cache_entries
        self._value_bytes = cache_value_bytes
        self._types: dict[bytes, Header] = {}
        self._columns: dict[bytes, tuple[Header, ...]] = {}
        self._forms: dict[bytes, tuple[str, ...] | None] = {}
        self._parts: list[bytes] = []
        self._names: tuple[str, ...] = ()
        """The form of the last document, cut at its quotation marks and without values, and its names."""

    def build(self, row: Row) -> list[Header]:
        """The headers of `row`.

        Raises:
            HeadersInvalidError: the headers column is malformed.
        """
        row_id, _, _, kind, column, message_id, _ = row
        own = (ID_HEADER, self._id % row_id if message_id is None else message_id)
        more: Iterable[Header] = ()
        if column is not None:
            known = self._columns.get(column)
            # Not `or`: the headers of most rows are an empty object.
            more = self._column(column) if known is None else known
        if kind is None:
            return [own, *more]
        return [own, self._types.get(kind) or self._type(kind), *more]

    def type(self, raw: bytes) -> Header:
        """The header with the row's type."""
        return self._types.get(raw) or self._type(raw)

    def column(self, raw: bytes) -> Iterable[Header]:
        """The headers that the headers column holds. Raises `HeadersInvalidError`."""
        parsed = self._columns.get(raw)
        return self._column(raw) if parsed is None else parsed

    def message_id(self, row: Row) -> bytes:
        """The sender's own id of the message, or one made of where it comes from."""
        return self._id % row.id if row.message_id is None else row.message_id

    def _type(self, raw: bytes) -> Header:
        header = (self._type_header, raw)
        if len(raw) <= self._value_bytes:
            if len(self._types) >= self._entries:
                self._types.clear()
            self._types[raw] = header
        return header

    def _column(self, raw: bytes) -> Iterable[Header]:
        """The headers of a document that is not in the cache."""
        if _ESCAPE in raw:
            return self._parsed(raw)
        # Each quotation mark begins or ends a string: cut there, every fourth part is a value.
        parts = raw.split(b'"')
        values = parts[3::4]
        del parts[3::4]
        if parts != self._parts:
            # Most documents are of the form of the one before. To look up another takes as long as all the rest.
            form = b'"'.join(parts)
            names = self._forms.get(form)
            if names is None:
                return self._learn(raw, form=form, parts=parts)
            self._parts, self._names = parts, names
        # A form has as many values as names. To have that checked takes as long as to make the pairs.
        headers = zip(self._names, values)  # noqa: B905
        # Those that repeat are found sooner. Those that never do would only drive each other out.
        return self._keep(raw, tuple(headers)) if len(self._columns) < self._entries else headers

    def _parsed(self, raw: bytes) -> tuple[Header, ...]:
        if len(self._columns) >= self._entries:
            self._columns.clear()
        return self._keep(raw, parse(raw, reserved=self._reserved))

    def _keep(self, raw: bytes, headers: tuple[Header, ...]) -> tuple[Header, ...]:
        if len(raw) <= self._value_bytes:
            self._columns[raw] = headers
        return headers

    def _learn(self, raw: bytes, *, form: bytes, parts: Sequence[bytes]) -> tuple[Header, ...]:
        """Parse a document of a form that was not met before, or that is not of strings alone."""
        headers = self._parsed(raw)
        if form not in self._forms and len(form) <= self._value_bytes:
            if len(self._forms) >= self._entries:
                self._forms.clear()
            self._forms[form] = tuple(name for name, _ in headers) if _all_strings(parts, len(headers)) else None
        return headers


def _all_strings(parts: Sequence[bytes], headers: int) -> bool:
    """Whether a document, cut at its quotation marks and without its values, is an object of that many strings."""
    first, names, colons, commas, last = parts[:1], parts[1::3], parts[2::3], parts[3:-1:3], parts[-1:]
    return (
        len(names) == len(colons) == len(commas) + 1 == headers
        and len(set(names)) == headers
        and [each.strip() for each in (*first, *last)] == [b"{", b"}"]
        and all(each.strip() == b":" for each in colons)
        and all(each.strip() == b"," for each in commas)
    )
