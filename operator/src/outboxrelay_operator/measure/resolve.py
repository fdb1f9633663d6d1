"""Finds a database server under the name by which the relay pods know it.

A bare Service name means one of the pod's own namespace, since the resolver there searches it first. The operator's
own resolver searches the operator's namespace: asked the same name, it finds nothing, or somebody else's server. So
the names are put together here as the pods' resolver would, and only the addresses are handed to libpq; the
server's certificate is still checked against the name in the resource.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

RESOLVER_FILE: Final = Path("/etc/resolv.conf")
MAX_ADDRESSES: Final = 4

Lookup = Callable[[str], Awaitable[tuple[str, ...]]]
"""The addresses of an absolute name; none if there is no such name. Raises `NoNameServerError`."""


class NoNameServerError(Exception):
    """No name server tells whether there is such a name."""


@dataclass(frozen=True, slots=True)
class ResolverSettings:
    """The two lines of resolv.conf(5) that decide which names are tried."""

    search: tuple[str, ...] = ()
    ndots: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a resolv.conf; the last line of a kind counts."""
        search: tuple[str, ...] = ()
        ndots = 1
        for line in text.splitlines():
            match line.split():
                case ["search", *domains]:
                    search = tuple(domain.rstrip(".") for domain in domains)
                case ["options", *options]:
                    given = [option.removeprefix("ndots:") for option in options if option.startswith("ndots:")]
                    ndots = int(given[-1]) if given and given[-1].isdecimal() else ndots
        return cls(search=search, ndots=ndots)


def names(host: str, *, namespace: str, own_namespace: str, settings: ResolverSettings) -> tuple[str, ...]:
    """The absolute names that a pod of `namespace` would try for `host`, in its order; a final dot marks them so."""
    if host.endswith("."):
        return (host,)
    own = f"{own_namespace}.svc."
    domains = [
        f"{namespace}.svc.{domain.removeprefix(own)}" if domain.startswith(own) else domain
        for domain in settings.search
    ]
    searched = [f"{host}.{domain}." for domain in domains]
    absolute = f"{host}."
    if host.count(".") >= settings.ndots:
        return (absolute, *searched)
    return (*searched, absolute)


class Resolver:
    """Looks hosts up as a pod of the resource's namespace would."""

    def __init__(self, *, own_namespace: str, settings: ResolverSettings, lookup: Lookup) -> None:
        self._own_namespace = own_namespace
        self._settings = settings
        self._lookup = lookup

    async def addresses(self, host: str, *, namespace: str) -> tuple[str, ...]:
        """The addresses of a host, itself if it is one; none if no name that a pod would try exists.

        Raises `NoNameServerError` if that is not known.
        """
        try:
            return (str(ipaddress.ip_address(host)),)
        except ValueError:
            pass
        unknown: NoNameServerError | None = None
        for name in names(host, namespace=namespace, own_namespace=self._own_namespace, settings=self._settings):
            try:
                found = await self._lookup(name)
            except NoNameServerError as error:
                # As a pod's resolver, which asks for the next name all the same.
                unknown = error
                continue
            if found:
                return found[:MAX_ADDRESSES]
        if unknown is not None:
            raise unknown
        return ()


def settings_of_this_machine(file: Path = RESOLVER_FILE) -> ResolverSettings:
    """What resolv.conf says, or its defaults where there is none."""
    try:
        return ResolverSettings.parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ResolverSettings()


async def look_up(name: str) -> tuple[str, ...]:
    """`Lookup` by the system's resolver."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise NoNameServerError from error
        return ()
    except UnicodeError:
        # Python itself encodes the name, and takes none with a label that is empty or too long.
        return ()
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))
