"""What the operator renders is what the relay reads, for every shape that a spec can have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from outboxrelay import config
from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.api.kafka import KafkaConfig
from outboxrelay_operator.api.schema import structural
from outboxrelay_operator.desired.relay_config import relay_config
from outboxrelay_operator.pairs import pairs_of
from tests.unit.operator.builders import KEY, raw_database, raw_spec, raw_topic

EVERY_COLUMN = {
    "id": "n",
    "key": "k",
    "route": "r",
    "type": "t",
    "payload": "p",
    "headers": "h",
    "createdAt": "c",
    "messageId": "m",
    "topic": "o",
    "partition": "q",
    "lane": "l",
    "extraHeaders": [{"header": "traceparent", "column": "x"}, {"header": "tenant", "column": "y"}],
}
SPECS: dict[str, dict[str, Any]] = {
    "the smallest": raw_spec(),
    "everything": raw_spec(
        databases=[
            raw_database(
                port=6432,
                tls={"mode": "verify-ca", "caSecretRef": {"name": "ca"}},
                table={"schema": "Sales", "name": "Out Box", "columns": EVERY_COLUMN, "wake": "Notify"},
            )
        ],
        topics=[raw_topic("a", match=["order", ""], topic="a.${route}.${topic}"), raw_topic("b")],
        timestamps="CreatedAt",
        kafka={"bootstrapServers": ["a:1", "[::1]:2"]},
        format="CloudEvents",
        cloudEvents={"source": "/shop", "contentType": "text/plain"},
        onError={
            "policy": "DeadLetter",
            "topic": "dead",
            "attempts": 7,
            "retryAfterSeconds": 2,
            "maxRetryAfterSeconds": 20,
        },
        retention={
            "policy": "Mark",
            "keepFor": "12h",
            "mark": {
                "column": "state",
                "pending": "new",
                "sent": "done",
                "failed": "bad",
                "errorColumn": "why",
                "sentAtColumn": "at",
            },
        },
        lanes=256,
        replicas=0,
    ),
    "a second table": raw_spec(retention={"policy": "Keep", "keep": {"table": "archive"}, "keepFor": "30m"}),
    "a column of times": raw_spec(retention={"policy": "Mark", "mark": {"column": "published_at"}, "keepFor": "7d"}),
    "every way to prove oneself": raw_spec(
        databases=[
            raw_database(
                host=None,
                hosts=["a", "b"],
                credentialsSecretRef={"name": "db", "passwordKey": ""},
                tls={"clientCertSecretRef": {"name": "db-cert"}},
            )
        ],
        kafka={
            "bootstrapServers": ["kafka:9093"],
            "tls": {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "cert", "keyKey": "k"}},
            "sasl": {
                "mechanism": "OAUTHBEARER",
                "credentialsSecretRef": {"name": "client"},
                "oauth": {"tokenEndpointUrl": "https://i/t", "scope": "a b", "caSecretRef": {"name": "oidc-ca"}},
            },
            "compression": "None",
            "config": {"linger.ms": 20, "socket.keepalive.enable": True, "broker.address.family": "v4"},
        },
    ),
    "TLS with the system's authorities": raw_spec(kafka={"bootstrapServers": ["kafka:9093"], "tls": {}}),
    "no route and no type column": raw_spec(
        databases=[raw_database(table={"columns": {"route": "", "type": ""}}, tls={"mode": "disable"})]
    ),
    "the longest names": raw_spec(
        databases=[raw_database("d" * 63, host="h" * 253, dbname="b" * 63)],
        topics=[raw_topic("t" * 63, topic="T" * 249)],
    ),
}


@pytest.mark.parametrize("raw", SPECS.values(), ids=SPECS.keys())
def test_a_rendered_configuration_is_read_back_as_it_was_meant(raw: dict[str, Any]) -> None:
    spec = OutboxRelaySpec.model_validate(raw)
    for pair in pairs_of(KEY, spec):
        text = relay_config(pair, spec)
        read = config.parse(text, source="test")
        assert config.dump(read) == text
        assert read.pair.name == pair.name
        assert read.pair.owner == "shop/shop"
        assert read.match == pair.match
        assert read.lanes == spec.lanes
        assert read.database.servers == pair.database.servers
        assert read.database.tls.mode == pair.database.tls.effective_mode
        assert (read.database.tls.ca_file is None) == (pair.database.tls.ca_secret_ref is None)
        assert read.table.columns.route == (pair.database.table.columns.route or None)
        assert read.kafka.bootstrap_servers == spec.kafka.bootstrap_servers


def test_what_becomes_of_faulty_rows_is_passed_on() -> None:
    def rendered(raw: dict[str, Any]) -> config.RelayConfig:
        spec = OutboxRelaySpec.model_validate(raw)
        return config.parse(relay_config(pairs_of(KEY, spec)[0], spec), source="test")

    everything = rendered(SPECS["everything"])
    assert everything.on_error == config.OnError(policy="DeadLetter", topic="dead", attempts=7)
    assert everything.tuning == config.Tuning(row_retry_min_seconds=2, row_retry_max_seconds=20)
    few = rendered(raw_spec(onError={"policy": "DeadLetter", "topic": "dead"}))
    assert few.on_error.attempts == 3
    assert rendered(raw_spec(onError={"policy": "Halt"})).on_error == config.OnError(policy="Halt", attempts=1)
    assert rendered(raw_spec()).on_error == config.OnError()


def test_what_becomes_of_sent_rows_is_passed_on() -> None:
    def rendered(raw: dict[str, Any]) -> config.Retention:
        spec = OutboxRelaySpec.model_validate(raw)
        return config.parse(relay_config(pairs_of(KEY, spec)[0], spec), source="test").retention

    assert rendered(SPECS["everything"]) == config.Retention(
        policy="Mark",
        keep_for_seconds=12 * 3600,
        mark=config.Mark(
            column="state",
            pending="new",
            sent="done",
            failed="bad",
            error_column="why",
            sent_at_column="at",
        ),
    )
    assert rendered(SPECS["a column of times"]).keep_for_seconds == 7 * 86_400
    second = config.Retention(policy="Keep", keep_for_seconds=1800, keep=config.Keep(table="archive"))
    assert rendered(SPECS["a second table"]) == second
    assert rendered(raw_spec()) == config.Retention()


def test_every_setting_that_may_be_chosen_is_known_to_the_relay() -> None:
    """The same names and bounds on both sides: what the API server lets pass must not stop the relay."""
    ours, theirs = structural(KafkaConfig)["properties"], structural(config.KafkaSettings)["properties"]
    assert {name: field | {"description": ""} for name, field in ours.items()} == {
        name: field | {"description": ""} for name, field in theirs.items()
    }


@pytest.mark.parametrize(
    "setting", ["acks", "enable.idempotence", "message.timeout.ms", "partitioner", "transactional.id"]
)
def test_what_delivery_and_order_depend_on_cannot_be_chosen(setting: str) -> None:
    assert setting not in structural(KafkaConfig)["properties"]
    with pytest.raises(ValidationError):
        config.KafkaSettings.model_validate({setting: "1"})


def test_every_way_to_prove_oneself_names_its_files() -> None:
    spec = OutboxRelaySpec.model_validate(SPECS["every way to prove oneself"])
    document = json.loads(relay_config(pairs_of(KEY, spec)[0], spec))
    root = "/etc/outboxrelay"
    assert document["database"]["credentials"] == {"username_file": f"{root}/database/username"}
    assert document["database"]["tls"]["client_certificate"] == {
        "certificate_file": f"{root}/database-certificate/tls.crt",
        "key_file": f"{root}/database-certificate/tls.key",
    }
    assert document["kafka"]["tls"] == {
        "ca_file": f"{root}/kafka-ca/ca.crt",
        "client_certificate": {
            "certificate_file": f"{root}/kafka-certificate/tls.crt",
            "key_file": f"{root}/kafka-certificate/tls.key",
        },
    }
    assert document["kafka"]["sasl"] == {
        "mechanism": "OAUTHBEARER",
        "username_file": f"{root}/kafka/username",
        "password_file": f"{root}/kafka/password",
        "oauth": {"token_endpoint_url": "https://i/t", "scope": "a b", "ca_file": f"{root}/oauth-ca/ca.crt"},
    }
    assert document["kafka"]["compression"] == "none"
    assert document["kafka"]["settings"] == {
        "broker.address.family": "v4",
        "linger.ms": 20,
        "socket.keepalive.enable": True,
    }


def test_the_format_is_passed_on() -> None:
    spec = OutboxRelaySpec.model_validate(SPECS["everything"])
    read = config.parse(relay_config(pairs_of(KEY, spec)[0], spec), source="test")
    assert read.kafka.topic == "a.${route}.${topic}"
    assert read.timestamps == "CreatedAt"
    columns = read.table.columns
    assert (columns.topic, columns.partition) == ("o", "q")
    assert [(extra.header, extra.column) for extra in columns.extra_headers] == [("traceparent", "x"), ("tenant", "y")]
    assert read.format == "CloudEvents"
    assert read.cloud_events == config.CloudEvents(source="/shop", content_type="text/plain")


def test_it_names_files_and_holds_no_secret() -> None:
    spec = OutboxRelaySpec.model_validate(SPECS["everything"])
    credentials = json.loads(relay_config(pairs_of(KEY, spec)[0], spec))["database"]["credentials"]
    assert credentials == {
        "username_file": "/etc/outboxrelay/database/username",
        "password_file": "/etc/outboxrelay/database/password",
    }


def test_the_text_is_stable() -> None:
    """Its hash is in the pod template: another text for the same spec would restart every relay."""
    spec = OutboxRelaySpec.model_validate(SPECS["the smallest"])
    text = relay_config(pairs_of(KEY, spec)[0], spec)
    assert json.loads(text)["pair"]["name"] == "shop-orders-orders-a11755"
    assert config.digest(text) == "986e5de2c1c05ddc"
