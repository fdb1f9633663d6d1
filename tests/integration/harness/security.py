"""The `kafka` section of a relay's configuration for each way to prove oneself, with its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.testbed.services.certificates import Authority, ServerCertificate
from tests.testbed.services.secured import SecuredKafka

USER = "relay"


class Proof:
    """The files of one relay, to be changed while it runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: str | bytes) -> str:
        """Write a file as a kubelet does: at once; returns its path."""
        path = self.directory / name
        new = path.with_suffix(".new")
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        new.replace(path)
        return str(path)

    def trust(self, *authorities: Authority) -> dict[str, Any]:
        """A `tls` section that trusts these authorities."""
        return {"ca_file": self.write("kafka-ca.crt", b"".join(authority.pem for authority in authorities))}

    def certificate(self, client: ServerCertificate) -> dict[str, Any]:
        """The part of a `tls` section with a client certificate."""
        return {
            "client_certificate": {
                "certificate_file": self.write("kafka.crt", client.certificate),
                "key_file": self.write("kafka.key", client.key),
            }
        }

    def login(self, mechanism: str, password: str, *, user: str = USER, **oauth: Any) -> dict[str, Any]:
        """A `sasl` section."""
        section = {
            "mechanism": mechanism,
            "username_file": self.write("kafka-user", user),
            "password_file": self.write("kafka-password", password + "\n"),
        }
        return section | ({"oauth": oauth} if oauth else {})


def servers(kafka: SecuredKafka, *, tls: bool, sasl: bool = False, mutual: bool = False) -> tuple[str, ...]:
    """Where that is spoken."""
    if sasl:
        return (kafka.sasl_servers if tls else kafka.sasl_plaintext_servers,)
    if mutual:
        return (kafka.mtls_servers,)
    return (kafka.tls_servers if tls else kafka.bootstrap_servers,)
