"""The names, folders and addresses of one cluster.

Everything follows from the state directory, so that two clusters can stand
side by side and a tear-down needs no record to know what is its own. Pure but
for the reading and writing of the one settings file.
"""

import hashlib
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.errors import ClusterError

CLUSTER_DOMAIN = "cluster.local"
NODE_NAME = "outboxrelay-testbed"
CONTEXT = "outboxrelay-testbed"
API_PORT = 6443
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
KUBELET_PORT = 10250
PROXY_HEALTH_PORT = 10256
DNS_READY_PORT = 8181
# The first is where many clusters have their pods; the others are far apart, since a VPN may claim a wide range.
_FIRST_BLOCK = 244
_BLOCK_STEP = 16
_BLOCKS = 15


@dataclass(frozen=True)
class Network:
    """The addresses of one cluster; they exist in its own network namespace and on one link to the host."""

    pods: ipaddress.IPv4Network
    services: ipaddress.IPv4Network
    link: ipaddress.IPv4Network

    @property
    def host_address(self) -> ipaddress.IPv4Address:
        """The host's end of the link."""
        return self.link[1]

    @property
    def node_address(self) -> ipaddress.IPv4Address:
        """The node's end of the link: API server, kubelet and DNS listen here."""
        return self.link[2]

    @property
    def api_service_address(self) -> ipaddress.IPv4Address:
        """The address of the Service `kubernetes`, by rule the first of the range."""
        return self.services[1]

    @property
    def api_url(self) -> str:
        """The API server as the host and the pods reach it."""
        return f"https://{self.node_address}:{API_PORT}"


def network(index: int) -> Network:
    """Return the `index`-th of the address plans that a cluster may use; each lies within one /16."""
    block = ipaddress.IPv4Network(f"10.{_FIRST_BLOCK - _BLOCK_STEP * index}.0.0/16")
    pods, upper = block.subnets(prefixlen_diff=1)
    services, rest = upper.subnets(prefixlen_diff=1)
    return Network(pods=pods, services=services, link=list(rest.subnets(new_prefix=30))[-1])


def free_network(taken: Iterable[ipaddress.IPv4Network]) -> Network:
    """Return the first address plan that overlaps none of the networks the host already knows.

    Raises ClusterError if all of them do.
    """
    known = list(taken)
    for index in range(_BLOCKS):
        plan = network(index)
        if not any(mine.overlaps(other) for mine in (plan.pods, plan.services, plan.link) for other in known):
            return plan
    last = _FIRST_BLOCK - _BLOCK_STEP * (_BLOCKS - 1)
    raise ClusterError(
        f"no free addresses for a cluster: this host has routes into each of the {_BLOCKS} ranges that are tried, "
        f"10.{last}.0.0/16 to 10.{_FIRST_BLOCK}.0.0/16 in steps of {_BLOCK_STEP}; end what uses them"
    )


@dataclass(frozen=True)
class Instance:
    """One cluster, found by its state directory."""

    state: Path

    @property
    def tag(self) -> str:
        """A short name that no other state directory has."""
        return hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def host_link(self) -> str:
        """The host's network interface to the node; an interface's name has at most 15 characters."""
        return f"obr{self.tag}"

    @property
    def cgroup(self) -> str:
        """The cgroup, directly below the root, under which all pods run."""
        return f"outboxrelay-{self.tag}"

    @property
    def lock(self) -> Path:
        """The file lock of `up` and `down`."""
        return self.state.with_name(f"{self.state.name}.lock")

    @property
    def settings_file(self) -> Path:
        """What a later run must know: addresses and the versions that run."""
        return self.state / "settings.json"

    @property
    def sysctls_file(self) -> Path:
        """The host-wide kernel settings as they were before the kubelet changed them."""
        return self.state / "sysctls.json"

    @property
    def init_record(self) -> Path:
        """The process whose end is the end of the cluster."""
        return self.state / "init"

    @property
    def complete_mark(self) -> Path:
        """Present once the cluster was healthy for the first time."""
        return self.state / "complete"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Certificates, keys and tokens."""
        return self.state / "pki"

    @property
    def config(self) -> Path:
        """The components' configuration files."""
        return self.state / "config"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.state / "logs"

    @property
    def audit_log(self) -> Path:
        """What pods' service accounts asked of the API server, one JSON document a line."""
        return self.logs / "audit.log"

    @property
    def records(self) -> Path:
        """One file per component: which process it is."""
        return self.state / "processes"

    @property
    def loaded_images(self) -> Path:
        """One file per image that was brought to the node, holding its content's key."""
        return self.state / "images"


@dataclass(frozen=True)
class Settings:
    """What was decided when the cluster was created."""

    network: Network
    version: str

    def dump(self) -> str:
        """Return the settings as JSON."""
        plan = self.network
        return json.dumps(
            {"pods": str(plan.pods), "services": str(plan.services), "link": str(plan.link), "version": self.version}
        )


def load_settings(text: str) -> Settings:
    """Return the settings from JSON as written by `Settings.dump`.

    Raises ValueError if it is anything else.
    """
    try:
        fields = json.loads(text)
        plan = Network(
            pods=ipaddress.IPv4Network(fields["pods"]),
            services=ipaddress.IPv4Network(fields["services"]),
            link=ipaddress.IPv4Network(fields["link"]),
        )
        return Settings(network=plan, version=str(fields["version"]))
    except (KeyError, TypeError) as broken:
        raise ValueError(f"not the settings of a cluster: {broken}") from broken
