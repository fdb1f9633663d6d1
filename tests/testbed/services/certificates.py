"""TLS material for the local services: a CA of their own, and good and bad server certificates."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A server's or client's certificate with its key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def pkcs8_key(self) -> bytes:
        """The key as Java reads it (RFC 5958)."""
        key = load_pem_private_key(self.key, password=None)
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that only this session knows."""

    _ca: trustme.CA = field(default_factory=trustme.CA)

    @property
    def pem(self) -> bytes:
        """The CA's certificate."""
        return self._ca.cert_pem.bytes()

    def write(self, path: Path) -> Path:
        """Write the CA's certificate to a file, for a client's `ca_file`."""
        path.write_bytes(self.pem)
        return path

    def issue_client(self, user: str, *, expired: bool = False) -> ServerCertificate:
        """A client's certificate, with the user's name as its common name."""
        # Java cannot read one without any other name.
        return self.issue("client.test", expired=expired, common_name=user)

    def issue(self, *names: str, expired: bool = False, common_name: str | None = None) -> ServerCertificate:
        """A certificate for host names and addresses."""
        not_after = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1) if expired else None
        issued = self._ca.issue_cert(*names, common_name=common_name, not_after=not_after)
        return ServerCertificate(
            certificate=b"".join(blob.bytes() for blob in issued.cert_chain_pems), key=issued.private_key_pem.bytes()
        )
