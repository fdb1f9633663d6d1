"""The rules of the resource in Python: each holds for what is right and breaks for what is wrong.

The same rules as CEL are tried on the real API server in tests/apiserver.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from outboxrelay_operator.api import OutboxRelaySpec
from tests.unit.operator.builders import raw_database, raw_spec, raw_topic, spec

CA = {"caSecretRef": {"name": "ca"}}


def with_columns(**columns: str) -> dict[str, Any]:
    return raw_spec(databases=[raw_database(table={"columns": columns})])


def with_extra_header(header: str) -> dict[str, Any]:
    return raw_spec(databases=[raw_database(table={"columns": {"extraHeaders": [{"header": header, "column": "h"}]}})])


OAUTH = {"tokenEndpointUrl": "https://issuer/token"}


def with_sasl(mechanism: str, *, tls: dict[str, Any] | None = None, **sasl: Any) -> dict[str, Any]:
    kafka: dict[str, Any] = {"bootstrapServers": ["kafka:9092"], "tls": tls}
    return raw_spec(kafka=kafka | {"sasl": {"mechanism": mechanism, "credentialsSecretRef": {"name": "k"}} | sasl})


def marking(**mark: str) -> dict[str, Any]:
    return raw_spec(retention={"policy": "Mark", "mark": {"column": "status", "sent": "done"} | mark})


WRONG = [
    (marking(errorColumn="payload"), "must not be columns of table.columns"),
    (marking(sentAtColumn="type"), "must not be columns of table.columns"),
    (marking(column="id"), "must not be columns of table.columns"),
    (
        marking(errorColumn="trace")
        | {
            "databases": [
                raw_database(table={"columns": {"extraHeaders": [{"header": "traceparent", "column": "trace"}]}})
            ]
        },
        "must not be columns of table.columns",
    ),
    (raw_spec(replicas=17), "replicas must not be above lanes"),
    (raw_spec(slo={}), "slo must give maxLagSeconds or maxBacklog"),
    (raw_spec(autoscaling={"maxReplicas": 17}), "maxReplicas must not be above lanes"),
    (raw_spec(autoscaling={"minReplicas": 3, "maxReplicas": 2}), "minReplicas must not be above maxReplicas"),
    (raw_spec(topics=[raw_topic(databases=["nowhere"])]), "must name entries of spec.databases"),
    (
        raw_spec(
            databases=[raw_database(f"d{n}") for n in range(17)],
            topics=[raw_topic(f"t{n}", match=[str(n)]) for n in range(16)],
        ),
        "more than 256 pairs",
    ),
    (
        raw_spec(databases=[raw_database(table={"columns": {"route": ""}})], topics=[raw_topic(match=["order"])]),
        "match needs table.columns.route",
    ),
    (raw_spec(topics=[raw_topic("a", match=["x", "y"]), raw_topic("b", match=["y"])]), "must not match the same route"),
    (raw_spec(topics=[raw_topic("a"), raw_topic("b")]), "at most one topic of a database may omit match"),
    (
        raw_spec(topics=[raw_topic("a", topic="t", match=["x"]), raw_topic("b", topic="t")]),
        "must not name the same Kafka topic",
    ),
    (raw_spec(topics=[raw_topic(topic="..")]), "topic must not be . or .."),
    (raw_spec(databases=[raw_database(tls={"mode": "verify-full"})]), "need caSecretRef"),
    (raw_spec(databases=[raw_database(tls={"mode": "require"} | CA)]), "caSecretRef is only used by"),
    (
        raw_spec(databases=[raw_database(tls={"mode": "disable", "clientCertSecretRef": {"name": "c"}})]),
        "mode disable shows no certificate",
    ),
    (raw_spec(databases=[raw_database(hosts=["a", "b"])]), "exactly one of host and hosts"),
    (raw_spec(databases=[{**raw_database(), "host": None}]), "exactly one of host and hosts"),
    (
        raw_spec(databases=[raw_database(credentialsSecretRef={"name": "x", "passwordKey": ""})]),
        "an empty passwordKey needs",
    ),
    (
        raw_spec(
            databases=[
                raw_database("a", dbname="d", host="h"),
                raw_database("b", dbname="d", host=None, hosts=["g", "h"]),
            ]
        ),
        "must not be the same table",
    ),
    (with_sasl("PLAIN"), "PLAIN and OAUTHBEARER need tls"),
    (with_sasl("OAUTHBEARER", oauth=OAUTH), "PLAIN and OAUTHBEARER need tls"),
    (with_sasl("OAUTHBEARER", tls={}), "oauth must be given with mechanism OAUTHBEARER"),
    (with_sasl("SCRAM-SHA-512", tls={}, oauth=OAUTH), "oauth must be given with mechanism OAUTHBEARER"),
    (with_columns(payload="id"), "must be different columns"),
    (with_columns(createdAt="payload"), "must be different columns"),
    (with_columns(lane="id"), "must be different columns"),
    (raw_spec(databases=[raw_database(), raw_database()]), "must be unique"),
    (
        raw_spec(databases=[raw_database("a", dbname="d", host="h"), raw_database("b", dbname="d", host="h")]),
        "must not be the same table",
    ),
    (
        raw_spec(pod={"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "512Mi"}}}),
        "a request must not be above its limit",
    ),
    (raw_spec(retention={"policy": "Mark"}), "policy Mark needs mark"),
    (raw_spec(retention={"mark": {"column": "s"}}), "only policy Mark has it"),
    (raw_spec(retention={"keep": {"table": "sent"}}), "only policy Keep has keep"),
    (raw_spec(retention={"keepFor": "7d"}), "keepFor needs policy Mark or Keep"),
    (
        raw_spec(retention={"policy": "Mark", "keepFor": "7d", "mark": {"column": "s", "sent": "x"}}),
        "keepFor needs mark.sentAtColumn",
    ),
    (raw_spec(retention={"policy": "Mark", "mark": {"column": "s", "pending": "x"}}), "give sent too"),
    (
        raw_spec(retention={"policy": "Mark", "mark": {"column": "s", "sent": "x", "failed": "x"}}),
        "pending, sent and failed must differ",
    ),
    (
        raw_spec(retention={"policy": "Mark", "mark": {"column": "s", "sent": "x", "errorColumn": "s"}}),
        "must be different columns",
    ),
    *(
        (with_extra_header(header) | {"format": format_}, "extraHeaders must not have names")
        for format_, header in (
            ("Plain", "outbox-type"),
            ("Debezium", "id"),
            ("CloudEvents", "ce_id"),
            ("Plain", "outbox-error-reason"),
        )
    ),
    (with_columns(route="") | {"topics": [raw_topic(topic="x.${route}")]}, "{route} in a topic needs"),
    (raw_spec(topics=[raw_topic(topic="${topic}")]), "{topic} in a topic needs"),
    (raw_spec(timestamps="CreatedAt"), "timestamps CreatedAt needs"),
    (raw_spec(cloudEvents={}), "cloudEvents is only used by"),
    (with_columns(type="") | {"format": "CloudEvents"}, "format CloudEvents needs table.columns.type"),
    (raw_spec(onError={"policy": "DeadLetter"}), "policy DeadLetter needs topic"),
    (raw_spec(onError={"topic": "dead"}), "policy DeadLetter needs topic"),
    (raw_spec(onError={"policy": "DeadLetter", "topic": "."}), "onError.topic must not be . or .."),
    (raw_spec(onError={"attempts": 2}), "policy Park never gives a row up"),
    (raw_spec(onError={"retryAfterSeconds": 20, "maxRetryAfterSeconds": 10}), "retryAfterSeconds must not be above"),
    (
        raw_spec(topics=[raw_topic(topic="t")], onError={"policy": "DeadLetter", "topic": "t"}),
        "onError.topic must not be one of spec.topics",
    ),
]


@pytest.mark.parametrize(("raw", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_broken_rule_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OutboxRelaySpec.model_validate(raw)


RIGHT = {
    "as many replicas as lanes": raw_spec(replicas=16),
    "autoscaling up to lanes": raw_spec(autoscaling={"minReplicas": 16, "maxReplicas": 16}),
    "an slo of one limit": raw_spec(slo={"maxBacklog": 1}),
    "autoscaling to zero": raw_spec(autoscaling={"minReplicas": 0, "maxReplicas": 1}),
    "256 pairs": raw_spec(
        databases=[raw_database(f"d{n}") for n in range(16)],
        topics=[raw_topic(f"t{n}", match=[str(n)]) for n in range(16)],
    ),
    "the same route in different databases": raw_spec(
        databases=[raw_database("a"), raw_database("b")],
        topics=[
            raw_topic("a", topic="t", match=["x"], databases=["a"]),
            raw_topic("b", topic="t", match=["x"], databases=["b"]),
        ],
    ),
    "one catch-all for each database": raw_spec(
        databases=[raw_database("a"), raw_database("b")],
        topics=[raw_topic("a", databases=["a"]), raw_topic("b", databases=["b"]), raw_topic("c", match=["x"])],
    ),
    "no route column where nothing matches": raw_spec(
        databases=[raw_database("a", table={"columns": {"route": ""}}), raw_database("b")],
        topics=[raw_topic("all", databases=["a"]), raw_topic("some", match=["x"], databases=["b"])],
    ),
    "one column for route and type": with_columns(route="event_type", type="event_type"),
    "a header that another format has": with_extra_header("ce_id"),
    "no type column": with_columns(type=""),
    "a request at its limit": raw_spec(
        pod={"resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "0.5Gi", "cpu": 1}}}
    ),
}


@pytest.mark.parametrize("raw", RIGHT.values(), ids=RIGHT.keys())
def test_what_keeps_the_rules_is_taken(raw: dict[str, Any]) -> None:
    assert OutboxRelaySpec.model_validate(raw).databases


@pytest.mark.parametrize(
    ("tls", "mode"),
    [(None, "require"), ({}, "require"), (CA, "verify-full"), (CA | {"mode": "verify-ca"}, "verify-ca")],
)
def test_se_05_tls_is_never_less_than_encrypted_unless_it_is_said(tls: dict[str, Any] | None, mode: str) -> None:
    """cases.md SE-05."""
    raw = raw_database() if tls is None else raw_database(tls=tls)
    assert spec(databases=[raw]).databases[0].tls.effective_mode == mode


@pytest.mark.parametrize("host", ["a,b", "/run/postgresql", "a b", "", "db?x", "-db", "db:5432", "10.0.0.1:5432"])
def test_a_host_that_libpq_would_take_for_something_else_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        spec(databases=[raw_database(host=host)])


@pytest.mark.parametrize(
    "host",
    ["db", "db.shop.svc", "10.0.0.1", "::1", "fd00::1", "1:2:3:4:5:6:7:8", "::ffff:10.0.0.1", "DB-1.example.com"],
)
def test_hosts(host: str) -> None:
    assert spec(databases=[raw_database(host=host)]).databases[0].host == host


@pytest.mark.parametrize("server", ["kafka", "kafka:", "PLAINTEXT://kafka:9092", "a:1,b:2", "kafka:123456"])
def test_a_bootstrap_server_is_one_host_and_port(server: str) -> None:
    with pytest.raises(ValidationError):
        spec(kafka={"bootstrapServers": [server]})


def keeping(duration: str) -> dict[str, Any]:
    return raw_spec(retention={"policy": "Keep", "keepFor": duration})


def matching(route: str) -> dict[str, Any]:
    return raw_spec(topics=[raw_topic(match=[route])])


def fetching(url: str) -> dict[str, Any]:
    return with_sasl("OAUTHBEARER", tls={}, oauth={"tokenEndpointUrl": url})


@pytest.mark.parametrize(
    ("refused", "accepted"),
    [
        (keeping("100000d"), keeping("99999d")),
        (fetching("https://user:password@issuer/token"), fetching("https://issuer/token?for=a@b")),
        (fetching("https:///token"), fetching("https://issuer:8443")),
        (matching("a\0b"), matching("a\n'%b")),
    ],
    ids=["a time that PostgreSQL has not", "a secret in a URL", "no host", "a text that PostgreSQL has not"],
)
def test_the_form_of_a_value(refused: dict[str, Any], accepted: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OutboxRelaySpec.model_validate(refused)
    OutboxRelaySpec.model_validate(accepted)
