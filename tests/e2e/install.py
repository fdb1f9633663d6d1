"""Puts the product and what it needs into a namespace: the chart, PostgreSQL, Kafka and a pod with Kafka's client."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.e2e.stage import DBNAME, RELEASE, Stage
from tests.testbed.api import Object
from tests.testbed.charts import CHART, values_file
from tests.testbed.services.certificates import Authority
from tests.testbed.services.pods import (
    Login,
    PodCertificate,
    PodDatabase,
    kafka_manifests,
    postgres_manifests,
    service_names,
)


def install(stage: Stage, **values: object) -> None:
    """Install or upgrade the chart; returns at once."""
    settings = {
        "watchNamespaces": [stage.namespace, stage.second],
        "image": {"tag": "dev"},
        "relayImage": {"tag": "dev"},
        # What is logged at this level must not give a secret away either.
        "logLevel": "debug",
        # Objects that are not watched are looked at this often; the default of minutes would be waited for here.
        "resyncSeconds": 10,
    }
    with values_file(settings | values) as path:
        stage.cluster.helm(
            *("upgrade", "--install", RELEASE, str(CHART), "--namespace", stage.namespace, "--skip-crds"),
            *("--values", path),
            timeout=120,
        )


def services(namespace: str) -> list[Object]:
    """PostgreSQL with an empty database, Kafka without topics, and the toolbox; new passwords at every call."""
    authority = Authority()
    certificate = authority.issue(*service_names(namespace=namespace, name="postgres"))
    broker = authority.issue(*service_names(namespace=namespace, name="kafka"))
    owner, relay = (Login(name, secrets.token_urlsafe(12), f"{name}-login") for name in ("shop", "relay"))
    return [
        *postgres_manifests(
            namespace=namespace,
            name="postgres",
            databases=[PodDatabase(dbname=DBNAME, owner=owner, logins=(relay,))],
            certificate=PodCertificate(certificate.certificate, certificate.key, authority.pem),
        ),
        *kafka_manifests(
            namespace=namespace,
            name="kafka",
            topics={},
            certificate=PodCertificate(broker.certificate, broker.pkcs8_key, authority.pem),
        ),
        *_toolbox(namespace),
    ]


def _toolbox(namespace: str) -> list[Object]:
    program = Path(__file__).with_name("toolbox.py").read_text(encoding="utf-8")
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "toolbox", "namespace": namespace},
            "data": {"toolbox.py": program},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "toolbox", "namespace": namespace},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "toolbox",
                        "image": "outboxrelay/relay:dev",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python", "-c", "import signal; signal.pause()"],
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "volumeMounts": [{"name": "toolbox", "mountPath": "/opt/toolbox", "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "toolbox", "configMap": {"name": "toolbox"}}],
            },
        },
    ]
