"""From mounted files to the client's settings, and what it complains of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from pydantic import ValidationError

from outboxrelay.config import Kafka, KafkaSettings
from outboxrelay.ports import PublisherError
from outboxrelay.publishers.client import Remarks, client_settings
from outboxrelay.publishers.errors import broker_error
from outboxrelay.publishers.preflight import judge
from outboxrelay.publishers.security import Security
from outboxrelay.publishers.topic import TopicFacts
from tests.contract.relay.settings import relay_config

AUTH, TLS = "BrokerAuthenticationFailed", "BrokerTlsFailed"
TOKEN = "Failed to acquire SASL OAUTHBEARER token"
SERVERS: dict[str, Any] = {"bootstrap_servers": ("127.0.0.1:1",), "topic": "orders"}


def security(directory: Path, **kafka: Any) -> Security:
    return Security(relay_config(directory, kafka=SERVERS | kafka))


def login(directory: Path, mechanism: str = "SCRAM-SHA-512", **more: Any) -> dict[str, Any]:
    for name, text in (("user", "relay\n"), ("pass", "secret\n")):
        (directory / name).write_text(text)
    files = {"username_file": str(directory / "user"), "password_file": str(directory / "pass")}
    return {"mechanism": mechanism, **files, **more}


def material(directory: Path) -> dict[str, Any]:
    for name in ("ca", "crt", "key"):
        (directory / name).write_text("PEM")
    certificate = {"certificate_file": str(directory / "crt"), "key_file": str(directory / "key")}
    return {"ca_file": str(directory / "ca"), "client_certificate": certificate}


@pytest.mark.parametrize("seconds", [0.0001, 0.05, 5.0, 100_000.0])
def test_every_bound_of_reconnecting_makes_a_client(tmp_path: Path, seconds: float) -> None:
    config = relay_config(tmp_path, tuning={"reconnect_max_seconds": seconds})
    Producer(client_settings(config, client_id="c", secured={})).close()


def test_without_tls_and_login(tmp_path: Path) -> None:
    assert security(tmp_path).settings() == {"security.protocol": "PLAINTEXT"}


def test_a_login_without_tls(tmp_path: Path) -> None:
    assert security(tmp_path, sasl=login(tmp_path)).settings() == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "relay",
        "sasl.password": "secret",
    }


def test_tls_always_verifies(tmp_path: Path) -> None:
    settings = security(tmp_path, tls={}).settings()
    assert settings == {
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "true",
        "ssl.endpoint.identification.algorithm": "https",
    }
    more = security(tmp_path, tls=material(tmp_path)).settings()
    assert more == settings | {
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "crt"),
        "ssl.key.location": str(tmp_path / "key"),
    }


def test_tokens(tmp_path: Path) -> None:
    oauth = {"token_endpoint_url": "https://issuer/token", "scope": "kafka", "ca_file": str(tmp_path / "ca")}
    tls = material(tmp_path)
    settings = security(tmp_path, tls=tls, sasl=login(tmp_path, "OAUTHBEARER", oauth=oauth)).settings()
    assert settings["security.protocol"] == "SASL_SSL"
    assert "sasl.password" not in settings
    assert {name: value for name, value in settings.items() if "oauth" in name or name.startswith("https")} == {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "relay",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
        "sasl.oauthbearer.scope": "kafka",
        "https.ca.location": str(tmp_path / "ca"),
    }


@pytest.mark.parametrize(("name", "what"), [("user", "user name"), ("pass", "password"), ("ca", "CA"), ("key", "key")])
@pytest.mark.parametrize("fault", ["missing", "empty"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str, what: str, fault: str) -> None:
    chosen = security(tmp_path, tls=material(tmp_path), sasl=login(tmp_path))
    chosen.settings()
    (tmp_path / name).unlink()
    if fault == "empty":
        (tmp_path / name).write_text("\n")
    assert chosen.changed()
    with pytest.raises(PublisherError) as caught:
        chosen.settings()
    assert caught.value.reason == "BrokerCredentialsMissing"
    assert what in caught.value.message
    assert str(tmp_path / name) in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("name", ["user", "pass", "ca", "crt", "key"])
def test_a_change_of_any_file_is_noticed_once(tmp_path: Path, name: str) -> None:
    chosen = security(tmp_path, tls=material(tmp_path), sasl=login(tmp_path))
    chosen.settings()
    assert not chosen.changed()
    (tmp_path / name).write_text("other")
    assert chosen.changed()
    chosen.settings()
    assert not chosen.changed()


@pytest.mark.parametrize(
    "kafka",
    [
        {"sasl": {"mechanism": "PLAIN"}},
        {"sasl": {"mechanism": "OAUTHBEARER", "oauth": {"token_endpoint_url": "https://i"}}},
        {"sasl": {"mechanism": "OAUTHBEARER"}, "tls": {}},
        {"sasl": {"mechanism": "OAUTHBEARER", "oauth": {"token_endpoint_url": "http://i"}}, "tls": {}},
        {"sasl": {"mechanism": "PLAIN", "oauth": {"token_endpoint_url": "https://i"}}, "tls": {}},
        {"sasl": {"mechanism": "GSSAPI"}, "tls": {}},
        {"settings": {"acks": 1}},
        {"settings": {"linger.ms": 1001}},
    ],
)
def test_what_would_be_unsafe_is_refused(kafka: dict[str, Any]) -> None:
    for sasl in [kafka["sasl"]] if "sasl" in kafka else []:
        sasl |= {"username_file": "/u", "password_file": "/p"}
    with pytest.raises(ValidationError):
        Kafka.model_validate(SERVERS | kafka)


def test_settings_are_given_by_librdkafkas_names() -> None:
    chosen = KafkaSettings.model_validate({"linger.ms": 0, "socket.keepalive.enable": True})
    assert chosen.given() == {"linger.ms": 0, "socket.keepalive.enable": "true"}


def test_a_cause_is_not_forgotten_for_its_consequence() -> None:
    refused, down = KafkaError(KafkaError._AUTHENTICATION), KafkaError(KafkaError._ALL_BROKERS_DOWN)
    remarks = Remarks()
    remarks.take(down)
    assert remarks.latest is down
    remarks.take(refused)
    remarks.take(down)
    assert remarks.latest is refused
    remarks.forget()
    remarks.take(down)
    assert remarks.latest is down


@pytest.mark.parametrize(
    ("kafka", "level", "words"),
    [
        ({}, "ok", "plaintext without a login"),
        ({"tls": {}}, "ok", "TLS without a login"),
        ({"tls": {}, "sasl": "PLAIN"}, "ok", "TLS with SASL PLAIN"),
        ({"sasl": "SCRAM-SHA-256"}, "warning", "plaintext with SASL SCRAM-SHA-256"),
    ],
)
def test_the_preflight_tells_how_the_brokers_are_reached(
    tmp_path: Path, kafka: dict[str, Any], level: str, words: str
) -> None:
    sasl = {"sasl": login(tmp_path, kafka["sasl"])} if "sasl" in kafka else {}
    config = relay_config(tmp_path, kafka=SERVERS | kafka | sasl)
    facts = TopicFacts(partitions=1, replicas=3, compacted=False, max_message_bytes=None, min_insync_replicas=2)
    [found] = [finding for finding in judge(facts, config=config) if finding.subject == "brokers"]
    assert (found.level, bool(found.remedy)) == (level, level == "warning")
    assert words in found.message


@pytest.mark.parametrize(
    ("code", "text", "reason", "words"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed", AUTH, "user and password"),
        (KafkaError._AUTHENTICATION, "Broker: Unsupported SASL mechanism: broker's supported", AUTH, "mechanism"),
        (KafkaError._AUTHENTICATION, "Request not valid in current SASL state", AUTH, "omit spec.kafka.sasl"),
        (KafkaError._AUTHENTICATION, f"{TOKEN}: Failed to connect to 127.0.0.1:1", AUTH, "does not answer"),
        (KafkaError._AUTHENTICATION, f"{TOKEN}: Could not resolve host: x", AUTH, "does not answer"),
        (KafkaError._AUTHENTICATION, f"{TOKEN}: SSL certificate problem", AUTH, "oauth.caSecretRef"),
        (KafkaError._AUTHENTICATION, f'{TOKEN}: {{"error": "invalid_client"}}', AUTH, "client id and secret"),
        (KafkaError._SSL, "error:0A000086:SSL routines::certificate verify failed", TLS, "another host"),
        (KafkaError._TRANSPORT, "SSL routines::ssl/tls alert bad certificate", TLS, "clientCertSecretRef"),
        (KafkaError._TRANSPORT, "connecting to a PLAINTEXT broker listener?", TLS, "speaks no TLS"),
        (KafkaError._INVALID_ARG, "ssl.key.location failed: key values mismatch", TLS, "its own key"),
        (KafkaError._TRANSPORT, "Connect to ipv4#127.0.0.1:1 failed", "BrokerUnreachable", "TLS with SASL PLAIN"),
    ],
)
def test_what_a_refused_connection_means(tmp_path: Path, code: int, text: str, reason: str, words: str) -> None:
    """And nothing that librdkafka or a server said is passed on."""
    config = relay_config(tmp_path, kafka=SERVERS | {"tls": {}, "sasl": login(tmp_path, "PLAIN")})
    error = broker_error(KafkaError(code, text), config=config, attempt="reaching the brokers")
    assert error.reason == reason
    assert words in error.message
    assert text not in error.message
