"""How the relay proves itself to the brokers, and they to it: from mounted files to librdkafka's settings.

A client keeps for ever what it was made with. So the files are told apart by a digest of what is in them, and whoever
holds a client asks now and then whether it was made with what is there now. Values live in librdkafka and in no
message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from outboxrelay.config import ClientCertificate, Oauth, RelayConfig, Sasl
from outboxrelay.ports import PublisherError
from outboxrelay.publishers.errors import where

_TOKEN_METHOD = "oidc"  # noqa: S105  the name of a method, not a token

_SYSTEM_CAS = tuple(
    map(
        Path,
        (
            "/etc/ssl/certs/ca-certificates.crt",
            "/etc/pki/tls/certs/ca-bundle.crt",
            "/etc/ssl/ca-bundle.pem",
            "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
            "/etc/ssl/cert.pem",
        ),
    )
)
"""Where the CAs that a system trusts are: Debian and Alpine, Fedora and Red Hat, SUSE, others."""


class Security:
    """The files of one relay's brokers, and which content of them is in use."""

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._in_use = ""

    def settings(self) -> dict[str, str]:
        """librdkafka's settings with what the files hold now; from now on that is what is in use.

        Raises:
            PublisherError: BrokerCredentialsMissing, naming the file.
        """
        kafka = self._config.kafka
        # Before the content is used: a file that changes in between is found changed at the next look.
        self._in_use = self._digest()
        protocol = ("SASL_" if kafka.sasl is not None else "") + ("SSL" if kafka.tls is not None else "PLAINTEXT")
        settings = {"security.protocol": protocol}
        if kafka.tls is not None:
            settings |= {
                "enable.ssl.certificate.verification": "true",
                "ssl.endpoint.identification.algorithm": "https",
            }
            if kafka.tls.ca_file is not None:
                settings["ssl.ca.location"] = self._present(kafka.tls.ca_file, what="CA of the brokers")
            if kafka.tls.client_certificate is not None:
                settings |= self._certificate(kafka.tls.client_certificate)
        if kafka.sasl is not None:
            settings |= self._login(kafka.sasl)
        return settings

    def changed(self) -> bool:
        """Whether the files hold something else than what is in use. Never raises."""
        return self._digest() != self._in_use

    def _certificate(self, client: ClientCertificate) -> dict[str, str]:
        return {
            "ssl.certificate.location": self._present(client.certificate_file, what="client certificate"),
            "ssl.key.location": self._present(client.key_file, what="key of the client certificate"),
        }

    def _login(self, sasl: Sasl) -> dict[str, str]:
        user = self._text(sasl.username_file, what="user name")
        password = self._text(sasl.password_file, what="password")
        if sasl.oauth is not None:
            return {"sasl.mechanism": sasl.mechanism} | self._token(sasl.oauth, client=user, secret=password)
        return {"sasl.mechanism": sasl.mechanism, "sasl.username": user, "sasl.password": password}

    def _token(self, oauth: Oauth, *, client: str, secret: str) -> dict[str, str]:
        settings = {
            "sasl.oauthbearer.method": _TOKEN_METHOD,
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": oauth.token_endpoint_url,
        }
        if oauth.scope is not None:
            settings["sasl.oauthbearer.scope"] = oauth.scope
        if oauth.ca_file is not None:
            settings["https.ca.location"] = self._present(oauth.ca_file, what="CA of the token endpoint")
        elif (trusted := next((path for path in _SYSTEM_CAS if path.exists()), None)) is not None:
            # librdkafka looks for them only for the brokers, and else at the one place of the system it was built on.
            settings["https.ca.location"] = str(trusted)
        return settings

    def _present(self, path: Path, *, what: str) -> str:
        self._read(path, what=what)
        return str(path)

    def _text(self, path: Path, *, what: str) -> str:
        try:
            return self._read(path, what=what).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise self._missing(path, what=what, why="it is not UTF-8 text") from None

    def _read(self, path: Path, *, what: str) -> bytes:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self._missing(path, what=what, why=error.strerror or "it cannot be read") from None
        if not content.strip() or b"\0" in content:
            raise self._missing(path, what=what, why="it is empty" if not content.strip() else "it holds NUL")
        return content

    def _missing(self, path: Path, *, what: str, why: str) -> PublisherError:
        return PublisherError(
            "BrokerCredentialsMissing",
            f"reading the {what} for {where(self._config)} from {path} failed: {why}; mend the Secret",
        )

    def _digest(self) -> str:
        total = hashlib.sha256()
        for path in self._files():
            try:
                content = hashlib.sha256(path.read_bytes()).digest()
            except OSError:
                content = b"missing"
            total.update(content)
        return total.hexdigest()

    def _files(self) -> Iterator[Path]:
        tls, sasl = self._config.kafka.tls, self._config.kafka.sasl
        if tls is not None:
            if tls.ca_file is not None:
                yield tls.ca_file
            if tls.client_certificate is not None:
                yield tls.client_certificate.certificate_file
                yield tls.client_certificate.key_file
        if sasl is not None:
            yield sasl.username_file
            yield sasl.password_file
            if sasl.oauth is not None and sasl.oauth.ca_file is not None:
                yield sasl.oauth.ca_file
