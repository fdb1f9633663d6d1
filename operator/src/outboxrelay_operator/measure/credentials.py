"""From the Secrets that a resource names to an open session. Values live as long as the call, and no longer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from outboxrelay.memoryfile import memory_file
from outboxrelay_operator.kube import KubeError
from outboxrelay_operator.measure.resolve import Resolver
from outboxrelay_operator.measure.server import LoginId, missing_credentials, unknown_host
from outboxrelay_operator.measure.session import Login, PostgresSession, Session
from outboxrelay_operator.secret_reader import SecretReader


class Connector:
    """Opens sessions with what the Secrets hold now."""

    def __init__(self, secrets: SecretReader, resolver: Resolver) -> None:
        self._secrets = secrets
        self._resolver = resolver

    async def __call__(self, login: LoginId) -> Session:
        """Raises `MeasureError`."""
        reference, ca = login.database.credentials_secret_ref, login.database.tls.ca_secret_ref
        certificate = login.database.tls.client_cert_secret_ref
        user = await self._text(login, reference.name, reference.username_key)
        password = None
        if reference.password_key:
            password = await self._text(login, reference.name, reference.password_key)
        with ExitStack() as files:

            async def file(secret: str, key: str) -> Path:
                # libpq reads these from a file only: one in memory will do, as the root file system is read-only.
                return files.enter_context(memory_file(await self._value(login, secret, key)))

            return await PostgresSession.open(
                Login(
                    database=login.database,
                    user=user,
                    password=password,
                    ca_file=None if ca is None else await file(ca.name, ca.key),
                    certificate_file=None
                    if certificate is None
                    else await file(certificate.name, certificate.cert_key),
                    key_file=None if certificate is None else await file(certificate.name, certificate.key_key),
                    addresses=await self._addresses(login),
                )
            )

    async def _addresses(self, login: LoginId) -> tuple[tuple[str, str], ...]:
        """Hosts with the addresses to try them at."""
        found: list[tuple[str, str]] = []
        for host in login.database.servers:
            addresses = await self._resolver.addresses(host, namespace=login.namespace)
            found.extend((host, address) for address in addresses)
        if not found:
            raise unknown_host(login)
        return tuple(found)

    async def _value(self, login: LoginId, secret: str, key: str) -> bytes:
        try:
            values = await self._secrets.values(login.namespace, secret)
        except KubeError as error:
            raise missing_credentials(login, secret, f"cannot be read: {error.reason}") from error
        if values is None:
            raise missing_credentials(login, secret, "does not exist: create it")
        if key not in values:
            raise missing_credentials(login, secret, f"has no key {key}: add it")
        return values[key]

    async def _text(self, login: LoginId, secret: str, key: str) -> str:
        try:
            text = (await self._value(login, secret, key)).decode().removesuffix("\n")
        except UnicodeDecodeError:
            text = ""
        if not text or "\0" in text:
            raise missing_credentials(login, secret, f"has no usable text in key {key}: correct it")
        return text
