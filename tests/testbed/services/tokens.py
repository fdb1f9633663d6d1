"""An OpenID Connect token endpoint on loopback: client credentials, and signed tokens that a broker can check."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.testbed.services.certificates import Authority

AUDIENCE = "kafka"
ISSUER = "https://issuer.test"
LIFE_SECONDS = 300
_KEY_ID = "1"


class TokenEndpoint:
    """Gives tokens to clients that know their secret; a token's subject is the client's id.

    Args:
        authority: signs the endpoint's own certificate, for 127.0.0.1.
        clients: secrets by client id; change it to let a secret expire.
    """

    def __init__(self, *, authority: Authority, clients: Mapping[str, str]) -> None:
        self.clients = dict(clients)
        self.scopes: list[str] = []
        """What was asked for, request by request."""

        self._authority = authority
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="tokens", daemon=True)

    @property
    def url(self) -> str:
        """Where tokens are."""
        return f"https://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> Self:
        certificate = self._authority.issue("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate.certificate + certificate.key)
            file.flush()
            context.load_cert_chain(file.name)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def write_keys(self, path: Path) -> None:
        """Write the public key as a JSON Web Key Set (RFC 7517)."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": _KEY_ID,
            "n": _number(numbers.n),
            "e": _number(numbers.e),
        }
        path.write_text(json.dumps({"keys": [key]}))

    def _token(self, client: str) -> str:
        now = int(time.time())
        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": client, "iat": now, "exp": now + LIFE_SECONDS}
        signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
                client, _, secret = base64.b64decode(encoded if scheme == "Basic" else "").decode().partition(":")
                known = secret and endpoint.clients.get(client) == secret
                if form.get("grant_type") != ["client_credentials"] or not known:
                    self._answer(401, {"error": "invalid_client"})
                    return
                endpoint.scopes.extend(form.get("scope", []))
                self._answer(200, {"access_token": endpoint._token(client), "expires_in": LIFE_SECONDS})

            def _answer(self, status: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        return Handler


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))
