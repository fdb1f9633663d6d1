"""Pure builders of the manifests that run PostgreSQL and Kafka behind Services, for demo and e2e.

Nothing here talks to a cluster: apply the dicts, and wait for the Deployments to be available. Data lies on an
emptyDir: it survives a crash or a restart of the container, not the deletion of the pod. To play an outage of the
broker do not scale to zero; stop its process (see images/kafka/broker.py):

    kubectl exec deploy/kafka -- broker stop        # the pod stays, unready; connections are refused
    kubectl exec deploy/kafka -- broker start       # the same log again
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.testbed.services.images import IMAGES

Manifest = dict[str, Any]

POSTGRES_UID = 10001
KAFKA_UID = 10002


@dataclass(frozen=True, slots=True)
class Login:
    """A role of the server; its Secret `secret` has the keys username and password."""

    user: str
    password: str
    secret: str


@dataclass(frozen=True, slots=True)
class PodDatabase:
    """A database to be made at the first start.

    `owner` owns the database and runs `setup` in it (tables, and grants to the other logins).
    """

    dbname: str
    owner: Login
    logins: tuple[Login, ...] = ()
    setup: str = ""


@dataclass(frozen=True, slots=True)
class PodCertificate:
    """PEM texts: the server's certificate for the Service's names (see `service_names`), its key, and the CA."""

    certificate: bytes
    key: bytes
    ca: bytes


def service_names(*, namespace: str, name: str) -> tuple[str, ...]:
    """The host names a Service is reached by, for the server's certificate."""
    return (name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local")


def postgres_manifests(
    *, namespace: str, name: str, databases: Sequence[PodDatabase], certificate: PodCertificate
) -> list[Manifest]:
    """A PostgreSQL server behind the Service `name` on port 5432.

    Besides Deployment and Service: a Secret per login, Secret `<name>-tls` (the server's), and Secret
    `<name>-ca` with the CA under `ca.crt` for the clients.
    """
    logins = [login for database in databases for login in (database.owner, *database.logins)]
    secrets = [
        _secret(namespace, login.secret, {"username": login.user.encode(), "password": login.password.encode()})
        for login in logins
    ]
    scripts = {
        f"{number:02}-{database.dbname}.sql": _setup(database).encode() for number, database in enumerate(databases)
    }
    container = {
        "name": "postgres",
        "image": IMAGES["postgres"],
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "postgres", "containerPort": 5432}],
        # The port opens when the databases are made. A probe that runs a program would cost more than the server.
        "readinessProbe": {"tcpSocket": {"port": "postgres"}, "periodSeconds": 2, "timeoutSeconds": 5},
        # Small requests: demo and tests share one node of two cores.
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "tls", "mountPath": "/etc/postgres-tls", "readOnly": True},
            {"name": "init", "mountPath": "/etc/postgres-init", "readOnly": True},
        ],
    }
    volumes: list[Manifest] = [
        {"name": "data", "emptyDir": {"sizeLimit": "2Gi"}},
        {"name": "tmp", "emptyDir": {}},
        # The server refuses a key that others can read, except root's with group access.
        {"name": "tls", "secret": {"secretName": f"{name}-tls", "defaultMode": 0o440}},
        {"name": "init", "secret": {"secretName": f"{name}-init", "defaultMode": 0o440}},
    ]
    return [
        *secrets,
        _secret(namespace, f"{name}-tls", {"tls.crt": certificate.certificate, "tls.key": certificate.key}),
        _secret(namespace, f"{name}-ca", {"ca.crt": certificate.ca}),
        _secret(namespace, f"{name}-init", scripts),
        _service(namespace, name, 5432),
        _deployment(namespace, name, uid=POSTGRES_UID, container=container, volumes=volumes),
    ]


def kafka_manifests(
    *, namespace: str, name: str, topics: Mapping[str, int], certificate: PodCertificate | None = None
) -> list[Manifest]:
    """One Kafka broker behind the Service `name` on port 9092; `topics` maps names to partitions.

    The pod is ready when the topics can be used; it then also listens on port 9095, for the probe. With a certificate
    there is a listener for TLS and SCRAM-SHA-512 on port 9096, and Secret `<name>-ca` for the clients; the key must be
    in PKCS 8.
    """
    env: list[Manifest] = [
        {"name": "KAFKA_ADVERTISED", "value": f"{name}.{namespace}.svc"},
        {"name": "KAFKA_TOPICS", "value": " ".join(f"{topic}:{count}" for topic, count in topics.items())},
    ]
    mounts: list[Manifest] = [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}]
    container: Manifest = {
        "name": "kafka",
        "image": IMAGES["kafka"],
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "kafka", "containerPort": 9092}],
        "env": env,
        "readinessProbe": {"tcpSocket": {"port": 9095}, "periodSeconds": 2, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "20m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": _container_security(),
        "volumeMounts": mounts,
    }
    volumes: list[Manifest] = [{"name": "data", "emptyDir": {"sizeLimit": "4Gi"}}, {"name": "tmp", "emptyDir": {}}]
    if certificate is None:
        return [
            _service(namespace, name, 9092),
            _deployment(namespace, name, uid=KAFKA_UID, container=container, volumes=volumes),
        ]
    container["env"] = [*env, {"name": "KAFKA_CERTIFICATE", "value": "/etc/kafka-tls/broker.pem"}]
    container["volumeMounts"] = [*mounts, {"name": "tls", "mountPath": "/etc/kafka-tls", "readOnly": True}]
    volumes.append({"name": "tls", "secret": {"secretName": f"{name}-tls", "defaultMode": 0o440}})
    return [
        _secret(namespace, f"{name}-tls", {"broker.pem": certificate.key + certificate.certificate}),
        _secret(namespace, f"{name}-ca", {"ca.crt": certificate.ca}),
        _service(namespace, name, 9092, 9096),
        _deployment(namespace, name, uid=KAFKA_UID, container=container, volumes=volumes),
    ]


def _setup(database: PodDatabase) -> str:
    """The SQL text that makes one database with its logins; run once, as superuser."""
    owner = _identifier(database.owner.user)
    name = _identifier(database.dbname)
    roles = [
        f"create role {_identifier(login.user)} login password {_literal(login.password)};"
        for login in (database.owner, *database.logins)
    ]
    return "\n".join(
        (
            *roles,
            f"create database {name} owner {owner};",
            f"\\connect {name}",
            f"set session authorization {owner};",
            database.setup,
            "",
        )
    )


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _secret(namespace: str, name: str, data: Mapping[str, bytes]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _service(namespace: str, name: str, *ports: int) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": _ports(ports)},
    }


def _ports(ports: Sequence[int]) -> list[Manifest]:
    # Several ports of a Service need names.
    names = [{}] if len(ports) == 1 else [{"name": f"port-{port}"} for port in ports]
    return [{"port": port, "targetPort": port} | name for port, name in zip(ports, names, strict=True)]


def _deployment(namespace: str, name: str, *, uid: int, container: Manifest, volumes: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            # Two servers over one Service would each hold half of the data.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": uid,
                        "runAsGroup": uid,
                        "fsGroup": uid,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
