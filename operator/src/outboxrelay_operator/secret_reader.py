"""Reads the Secrets that a resource names, in its own namespace and by name only: never a list, never a watch.

What is kept in memory is which keys there are and which version it is. Values are kept of Secrets with which somebody
logs in, as their sessions keep them as well: on a server with more logins than the operator may have sessions, every
measurement logs in again, and would ask the API server each time. They are as old as the rest that is known of the
Secret at the most, and read anew when a login is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field

from outboxrelay_operator.kube import Kind, Kube, KubeError
from outboxrelay_operator.observed import SecretState

_FORGET_SECONDS = 3600.0

_TRUST_SECONDS = 60.0
"""How long what is known of a Secret counts while it cannot be read again: an API server may restart."""

_Where = tuple[str, str]
"""Namespace and name."""

_NOT_ABOUT_THE_SECRET = frozenset({0, 429})
"""HTTP statuses of an API server that answers nobody."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of one Secret."""

    at: float
    """When it was asked for: what happened while the answer was on its way may not be in it."""

    state: SecretState | None
    values: dict[str, bytes] | None = field(repr=False)
    """None: not kept."""


class SecretReader:
    """Secrets by namespace and name, with a bound on how old an answer may be."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[_Where, _Known] = {}
        self._locks: dict[_Where, asyncio.Lock] = {}
        self._logins: set[_Where] = set()
        """Secrets whose values are kept."""

        self._forget_at = clock() + _FORGET_SECONDS

    @property
    def known(self) -> int:
        """How many Secrets are in use."""
        return len(self._known)

    async def state(self, namespace: str, name: str, *, max_age: float) -> SecretState | None:
        """The state, at most `max_age` seconds old; None if there is no such Secret.

        A Secret that cannot be read has a state that says so, since others may well be readable: a Role may name
        some of them only. Raises `KubeError` if the API server answers nobody.
        """
        known, after = self._known.get((namespace, name)), self._clock() - max_age
        if known is not None and known.at > after:
            return known.state
        try:
            return (await self._read((namespace, name), after=after)).state
        except KubeError as error:
            if error.status in _NOT_ABOUT_THE_SECRET:
                raise
            if known is not None and known.at + _TRUST_SECONDS > self._clock():
                return known.state
            return SecretState(version="", keys=frozenset(), problem=str(error))

    async def values(self, namespace: str, name: str, *, newest: bool) -> dict[str, bytes] | None:
        """The values to log in with; None if there is no such Secret. Raises `KubeError`.

        `newest` asks the API server whatever is known.
        """
        where = (namespace, name)
        known = self._known.get(where)
        self._logins.add(where)
        if newest or known is None or known.values is None:
            known = await self._read(where, after=self._clock())
        return known.values

    async def _read(self, where: _Where, *, after: float) -> _Known:
        """What the API server was asked for after some time: once for all who want to know at the same time."""
        async with self._locks.setdefault(where, asyncio.Lock()):
            known = self._known.get(where)
            return known if known is not None and known.at > after else await self._ask(where)

    async def _ask(self, where: _Where) -> _Known:
        asked = self._clock()
        secret = await self._kube.get(Kind.SECRET, *where)
        values: dict[str, bytes] = {}
        for key, text in ((secret or {}).get("data") or {}).items():
            try:
                values[key] = base64.b64decode(text, validate=True)
            except binascii.Error:
                continue
        state = None
        if secret is not None:
            state = SecretState(version=str(secret["metadata"].get("resourceVersion", "")), keys=frozenset(values))
        kept = values if secret is not None and where in self._logins else None
        return self._note(where, _Known(asked, state, kept))

    def _note(self, where: _Where, known: _Known) -> _Known:
        now = self._clock()
        if now >= self._forget_at:
            # What nobody asked for since the last time is no longer named by any resource.
            horizon = self._forget_at - 2 * _FORGET_SECONDS
            self._known = {where: one for where, one in self._known.items() if one.at >= horizon}
            self._logins &= self._known.keys()
            self._locks = {where: lock for where, lock in self._locks.items() if lock.locked()}
            self._forget_at = now + _FORGET_SECONDS
        self._known[where] = known
        return known
