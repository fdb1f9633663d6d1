"""The manifests of the pods that play database and broker: names, quoting, and no secret outside a Secret."""

from __future__ import annotations

import base64
import json

from tests.testbed.services.pods import (
    Login,
    Manifest,
    PodCertificate,
    PodDatabase,
    kafka_manifests,
    postgres_manifests,
    service_names,
)

PASSWORD = "it's a \\ secret"


def postgres() -> dict[tuple[str, str], Manifest]:
    """The manifests of one server with one database, by kind and name."""
    manifests = postgres_manifests(
        namespace="shop",
        name="orders-db",
        databases=[
            PodDatabase(
                dbname="orders",
                owner=Login(user='odd"name', password=PASSWORD, secret="owner"),
                logins=(Login(user="relay", password="other", secret="relay-login"),),
                setup="create table outbox (id bigint);",
            )
        ],
        certificate=PodCertificate(certificate=b"cert", key=b"key", ca=b"ca"),
    )
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def decoded(secret: Manifest) -> dict[str, str]:
    """The data of a Secret as text."""
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def test_each_login_has_a_secret_as_the_operator_wants_it() -> None:
    found = postgres()
    assert decoded(found["Secret", "owner"]) == {"username": 'odd"name', "password": PASSWORD}
    assert decoded(found["Secret", "relay-login"]) == {"username": "relay", "password": "other"}
    assert decoded(found["Secret", "orders-db-ca"]) == {"ca.crt": "ca"}
    assert decoded(found["Secret", "orders-db-tls"]) == {"tls.crt": "cert", "tls.key": "key"}


def test_names_and_passwords_are_quoted_in_the_sql() -> None:
    script = decoded(postgres()["Secret", "orders-db-init"])["00-orders.sql"]
    assert "create role \"odd\"\"name\" login password 'it''s a \\ secret';" in script
    assert 'create database "orders" owner "odd""name";' in script
    assert script.index("set session authorization") < script.index("create table outbox")


def test_no_password_and_no_key_is_outside_a_secret() -> None:
    for (kind, _), manifest in postgres().items():
        if kind != "Secret":
            text = json.dumps(manifest)
            assert PASSWORD not in text
            assert "password" not in text


def test_every_pod_fits_the_restricted_level() -> None:
    deployments = [
        manifest
        for manifest in [*postgres().values(), *kafka_manifests(namespace="shop", name="kafka", topics={"a": 1})]
        if manifest["kind"] == "Deployment"
    ]
    assert len(deployments) == 2
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_broker_tells_clients_its_service_and_makes_the_topics() -> None:
    _, deployment = kafka_manifests(namespace="shop", name="kafka", topics={"shop.orders": 6, "shop.payments": 3})
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {entry["name"]: entry["value"] for entry in container["env"]} == {
        "KAFKA_ADVERTISED": "kafka.shop.svc",
        "KAFKA_TOPICS": "shop.orders:6 shop.payments:3",
    }


def test_the_certificate_is_for_every_name_of_the_service() -> None:
    assert service_names(namespace="shop", name="db") == ("db", "db.shop", "db.shop.svc", "db.shop.svc.cluster.local")
