"""From the Secrets that a resource names to an open session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from outboxrelay.memoryfile import memory_file
from outboxrelay_operator.kube import KubeError
from outboxrelay_operator.measure.resolve import NoNameServerError, Resolver
from outboxrelay_operator.measure.server import LoginId, missing_credentials, no_name_server, unknown_host
from outboxrelay_operator.measure.session import Login, MeasureError, PostgresSession, Session
from outboxrelay_operator.secret_reader import SecretReader

_MAY_BE_OUTDATED: Final = frozenset({"AuthenticationFailed", "CredentialsMissing", "TlsFailed"})
"""Reasons that newer Secrets may remove."""

Values = Mapping[str, Mapping[str, bytes] | None]
"""Of each Secret by name; None: there is no such Secret."""


class Connector:
    """Opens sessions with what the Secrets hold now."""

    def __init__(self, secrets: SecretReader, resolver: Resolver) -> None:
        self._secrets = secrets
        self._resolver = resolver

    async def __call__(self, login: LoginId) -> Session:
        """Raises `MeasureError`."""
        known = await self._values(login, newest=False)
        try:
            return await self._open(login, known)
        except MeasureError as error:
            if error.reason not in _MAY_BE_OUTDATED:
                raise
            newest = await self._values(login, newest=True)
            if newest == known:
                # Another attempt with the same login would only be counted against it.
                raise
        return await self._open(login, newest)

    async def _values(self, login: LoginId, *, newest: bool) -> Values:
        database = login.database
        references = (database.credentials_secret_ref, database.tls.ca_secret_ref, database.tls.client_cert_secret_ref)
        return {
            name: await self._read(login, name, newest=newest)
            for name in dict.fromkeys(reference.name for reference in references if reference is not None)
        }

    async def _read(self, login: LoginId, secret: str, *, newest: bool) -> dict[str, bytes] | None:
        try:
            return await self._secrets.values(login.namespace, secret, newest=newest)
        except KubeError as error:
            raise missing_credentials(login, secret, f"cannot be read: {error.reason}") from error

    async def _open(self, login: LoginId, values: Values) -> Session:
        reference, ca = login.database.credentials_secret_ref, login.database.tls.ca_secret_ref
        certificate = login.database.tls.client_cert_secret_ref
        user = _text(login, values, reference.name, reference.username_key)
        password = None
        if reference.password_key:
            password = _text(login, values, reference.name, reference.password_key)
        with ExitStack() as files:

            def file(secret: str, key: str) -> Path:
                # libpq reads these from a file only: one in memory will do, as the root file system is read-only.
                return files.enter_context(memory_file(_value(login, values, secret, key)))

            return await PostgresSession.open(
                Login(
                    database=login.database,
                    user=user,
                    password=password,
                    ca_file=None if ca is None else file(ca.name, ca.key),
                    certificate_file=None if certificate is None else file(certificate.name, certificate.cert_key),
                    key_file=None if certificate is None else file(certificate.name, certificate.key_key),
                    addresses=await self._addresses(login),
                )
            )

    async def _addresses(self, login: LoginId) -> tuple[tuple[str, str], ...]:
        """Hosts with the addresses to try them at."""
        found: list[tuple[str, str]] = []
        unknown: list[str] = []
        for host in login.database.servers:
            try:
                addresses = await self._resolver.addresses(host, namespace=login.namespace)
            except NoNameServerError:
                unknown.append(host)
                continue
            found.extend((host, address) for address in addresses)
        if not found:
            raise no_name_server(login, unknown) if unknown else unknown_host(login)
        return tuple(found)


def _value(login: LoginId, values: Values, secret: str, key: str) -> bytes:
    found = values[secret]
    if found is None:
        raise missing_credentials(login, secret, "does not exist: create it")
    if key not in found:
        raise missing_credentials(login, secret, f"has no key {key}: add it")
    return found[key]


def _text(login: LoginId, values: Values, secret: str, key: str) -> str:
    try:
        text = _value(login, values, secret, key).decode().removesuffix("\n")
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text:
        raise missing_credentials(login, secret, f"has no usable text in key {key}: correct it")
    return text
