"""Reads the Secrets that a resource names, in its own namespace and by name only: never a list, never a watch.

What is kept in memory is which keys there are and which version it is. Values are read anew whenever somebody
logs in, and held no longer than that.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from outboxrelay_operator.kube import Kind, Kube, KubeError
from outboxrelay_operator.observed import SecretState

_FORGET_SECONDS = 3600.0

_TRUST_SECONDS = 60.0
"""How long what is known of a Secret counts while it cannot be read again: an API server may restart."""

_NOT_ABOUT_THE_SECRET = frozenset({0, 429})
"""HTTP statuses of an API server that answers nobody."""


class SecretReader:
    """Secrets by namespace and name, with a bound on how old an answer may be."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, SecretState | None]] = {}
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
        known = self._known.get((namespace, name))
        if known is not None and known[0] + max_age > self._clock():
            return known[1]
        try:
            await self.values(namespace, name)
        except KubeError as error:
            if error.status in _NOT_ABOUT_THE_SECRET:
                raise
            if known is not None and known[0] + _TRUST_SECONDS > self._clock():
                return known[1]
            return SecretState(version="", keys=frozenset(), problem=str(error))
        return self._known[namespace, name][1]

    async def values(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """The values as they are now; None if there is no such Secret. Raises `KubeError`."""
        secret = await self._kube.get(Kind.SECRET, namespace, name)
        if secret is None:
            self._note(namespace, name, None)
            return None
        values: dict[str, bytes] = {}
        for key, text in (secret.get("data") or {}).items():
            try:
                values[key] = base64.b64decode(text, validate=True)
            except binascii.Error:
                continue
        state = SecretState(version=str(secret["metadata"].get("resourceVersion", "")), keys=frozenset(values))
        self._note(namespace, name, state)
        return values

    def _note(self, namespace: str, name: str, state: SecretState | None) -> None:
        now = self._clock()
        if now >= self._forget_at:
            # What nobody asked for since the last time is no longer named by any resource.
            horizon = self._forget_at - 2 * _FORGET_SECONDS
            self._known = {where: known for where, known in self._known.items() if known[0] >= horizon}
            self._forget_at = now + _FORGET_SECONDS
        self._known[namespace, name] = (now, state)
