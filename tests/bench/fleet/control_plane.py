"""A control plane without nodes: etcd, API server, controllers and scheduler as processes, and kwok for the pods.

It is made of the testbed's own programs and settings, at fixed loopback addresses: the bench runs in a network
namespace of its own, which holds nothing else.
"""

from __future__ import annotations

import base64
import ipaddress
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from tests.bench.cpu import cpu_seconds
from tests.testbed import binaries
from tests.testbed.api import Api, ApiError, Object
from tests.testbed.charts import render
from tests.testbed.cluster import Cluster
from tests.testbed.errors import ClusterError
from tests.testbed.images.archive import ImageArchive
from tests.testbed.paths import REPOSITORY
from tests.testbed.selfcontained import config, pki
from tests.testbed.selfcontained.instance import Instance, Network
from tests.testbed.services.eventually import eventually
from tests.testbed.services.processes import ServiceProcess, remove, service_directory

RELEASE: Final = "outboxrelay"
OPERATOR_NAMESPACE: Final = "outboxrelay"
OPERATOR_USER: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{RELEASE}"

_NETWORK: Final = Network(
    # Loopback addresses, so that the operator reaches what answers for the pods.
    pods=ipaddress.IPv4Network("127.64.0.0/16"),
    services=ipaddress.IPv4Network("10.96.0.0/16"),
    link=ipaddress.IPv4Network("127.0.0.0/30"),
)
_COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_FURTHER: Final[dict[str, Sequence[str]]] = {
    # No Service leads here, and an endpoint may not be a loopback address.
    "kube-apiserver": ("--endpoint-reconciler-type=none",),
    # With the default, 20 a second for each controller, pods would come for ten minutes after the Deployments.
    # And a node whose heartbeat is late, as on a busy machine, would make all pods unready: a real change.
    "kube-controller-manager": ("--kube-api-qps=100", "--kube-api-burst=200", "--node-monitor-grace-period=1h"),
    "kube-scheduler": ("--kube-api-qps=200", "--kube-api-burst=400"),
}
_PATIENCE_SECONDS: Final = 120.0


class ControlPlane:
    """For as long as its `with` block takes."""

    def __init__(self, *, kwok: Path) -> None:
        self._kwok = kwok
        self._built = binaries.ensure()
        self._processes: dict[str, ServiceProcess] = {}

    def __enter__(self) -> Self:
        self.directory = service_directory("control-plane")
        self._instance = Instance(self.directory)
        try:
            self._configure()
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def cluster(self) -> Cluster:
        """For kubectl and Helm."""
        return Cluster(kubeconfig=self._instance.kubeconfig, tool=self._built.path, load=_no_images)

    @property
    def operator_kubeconfig(self) -> Path:
        """A login with the rights of the chart's service account, which the API server's flow control treats alike."""
        return self.directory / "operator.kubeconfig"

    def audit_logs(self) -> list[Path]:
        """What service accounts asked of the API server, the oldest file first."""
        return sorted(self._instance.logs.glob("audit*.log"), key=lambda path: path.stat().st_mtime)

    def cpu_seconds(self) -> dict[str, float]:
        """What each component has used so far."""
        return {name: cpu_seconds(process.id.pid) for name, process in self._processes.items()}

    def _configure(self) -> None:
        instance = self._instance
        for directory in (instance.config, instance.logs, instance.pki):
            directory.mkdir(parents=True)
        tokens = pki.new_tokens()
        pki.create(instance.pki, _NETWORK, tokens=tokens)
        operator = pki.new_tokens()["admin"]
        groups = f"system:serviceaccounts,system:serviceaccounts:{OPERATOR_NAMESPACE}"
        line = f'{operator},{OPERATOR_USER},{OPERATOR_USER},"{groups}"\n'
        pki.write_secret(instance.pki / "tokens.csv", (pki.token_file(tokens) + line).encode())
        (instance.config / "audit-policy.json").write_text(config.audit_policy(), encoding="utf-8")
        authority = base64.b64encode((instance.pki / "ca.crt").read_bytes()).decode("ascii")
        for path, user, token in (
            (instance.kubeconfig, "admin", tokens["admin"]),
            (self.operator_kubeconfig, OPERATOR_USER, operator),
            *((instance.config / f"{name}.kubeconfig", f"system:{name}", tokens[f"system:{name}"]) for name in _LOGINS),
        ):
            text = config.kubeconfig(_NETWORK, user=user, token=token, authority_base64=authority)
            pki.write_secret(path, text.encode())

    def _start(self) -> None:
        arguments = config.arguments(self._instance, _NETWORK)
        commands = {
            name: [str(self._built.path(name)), *arguments[name], *_FURTHER.get(name, ())] for name in _COMPONENTS
        }
        self._run("etcd", commands["etcd"])
        self._run("kube-apiserver", commands["kube-apiserver"])
        api = Api(self._instance.kubeconfig)
        self._processes["kube-apiserver"].await_ready(lambda: _ready(api), seconds=_PATIENCE_SECONDS)
        self._run("kube-controller-manager", commands["kube-controller-manager"])
        self._run("kube-scheduler", commands["kube-scheduler"])
        self._run("kwok", [str(self._kwok), "--manage-all-nodes", "--kubeconfig", str(self._instance.kubeconfig)])
        self._install(api)

    def _run(self, name: str, command: Sequence[str]) -> None:
        process = ServiceProcess(name=name, directory=self.directory, command=tuple(command))
        self._processes[name] = process
        process.start()

    def _install(self, api: Api) -> None:
        api.request("POST", "/api/v1/nodes", body=_node())
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}})
        api.create(yaml.safe_load((REPOSITORY / "crds" / "outboxrelays.yaml").read_text(encoding="utf-8")))
        for body in render(self.cluster, release=RELEASE, namespace=OPERATOR_NAMESPACE):
            if body["kind"].endswith(("Role", "RoleBinding")):
                api.create(body)
        eventually(
            lambda: api.list("OutboxRelay") == [], seconds=_PATIENCE_SECONDS, what="the CRD", tolerate=(ApiError,)
        )

    def _close(self) -> None:
        for process in reversed(self._processes.values()):
            process.stop(signal.SIGKILL, seconds=20)
        remove(self.directory)


_LOGINS: Final = ("kube-controller-manager", "kube-scheduler")


def _ready(api: Api) -> bool:
    try:
        return api.text("GET", "/readyz") == "ok"
    except (ApiError, OSError):
        return False
    except Exception as error:
        # urllib3's own errors while nobody listens yet have no common base that is public here.
        if "Max retries" in str(error):
            return False
        raise


def _node() -> Object:
    """One node is enough for all pods, as nothing runs on it."""
    capacity = {"cpu": "1000", "memory": "4Ti", "pods": "20000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "kwok"},
        "spec": {"podCIDR": str(_NETWORK.pods), "podCIDRs": [str(_NETWORK.pods)]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _no_images(image: ImageArchive) -> None:
    raise ClusterError(f"no image is needed where no pod runs: {image.image}")
