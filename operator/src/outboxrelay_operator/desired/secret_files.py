"""Which Secrets a pair's relays need, and at which files they find them. The one list from which all else is made:
what is mounted, what the relay is told, what is looked for beforehand, and which changes it must hear of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outboxrelay_operator.api.secrets import CaSecretRef, ClientCertSecretRef, CredentialsSecretRef
from outboxrelay_operator.pairs import Pair

_ROOT: Final = Path("/etc/outboxrelay")
_USER, _PASSWORD = "username", "password"
_CA, _CERTIFICATE, _KEY = "ca.crt", "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """Some keys of one Secret, each mounted as a file of one directory."""

    volume: str
    """Also the name of the directory."""

    secret: str
    items: tuple[tuple[str, str], ...]
    """Key in the Secret and name of the file."""

    @property
    def directory(self) -> Path:
        """Where the files are in the pod."""
        return _ROOT / self.volume

    def path(self, name: str) -> Path | None:
        """The file of that name; None if there is none."""
        return self.directory / name if any(file == name for _, file in self.items) else None


DATABASE: Final = "database"
DATABASE_CA: Final = "ca"
DATABASE_CERTIFICATE: Final = "database-certificate"
KAFKA: Final = "kafka"
KAFKA_CA: Final = "kafka-ca"
KAFKA_CERTIFICATE: Final = "kafka-certificate"
OAUTH_CA: Final = "oauth-ca"


def secret_files(pair: Pair) -> tuple[SecretFiles, ...]:
    """Everything that the relays of a pair mount of Secrets."""
    return tuple(_all(pair))


def _all(pair: Pair) -> Iterator[SecretFiles]:
    database, kafka = pair.database, pair.kafka
    yield _login(DATABASE, database.credentials_secret_ref)
    if database.tls.ca_secret_ref is not None:
        yield _ca(DATABASE_CA, database.tls.ca_secret_ref)
    if database.tls.client_cert_secret_ref is not None:
        yield _certificate(DATABASE_CERTIFICATE, database.tls.client_cert_secret_ref)
    if kafka.tls is not None:
        if kafka.tls.ca_secret_ref is not None:
            yield _ca(KAFKA_CA, kafka.tls.ca_secret_ref)
        if kafka.tls.client_cert_secret_ref is not None:
            yield _certificate(KAFKA_CERTIFICATE, kafka.tls.client_cert_secret_ref)
    if kafka.sasl is not None:
        yield _login(KAFKA, kafka.sasl.credentials_secret_ref)
        if kafka.sasl.oauth is not None and kafka.sasl.oauth.ca_secret_ref is not None:
            yield _ca(OAUTH_CA, kafka.sasl.oauth.ca_secret_ref)


def _login(volume: str, reference: CredentialsSecretRef) -> SecretFiles:
    items = ((reference.username_key, _USER), (reference.password_key, _PASSWORD))
    return SecretFiles(volume, reference.name, tuple((key, file) for key, file in items if key))


def _ca(volume: str, reference: CaSecretRef) -> SecretFiles:
    return SecretFiles(volume, reference.name, ((reference.key, _CA),))


def _certificate(volume: str, reference: ClientCertSecretRef) -> SecretFiles:
    return SecretFiles(volume, reference.name, ((reference.cert_key, _CERTIFICATE), (reference.key_key, _KEY)))


class Mounted:
    """The mounted files of a pair by what they are for."""

    def __init__(self, pair: Pair) -> None:
        self._files = {files.volume: files for files in secret_files(pair)}

    def username(self, volume: str) -> Path:
        """The file with the user's name; the volume must be there."""
        return self._files[volume].directory / _USER

    def password(self, volume: str) -> Path | None:
        """The file with the password; None if the Secret is not said to have one."""
        return self._files[volume].path(_PASSWORD)

    def ca(self, volume: str) -> Path | None:
        """The file with the CA's certificates; None if none is given."""
        return self._files[volume].path(_CA) if volume in self._files else None

    def certificate(self, volume: str) -> tuple[Path, Path] | None:
        """The files with a client certificate and its key; None if none is given."""
        if volume not in self._files:
            return None
        directory = self._files[volume].directory
        return directory / _CERTIFICATE, directory / _KEY
