"""Texts that the server cannot turn into UTF-8: they come as the bytes they are, so that no row fails the read of all.

Databases of the encoding SQL_ASCII hold bytes of any kind, and the server passes on only those that are UTF-8. Of
other encodings it refuses characters that its tables do not have. Such a text goes to Kafka with the bytes in question
as they are and the rest of it in UTF-8. Nothing here is used for databases in UTF-8.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from psycopg import errors

UNCONVERTIBLE: Final = (errors.UntranslatableCharacter, errors.CharacterNotInRepertoire)
"""What the server says of a text that has no form in UTF-8."""

_AS_IT_IS: Final = "SQL_ASCII"
_ODD: Final = "surrogateescape"
_FOREIGN: Final = "outboxrelay.foreign"


def _as_utf8(error: UnicodeError) -> tuple[bytes, int]:
    """The bytes of a character that the encoding has not: odd bytes that together are its UTF-8 were taken for it."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return error.object[error.start : error.end].encode("utf-8", _ODD), error.end


codecs.register_error(_FOREIGN, _as_utf8)


class Texts:
    """Turns texts of one database encoding into UTF-8 and back."""

    def __init__(self, encoding: str) -> None:
        """`encoding` is PostgreSQL's name for it. One that Python does not know is left as it is."""
        self.encoding = encoding
        self._codec = None if encoding == _AS_IT_IS else _codec(encoding)

    @property
    def change(self) -> bool:
        """Whether there is anything to be done."""
        return self._codec is not None

    def into_utf8(self, row: Sequence[object], positions: Collection[int]) -> Iterable[object]:
        """The fields of a row, with the texts at these positions converted."""
        for position, value in enumerate(row):
            if position in positions and isinstance(value, bytes) and self._codec is not None:
                yield value.decode(self._codec, _ODD).encode("utf-8", _ODD)
            else:
                yield value

    def stored(self, text: bytes) -> bytes:
        """What the table holds for a text in UTF-8 that came from it."""
        return text if self._codec is None else text.decode("utf-8", _ODD).encode(self._codec, _FOREIGN)


def texts_of(encoding: str | None, *, refused: bool) -> Texts | None:
    """How to take the texts of a database; None: the server converts them.

    `encoding` is the server's; `refused`: the server could not convert one.
    """
    if encoding is None or (encoding != _AS_IT_IS and not refused):
        return None
    return Texts(encoding)


def _codec(encoding: str) -> str | None:
    """Python's name, see https://www.postgresql.org/docs/current/multibyte.html#MULTIBYTE-CHARSET-SUPPORTED."""
    name = encoding.replace("WIN", "cp").replace("KOI8", "koi8_").replace("EUC_CN", "gb2312")
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None
