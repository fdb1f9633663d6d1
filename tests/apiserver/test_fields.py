"""What the CRD's structural schema refuses, and which defaults the API server fills in.

Covers bounds, patterns, enums, required fields, sets and maps by name, names at Kubernetes' own limit, and the
reference to another namespace's Secret (SE-01).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from outboxrelay_operator.api import OutboxRelaySpec
from tests.testbed.api import Api, ApiError, Object, path_of
from tests.testbed.relays import database, relay, topic

LONGEST_NAME = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])


def one(**fields: Any) -> Object:
    """A spec whose only database has these fields."""
    return {"databases": [database(**fields)]}


def only(**fields: Any) -> Object:
    """A spec whose only topic has these fields."""
    return {"topics": [topic(**fields)]}


def hosts(*names: str) -> Object:
    """A spec whose only database has these hosts."""
    entry = database(hosts=list(names))
    del entry["host"]
    return {"databases": [entry]}


def kafka(**fields: Any) -> Object:
    """A spec whose Kafka cluster has these fields."""
    return {"kafka": {"bootstrapServers": ["kafka:9093"], **fields}}


REFUSED: dict[str, tuple[Object, str]] = {
    "no databases": ({"databases": []}, "spec.databases: Invalid value: 0"),
    "65 databases": ({"databases": [database(f"d{n}") for n in range(65)]}, "spec.databases: Too many: 65"),
    "two databases of one name": ({"databases": [database(), database()]}, "spec.databases[1]: Duplicate value"),
    "database name in capitals": (one(name="Orders"), "spec.databases[0].name: Invalid value"),
    "database name of 64 characters": (one(name="a" * 64), "spec.databases[0].name: Too long"),
    "no host": (one(host=""), "spec.databases[0].host: Invalid value"),
    "a list of hosts": (one(host="a,b"), "spec.databases[0].host: Invalid value"),
    "a host with a port": (one(host="db:5432"), "spec.databases[0].host: Invalid value"),
    "a socket directory": (one(host="/run/postgresql"), "spec.databases[0].host: Invalid value"),
    "a connection string for a host": (one(host="x password=y"), "spec.databases[0].host: Invalid value"),
    "port 0": (one(port=0), "spec.databases[0].port: Invalid value: 0"),
    "port 65536": (one(port=65536), "spec.databases[0].port: Invalid value: 65536"),
    "port as text": (one(port="5432"), "spec.databases[0].port: Invalid value"),
    "database name with a line break": (one(dbname="a\nb"), "spec.databases[0].dbname: Invalid value"),
    "identifier of 64 characters": (one(table={"name": "x" * 64}), "spec.databases[0].table.name: Too long"),
    "Secret name in capitals": (
        one(credentialsSecretRef={"name": "Orders"}),
        "spec.databases[0].credentialsSecretRef.name: Invalid value",
    ),
    "Secret key with a slash": (
        one(credentialsSecretRef={"name": "x", "passwordKey": "../password"}),
        "spec.databases[0].credentialsSecretRef.passwordKey: Invalid value",
    ),
    "an unknown way to wake": (
        one(table={"wake": "Listen"}),
        'spec.databases[0].table.wake: Unsupported value: "Listen"',
    ),
    "TLS mode that falls back to plaintext": (
        one(tls={"mode": "prefer"}),
        'spec.databases[0].tls.mode: Unsupported value: "prefer"',
    ),
    "a duration without a unit": ({"retention": {"keepFor": "7"}}, "spec.retention.keepFor: Invalid value"),
    "an unknown retention policy": ({"retention": {"policy": "Archive"}}, "spec.retention.policy: Unsupported value"),
    "no brokers": ({"kafka": {"bootstrapServers": []}}, "spec.kafka.bootstrapServers"),
    "broker without a port": ({"kafka": {"bootstrapServers": ["kafka"]}}, "spec.kafka.bootstrapServers[0]"),
    "brokers as one string": ({"kafka": {"bootstrapServers": ["a:1,b:1"]}}, "spec.kafka.bootstrapServers[0]"),
    "one broker twice": ({"kafka": {"bootstrapServers": ["a:1", "a:1"]}}, "bootstrapServers[1]: Duplicate value"),
    "no hosts": (hosts(), "spec.databases[0].hosts: Invalid value: 0"),
    "five hosts": (hosts("a", "b", "c", "d", "e"), "spec.databases[0].hosts: Too many: 5"),
    "one host twice": (hosts("a", "a"), "spec.databases[0].hosts[1]: Duplicate value"),
    "a list in a list of hosts": (hosts("a,b"), "spec.databases[0].hosts[0]: Invalid value"),
    "a mechanism that does not exist": (
        kafka(sasl={"mechanism": "GSSAPI", "credentialsSecretRef": {"name": "x"}}),
        'spec.kafka.sasl.mechanism: Unsupported value: "GSSAPI"',
    ),
    "a login without a Secret": (
        kafka(sasl={"mechanism": "SCRAM-SHA-512"}),
        "spec.kafka.sasl.credentialsSecretRef: Required value",
    ),
    "a login to Kafka without a password": (
        kafka(sasl={"mechanism": "SCRAM-SHA-512", "credentialsSecretRef": {"name": "x", "passwordKey": ""}}),
        "spec.kafka.sasl.credentialsSecretRef.passwordKey: Invalid value",
    ),
    "a token endpoint without TLS": (
        kafka(
            tls={},
            sasl={
                "mechanism": "OAUTHBEARER",
                "credentialsSecretRef": {"name": "x"},
                "oauth": {"tokenEndpointUrl": "http://issuer/token"},
            },
        ),
        "spec.kafka.sasl.oauth.tokenEndpointUrl: Invalid value",
    ),
    "an unknown compression": (kafka(compression="lz4"), 'spec.kafka.compression: Unsupported value: "lz4"'),
    "a linger of two seconds": (kafka(config={"linger.ms": 2000}), "spec.kafka.config.linger.ms: Invalid value"),
    "no topics": ({"topics": []}, "spec.topics: Invalid value: 0"),
    "two topics of one name": (
        {"topics": [topic("x", match=["x"]), topic("x", match=["y"])]},
        "spec.topics[1]: Duplicate value",
    ),
    "topic with a space": (only(topic="shop orders"), "spec.topics[0].topic: Invalid value"),
    "topic of 250 characters": (only(topic="t" * 250), "spec.topics[0].topic: Too long"),
    "match of nothing": (only(match=[]), "spec.topics[0].match: Invalid value: 0"),
    "one route twice": (only(match=["a", "a"]), "spec.topics[0].match[1]: Duplicate value"),
    "topic of no database": (only(databases=[]), "spec.topics[0].databases: Invalid value: 0"),
    "replicas -1": ({"replicas": -1}, "spec.replicas: Invalid value: -1"),
    "replicas 257": ({"replicas": 257, "lanes": 256}, "spec.replicas: Invalid value: 257"),
    "half a replica": ({"replicas": 0.5}, "spec.replicas: Invalid value"),
    "no lanes": ({"lanes": 0}, "spec.lanes: Invalid value: 0"),
    "257 lanes": ({"lanes": 257}, "spec.lanes: Invalid value: 257"),
    "suspend as text": ({"suspend": "yes"}, "spec.suspend: Invalid value"),
    "a topic with a variable that there is not": (only(topic="x.${type}"), "spec.topics[0].topic: Invalid value"),
    "one header from two columns": (
        one(table={"columns": {"extraHeaders": [{"header": "a", "column": "b"}, {"header": "a", "column": "c"}]}}),
        "extraHeaders[1]: Duplicate value",
    ),
    "a format that there is not": ({"format": "Avro"}, 'spec.format: Unsupported value: "Avro"'),
    "a source with a space": (
        {"format": "CloudEvents", "cloudEvents": {"source": "a b"}},
        "spec.cloudEvents.source: Invalid value",
    ),
    "a media type without a slash": (
        {"format": "CloudEvents", "cloudEvents": {"contentType": "json"}},
        "spec.cloudEvents.contentType: Invalid value",
    ),
    "a policy that there is not": (
        {"onError": {"policy": "Drop"}},
        'spec.onError.policy: Unsupported value: "Drop"',
    ),
    "no attempt at all": (
        {"onError": {"policy": "DeadLetter", "topic": "dead", "attempts": 0}},
        "spec.onError.attempts: Invalid value: 0",
    ),
    "image with a space": ({"pod": {"image": "a b"}}, "spec.pod.image: Invalid value"),
    "pull secret twice": (
        {"pod": {"imagePullSecrets": [{"name": "x"}, {"name": "x"}]}},
        "spec.pod.imagePullSecrets[1]: Duplicate value",
    ),
    "memory in no unit": (
        {"pod": {"resources": {"limits": {"memory": "256MB"}}}},
        "spec.pod.resources.limits.memory: Invalid value",
    ),
    "negative CPU": ({"pod": {"resources": {"requests": {"cpu": "-1"}}}}, "spec.pod.resources.requests.cpu"),
}


@pytest.mark.parametrize(("spec", "complaint"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(spec: Object, complaint: str, crd: Object, api: Api, namespace: str) -> None:
    with pytest.raises(ApiError) as refusal:
        api.create(relay(namespace=namespace, **spec), dry_run=True)
    assert refusal.value.code == 422
    assert complaint in refusal.value.message


@pytest.mark.parametrize("field", ["databases", "kafka", "topics"])
def test_required(field: str, crd: Object, api: Api, namespace: str) -> None:
    body = relay(namespace=namespace)
    del body["spec"][field]
    with pytest.raises(ApiError) as refusal:
        api.create(body, dry_run=True)
    assert f"spec.{field}: Required value" in refusal.value.message


@pytest.mark.parametrize("field", ["name", "dbname", "credentialsSecretRef"])
def test_required_of_a_database(field: str, crd: Object, api: Api, namespace: str) -> None:
    body = relay(namespace=namespace)
    del body["spec"]["databases"][0][field]
    with pytest.raises(ApiError) as refusal:
        api.create(body, dry_run=True)
    assert f"spec.databases[0].{field}: Required value" in refusal.value.message


ACCEPTED: dict[str, Object] = {
    "IPv6": one(host="fd00::1"),
    "everything at its limit": one(
        name="d" * 63,
        host="h" * 253,
        dbname="x" * 63,
        credentialsSecretRef={"name": LONGEST_NAME, "usernameKey": "u" * 253},
        table={"schema": "s" * 63, "name": 'Out"box', "columns": {"id": "I" * 63}},
    ),
    "IPv6 broker": {"kafka": {"bootstrapServers": ["[fd00::1]:9092", "kafka-0.kafka:9092"]}},
    "longest topic": only(topic="t" * 249, match=["", "ünïcode", "x" * 128]),
    "dead letters": {
        "onError": {"policy": "DeadLetter", "topic": "t.dead", "attempts": 1000, "retryAfterSeconds": 300}
    },
    "four hosts": hosts("a", "b.c", "10.0.0.1", "fd00::1"),
    "every way to prove oneself": kafka(
        tls={"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "c", "certKey": "crt", "keyKey": "key"}},
        sasl={
            "mechanism": "OAUTHBEARER",
            "credentialsSecretRef": {"name": "client"},
            "oauth": {"tokenEndpointUrl": "https://issuer/token", "scope": "a b", "caSecretRef": {"name": "oidc"}},
        },
        compression="Zstd",
        config={"linger.ms": 20, "connections.max.idle.ms": 180000, "socket.keepalive.enable": True},
    ),
    "cloud events": {
        "format": "CloudEvents",
        "cloudEvents": {
            "source": "https://shop.example/orders?a=1#b",
            "contentType": "application/cloudevents; charset=utf-8",
        },
    },
    "routing by columns": {
        **only(topic="a.${route}.${topic}"),
        **one(
            table={
                "columns": {
                    "topic": "t",
                    "partition": "p",
                    "createdAt": "c",
                    "extraHeaders": [{"header": "traceparent", "column": "trace"}],
                }
            }
        ),
        "timestamps": "CreatedAt",
    },
    "no pods": {"replicas": 0},
    "most pods": {"replicas": 256, "lanes": 256},
    "resources as numbers": {"pod": {"resources": {"limits": {"cpu": 2, "memory": 268435456}}}},
    "secrets for pulling": {"pod": {"imagePullSecrets": [{"name": "registry"}, {"name": LONGEST_NAME}]}},
    "image by digest": {"pod": {"image": f"registry.example:5000/relay@sha256:{'0' * 64}"}},
}


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted_and_understood_by_the_operator(spec: Object, crd: Object, api: Api, namespace: str) -> None:
    stored = api.create(relay(namespace=namespace, **spec), dry_run=True)
    OutboxRelaySpec.model_validate(stored["spec"])


def test_longest_name(crd: Object, api: Api, namespace: str) -> None:
    assert len(LONGEST_NAME) == 253
    api.create(relay(LONGEST_NAME, namespace=namespace), dry_run=True)
    with pytest.raises(ApiError, match="must be no more than 253"):
        api.create(relay(LONGEST_NAME + "d", namespace=namespace), dry_run=True)


def test_the_server_fills_in_the_models_defaults(crd: Object, api: Api, namespace: str) -> None:
    short = relay(namespace=namespace)
    stored = api.create(short, dry_run=True)["spec"]
    assert (stored["replicas"], stored["lanes"], stored["suspend"]) == (1, 16, False)
    assert stored["databases"][0]["port"] == 5432
    assert stored["databases"][0]["table"]["columns"]["key"] == "aggregateid"
    assert stored == OutboxRelaySpec.model_validate(short["spec"]).model_dump(mode="json", exclude_none=True)


def test_unknown_field_is_refused(crd: Object, api: Api, namespace: str) -> None:
    with pytest.raises(ApiError, match=r'unknown field "spec.replay"') as refusal:
        api.create(relay(namespace=namespace, replay={"policy": "Keep"}), dry_run=True)
    assert refusal.value.code == 400


def test_se_01_no_secret_of_another_namespace(crd: Object, api: Api, namespace: str) -> None:
    """cases.md SE-01: there is no such field; whoever turns validation off gets it dropped, not honoured."""
    body = relay(namespace=namespace, databases=[database(credentialsSecretRef={"name": "x", "namespace": "victim"})])
    with pytest.raises(ApiError, match=r'unknown field "spec.databases\[0\].credentialsSecretRef.namespace"'):
        api.create(body, dry_run=True)

    lax = {"fieldValidation": "Ignore", "dryRun": "All"}
    stored = api.request("POST", path_of("OutboxRelay", namespace=namespace), body=body, query=lax)
    assert stored["spec"]["databases"][0]["credentialsSecretRef"] == {
        "name": "x",
        "usernameKey": "username",
        "passwordKey": "password",
    }


@pytest.mark.parametrize("setting", ["acks", "enable.idempotence", "message.timeout.ms", "partitioner"])
def test_what_delivery_and_order_depend_on_cannot_be_chosen(
    setting: str, crd: Object, api: Api, namespace: str
) -> None:
    with pytest.raises(ApiError, match=rf'unknown field "spec.kafka.config.{setting}"'):
        api.create(relay(namespace=namespace, **kafka(config={setting: "1"})), dry_run=True)


POD_OVERRIDES = {"image", "imagePullSecrets", "resources"}
"""All that `spec.pod` may say."""


def fields_of_pods(api: Api) -> set[str]:
    """Every field of a pod's spec and of its containers that this server knows."""
    schemas = json.loads(api.text("GET", "/openapi/v3/api/v1"))["components"]["schemas"]
    kinds = (schemas[f"io.k8s.api.core.v1.{kind}"]["properties"] for kind in ("PodSpec", "Container"))
    return {field for properties in kinds for field in properties}


def test_se_01_pod_overrides_are_an_allow_list(crd: Object, api: Api, namespace: str) -> None:
    """cases.md SE-01: nothing else would leave the pod's rights and files what the operator meant them to be."""
    others = fields_of_pods(api) - POD_OVERRIDES
    assert others >= {
        "serviceAccountName",
        "volumes",
        "securityContext",
        "hostNetwork",
        "env",
        "command",
        "volumeMounts",
    }
    with pytest.raises(ApiError) as refusal:
        api.create(relay(namespace=namespace, pod=dict.fromkeys(others, "x")), dry_run=True)
    assert set(re.findall(r'unknown field "spec\.pod\.(\w+)"', refusal.value.message)) == others


def test_se_01_whoever_turns_validation_off_overrides_no_more(crd: Object, api: Api, namespace: str) -> None:
    """cases.md SE-01."""
    lax = {"fieldValidation": "Ignore", "dryRun": "All"}
    pod = dict.fromkeys(fields_of_pods(api) - POD_OVERRIDES, "x") | {"image": "relay:1"}
    stored = api.request(
        "POST", path_of("OutboxRelay", namespace=namespace), body=relay(namespace=namespace, pod=pod), query=lax
    )
    assert stored["spec"]["pod"] == {"image": "relay:1"}
    inside = {"resources": {"limits": {"cpu": 1, "example.com/device": 1}, "claims": [{"name": "x"}]}}
    stored = api.request(
        "POST", path_of("OutboxRelay", namespace=namespace), body=relay(namespace=namespace, pod=inside), query=lax
    )
    assert stored["spec"]["pod"] == {"resources": {"limits": {"cpu": 1}}}
