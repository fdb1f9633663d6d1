"""What stands between PostgreSQL and a relay that hears of nothing: notifications are swallowed, all else passes.

As behind a pooler that hands each transaction another server session, which the listening one is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_NOTIFICATION: Final = ord("A")
_HEAD: Final = 5
"""Bytes of a message's kind and length; the length counts itself, and not the kind.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""


class Deafness:
    """Switched on and off; `between` goes with `Proxy`, for connections in plaintext."""

    def __init__(self) -> None:
        self.on = True
        self.swallowed = 0

    def between(self) -> Callable[[bytes], bytes]:
        """The filter of one connection."""
        waiting = bytearray()

        def answer(data: bytes) -> bytes:
            waiting.extend(data)
            passed = bytearray()
            while len(waiting) >= _HEAD:
                size = 1 + int.from_bytes(waiting[1:_HEAD], "big")
                if len(waiting) < size:
                    break
                if self.on and waiting[0] == _NOTIFICATION:
                    self.swallowed += 1
                else:
                    passed += waiting[:size]
                del waiting[:size]
            return bytes(passed)

        return answer
