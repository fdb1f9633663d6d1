"""Pure builders of everything in the demo's namespace, apart from the OutboxRelay itself.

Databases and broker are the testbed's. The shop's code is brought by a ConfigMap and runs on the relay image's
Python and drivers: that spares an image, and the product is not imported.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.demo.shop.consumer import PORT, TOPICS
from tests.demo.shop.orders import ACCOUNTS, ORDERS
from tests.testbed.services.certificates import Authority
from tests.testbed.services.pods import (
    Login,
    PodCertificate,
    PodDatabase,
    kafka_manifests,
    postgres_manifests,
    service_names,
)

Manifest = dict[str, Any]

NAMESPACE = "shop"
RELAY_IMAGE = "outboxrelay/relay:dev"
DATABASES = ("orders", "payments")
PARTITIONS = 6

_HERE = Path(__file__).parent
_CODE = "/opt/demo"


def namespace() -> Manifest:
    """The namespace, at the strictest Pod Security level."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }


def services() -> list[Manifest]:
    """Two PostgreSQL servers with TLS under one CA, and a broker with the topics; new passwords at every call."""
    authority = Authority()
    made = kafka_manifests(namespace=NAMESPACE, name="kafka", topics=dict.fromkeys(TOPICS, PARTITIONS))
    for database in DATABASES:
        name = f"{database}-db"
        certificate = authority.issue(*service_names(namespace=NAMESPACE, name=name))
        relay = Login("relay", secrets.token_urlsafe(18), f"{name}-relay")
        made += postgres_manifests(
            namespace=NAMESPACE,
            name=name,
            databases=[
                PodDatabase(
                    dbname=database,
                    owner=Login("shop", secrets.token_urlsafe(18), f"{name}-shop"),
                    logins=(relay,),
                    setup=setup_sql(database, relay=relay.user),
                )
            ],
            certificate=PodCertificate(certificate.certificate, certificate.key, authority.pem),
        )
    return made


def setup_sql(database: str, *, relay: str) -> str:
    """The tables of one database, with the right of the relay's login to its outbox."""
    text = (_HERE / "sql" / f"{database}.sql").read_text()
    return text.format(relay=relay, orders=ORDERS, accounts=ACCOUNTS)


def shop() -> list[Manifest]:
    """The shop's writer, which does not write yet, and the delivery service."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "shop-code", "namespace": NAMESPACE},
            "data": {path.name: path.read_text() for path in sorted((_HERE / "shop").glob("*.py"))},
        },
        _deployment("shop-writer", module="shop.writer", replicas=0, probe=None),
        _deployment("delivery", module="shop.consumer", replicas=1, probe={"path": "/livez", "port": PORT}),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "delivery", "namespace": NAMESPACE},
            "spec": {"selector": {"app": "delivery"}, "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
        },
    ]


def _deployment(name: str, *, module: str, replicas: int, probe: Mapping[str, Any] | None) -> Manifest:
    container: Manifest = {
        "name": "shop",
        "image": RELAY_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", module],
        "workingDir": _CODE,
        "env": [{"name": "KAFKA", "value": "kafka:9092"}, *_database_variables()],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "code", "mountPath": f"{_CODE}/shop", "readOnly": True},
            *(
                {"name": f"{database}-{part}", "mountPath": f"/etc/shop/{database}/{part}", "readOnly": True}
                for database in DATABASES
                for part in ("login", "ca")
            ),
        ],
    }
    if probe is not None:
        container["readinessProbe"] = {"httpGet": dict(probe), "periodSeconds": 2}
        container["livenessProbe"] = {"httpGet": dict(probe), "periodSeconds": 10, "failureThreshold": 3}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 10,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [container],
                    "volumes": [{"name": "code", "configMap": {"name": "shop-code"}}, *_database_volumes()],
                },
            },
        },
    }


def _database_variables() -> list[Manifest]:
    variables: dict[str, str] = {}
    for database in DATABASES:
        mounted = f"/etc/shop/{database}"
        variables[f"{database.upper()}_DATABASE"] = (
            f"host={database}-db dbname={database} sslmode=verify-full sslrootcert={mounted}/ca/ca.crt"
        )
        variables[f"{database.upper()}_LOGIN"] = f"{mounted}/login"
    return [{"name": name, "value": value} for name, value in variables.items()]


def _database_volumes() -> list[Manifest]:
    return [
        {"name": f"{database}-{part}", "secret": {"secretName": f"{database}-db-{secret}"}}
        for database in DATABASES
        for part, secret in (("login", "shop"), ("ca", "ca"))
    ]
