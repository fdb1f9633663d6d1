"""KEDA's operator as a peer: compiled from its Go module, with ScaledObjects for the fleet.

Only the operator runs. It is what wakes a workload at zero replicas; its metrics server, which feeds
HorizontalPodAutoscalers above one, has no part in what is measured here.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from tests.bench.fleet import fleet
from tests.bench.fleet.compiled import compiled, go
from tests.bench.fleet.control_plane import ControlPlane
from tests.testbed.api import Api, ApiError, Object
from tests.testbed.commands import run
from tests.testbed.services.certificates import Authority
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database
from tests.testbed.services.processes import ServiceProcess, remove, service_directory

VERSION: Final = "v2.21.0"
_MODULE: Final = f"github.com/kedacore/keda/v2@{VERSION}"
_NAMESPACE: Final = "keda"


def ensure() -> Path:
    """The directory with the program and its CRDs, made first if this machine has not yet done so.

    Raises:
        ClusterError: there is no Go tool chain, or the build fails.
    """
    return compiled("keda", VERSION, usually="10 to 20 min on 2 cores", fill=_build)


def _build(directory: Path) -> None:
    told = run(["go", "mod", "download", "-json", _MODULE], doing="fetching KEDA's sources", cwd=directory)
    sources = Path(json.loads(told)["Dir"])
    go("build", "-o", directory / "keda", "./cmd/operator", name="keda", cwd=sources)
    shutil.copytree(sources / "config" / "crd" / "bases", directory / "crds")


@contextmanager
def operator(made: Path, plane: ControlPlane) -> Iterator[ServiceProcess]:
    """KEDA's operator, with its CRDs installed, for as long as the block takes."""
    api = Api(plane.cluster.kubeconfig)
    for file in sorted((made / "crds").glob("*.yaml")):
        api.create(yaml.safe_load(file.read_text(encoding="utf-8")))
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
    eventually(lambda: api.list("ScaledObject") == [], seconds=60, what="KEDA's CRDs", tolerate=(ApiError,))
    directory = service_directory("keda")
    authority = Authority()
    issued = authority.issue("keda-operator")
    for name, content in (("ca.crt", authority.pem), ("tls.crt", issued.certificate), ("tls.key", issued.key)):
        (directory / name).write_bytes(content)
    process = ServiceProcess(
        name="keda",
        directory=directory,
        command=(
            str(made / "keda"),
            f"--cert-dir={directory}",
            "--metrics-bind-address=127.0.0.1:9100",
            "--health-probe-bind-address=127.0.0.1:9101",
            "--metrics-service-bind-address=127.0.0.1:9102",
            "--enable-webhook-patching=false",
            "--enable-apiservice-patching=false",
            "--zap-log-level=error",
        ),
        environment={
            "KUBECONFIG": str(plane.cluster.kubeconfig),
            "POD_NAMESPACE": _NAMESPACE,
            "KEDA_CLUSTER_OBJECT_NAMESPACE": _NAMESPACE,
            "WATCH_NAMESPACE": "",
        },
    )
    process.start()
    try:
        yield process
    finally:
        process.kill()
        remove(directory)


def workload(number: int, database: Database, index: int, *, polling_seconds: int) -> list[Object]:
    """A Deployment at zero for one pair of the fleet, and the ScaledObject that is to wake it."""
    name, namespace = f"{fleet.name_of(number)}-app{index}", fleet.namespace_of(number)
    metadata = {"name": name, "namespace": namespace}
    labels = {"app": name}
    settings = f"host={database.host} port={database.port} dbname={database.dbname} sslmode=require"
    connection = f"{settings} user={database.user} password={database.password}"
    container = {"name": "relay", "image": "relay", "resources": {"requests": {"cpu": "10m"}}}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "data": {"connection": base64.b64encode(connection.encode()).decode()},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "TriggerAuthentication",
            "metadata": metadata,
            "spec": {"secretTargetRef": [{"parameter": "connection", "name": name, "key": "connection"}]},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": {"name": name},
                "minReplicaCount": 0,
                "maxReplicaCount": 2,
                "pollingInterval": polling_seconds,
                "triggers": [
                    {
                        "type": "postgresql",
                        "metadata": {
                            "query": f"SELECT count(*) FROM {fleet.table_of(number)}",
                            "targetQueryValue": "1000",
                            "activationTargetQueryValue": "0",
                        },
                        "authenticationRef": {"name": name},
                    }
                ],
            },
        },
    ]
