"""From the Secrets that a resource names to what a session is opened with."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest

from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.kube import Kind
from outboxrelay_operator.measure.credentials import Connector
from outboxrelay_operator.measure.resolve import NoNameServerError, Resolver, ResolverSettings
from outboxrelay_operator.measure.server import LoginId
from outboxrelay_operator.measure.session import Login, MeasureError, PostgresSession
from outboxrelay_operator.pairs import pairs_of
from outboxrelay_operator.secret_reader import SecretReader
from tests.unit.operator.builders import KEY, raw_database, raw_spec
from tests.unit.operator.fake_kube import FakeKube

SECRETS = {
    "login": {"username": "relay"},
    "ca": {"ca.crt": "the CA"},
    "cert": {"tls.crt": "the certificate", "tls.key": "the key"},
}
DATABASE = raw_database(
    host=None,
    hosts=["gone", "a", "b"],
    credentialsSecretRef={"name": "login", "passwordKey": ""},
    tls={"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "cert"}},
)
ZONE = {"a.": ("10.0.0.1", "10.0.0.2"), "b.": ("10.0.0.3",)}


async def look_up(name: str) -> tuple[str, ...]:
    return ZONE.get(name, ())


def put(kube: FakeKube, name: str, **values: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    kube.put(Kind.SECRET, {"metadata": {"namespace": KEY.namespace, "name": name}, "data": data})


def connector(secrets: dict[str, dict[str, str]], kube: FakeKube | None = None) -> Connector:
    kube = kube or FakeKube()
    for name, values in secrets.items():
        put(kube, name, **values)
    resolver = Resolver(own_namespace="operators", settings=ResolverSettings(), lookup=look_up)
    return Connector(SecretReader(kube, clock=lambda: 0.0), resolver)


def exists(file: Path | None) -> bool:
    return file is not None and file.exists()


def login_id(database: dict[str, Any]) -> LoginId:
    spec = OutboxRelaySpec.model_validate(raw_spec(databases=[database]))
    return LoginId.of(pairs_of(KEY, spec)[0])


async def test_certificates_come_as_files_of_the_operator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Login, list[str]]] = []

    async def opened(login: Login) -> None:
        files = [file for file in (login.ca_file, login.certificate_file, login.key_file) if file is not None]
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
        seen.append((login, [file.read_text() for file in files]))

    monkeypatch.setattr(PostgresSession, "open", opened)
    await connector(SECRETS)(login_id(DATABASE))
    [(login, contents)] = seen
    assert contents == ["the CA", "the certificate", "the key"]
    assert login.addresses == (("a", "10.0.0.1"), ("a", "10.0.0.2"), ("b", "10.0.0.3"))
    parameters = login.parameters()
    assert (parameters["host"], parameters["hostaddr"]) == ("a,a,b", "10.0.0.1,10.0.0.2,10.0.0.3")
    assert (parameters["target_session_attrs"], parameters["sslcertmode"]) == ("read-write", "allow")
    assert "password" not in parameters
    assert not any(map(exists, (login.ca_file, login.certificate_file, login.key_file)))


@pytest.mark.parametrize("name", SECRETS)
async def test_a_secret_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(MeasureError) as caught:
        await connector({other: values for other, values in SECRETS.items() if other != name})(login_id(DATABASE))
    assert caught.value.reason == "CredentialsMissing"
    assert f"shop/{name}" in caught.value.message


async def test_hosts_of_which_none_exists_are_named() -> None:
    nowhere = DATABASE | {"hosts": ["gone", "lost"]}
    with pytest.raises(MeasureError) as caught:
        await connector(SECRETS)(login_id(nowhere))
    assert caught.value.reason == "DatabaseUnreachable"
    assert "gone, lost" in caught.value.message


async def test_hosts_of_which_nobody_knows_are_not_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(_: str) -> tuple[str, ...]:
        raise NoNameServerError

    monkeypatch.setattr(f"{__name__}.look_up", no_answer)
    with pytest.raises(MeasureError) as caught:
        await connector(SECRETS)(login_id(DATABASE))
    assert (caught.value.reason, "does not exist" in caught.value.message) == ("DatabaseUnreachable", False)
    assert caught.value.server_down is not None
    assert "gone, a, b" in caught.value.server_down


class Logins:
    """A server that knows one password."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.tried: list[str | None] = []

    async def open(self, login: Login) -> None:
        self.tried.append(login.password)
        if login.password != self.password:
            raise MeasureError("AuthenticationFailed", "refused", session_lost=True)


PLAIN = raw_database(host="a", credentialsSecretRef={"name": "login"})


async def test_many_logins_cost_one_request_for_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, server = FakeKube(), Logins("p")
    monkeypatch.setattr(PostgresSession, "open", server.open)
    connect = connector({"login": {"username": "relay", "password": "p"}}, kube)
    for _ in range(3):
        await connect(login_id(PLAIN))
    assert kube.asked == ["login"]
    assert server.tried == ["p"] * 3


async def test_a_refused_login_is_tried_again_at_once_if_the_secret_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, server = FakeKube(), Logins("p")
    monkeypatch.setattr(PostgresSession, "open", server.open)
    connect = connector({"login": {"username": "relay", "password": "p"}}, kube)
    await connect(login_id(PLAIN))
    server.password = "q"
    with pytest.raises(MeasureError):
        await connect(login_id(PLAIN))
    assert server.tried == ["p", "p"], "the same login would only be refused again"
    put(kube, "login", username="relay", password="q")
    await connect(login_id(PLAIN))
    assert server.tried == ["p", "p", "p", "q"]
