"""The self-contained cluster comes up from any state and goes without a trace.

Aspects: a pod with memory limit, volumes and Service runs; `down` leaves no process, namespace, mount, network
interface, route, nft table, cgroup, changed kernel setting or file, also after `kill -9` of everything; components that
were killed are started again; one that hangs is reported; an `up` that was killed at any of its steps does not disturb
the next.

Each test has a cluster of its own beside the shared one, which goes on running.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import testbed
from tests.testbed import snapshot
from tests.testbed.images import pause
from tests.testbed.paths import REPOSITORY, cache_dir
from tests.testbed.processes import ProcessId, alive, identify, kill
from tests.testbed.selfcontained import lifecycle, sandbox
from tests.testbed.selfcontained.backend import SelfContainedCluster
from tests.testbed.waiting import wait_until

WORKLOAD = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "idle"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "idle"}},
                "template": {
                    "metadata": {"labels": {"app": "idle"}},
                    "spec": {
                        "containers": [
                            {
                                "name": "idle",
                                "image": pause.image_name(),
                                "imagePullPolicy": "Never",
                                "resources": {"limits": {"memory": "16Mi"}},
                                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                            }
                        ],
                        "volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "idle"},
            "spec": {"selector": {"app": "idle"}, "ports": [{"port": 80}]},
        },
    ],
}


class Own:
    """A second cluster, and what the host looked like before it."""

    def __init__(self, state: Path) -> None:
        self.cluster = SelfContainedCluster(state)
        shared = SelfContainedCluster(cache_dir() / "cluster").instance
        self._shared = frozenset({shared.cgroup})
        self.before = self.look()

    @property
    def state(self) -> Path:
        return self.cluster.instance.state

    def look(self) -> snapshot.Snapshot:
        return snapshot.take(other_cgroups=self._shared)

    def kubectl(self, *arguments: str) -> str:
        access = testbed.Cluster(kubeconfig=self.cluster.kubeconfig(), tool=self.cluster.tool, load=self.cluster.load)
        return access.kubectl(*arguments)

    def run_workload(self) -> None:
        manifest = self.state / "workload.json"
        manifest.write_text(json.dumps(WORKLOAD))
        self.kubectl("apply", "-f", str(manifest))
        self.kubectl("rollout", "status", "deployment/idle", "--timeout=60s")

    def init_pid(self) -> int:
        init = sandbox.init_process(self.cluster.instance)
        assert init is not None
        return init.pid

    def components(self) -> list[ProcessId]:
        """The processes of the node and its pods, PID 1 of their namespaces left out."""
        found = map(identify, snapshot.descendants(self.init_pid()))
        return [process for process in found if process is not None]

    def runs(self, process: ProcessId, program: str) -> bool:
        """Whether a process was started from the program of this name."""
        command = Path("/proc", str(process.pid), "cmdline").read_bytes().split(b"\0")[0]
        return command.decode() == str(self.cluster.tool(program))

    def processes(self) -> list[ProcessId]:
        """Every process of the cluster."""
        init = identify(self.init_pid())
        assert init is not None
        return [init, *self.components()]

    def remove_and_compare(self, processes: list[ProcessId]) -> None:
        """Bring the cluster down: of these processes and of everything else on the host, nothing may remain."""
        assert self.cluster.down()
        assert self.look() == self.before
        assert [process for process in processes if alive(process)] == []
        assert snapshot.processes_naming(self.state) == []
        assert not self.state.exists()


@pytest.fixture
def own() -> Iterator[Own]:
    """A cluster that does not exist yet; whatever a test leaves of it is removed."""
    if not isinstance(testbed.backend(quiet=True), SelfContainedCluster):
        pytest.skip("this machine's cluster is not the self-contained one, whose tear-down this is about")
    directory = cache_dir() / "own-clusters"
    directory.mkdir(parents=True, exist_ok=True)
    own = Own(directory / secrets.token_hex(4))
    yield own
    own.cluster.down()
    own.cluster.instance.lock.unlink()


def test_down_leaves_nothing(own: Own) -> None:
    """A cluster with running pods is seen by the comparison, and gone after `down`."""
    own.cluster.up()
    own.run_workload()
    processes, during = own.processes(), own.look()
    assert during.links != own.before.links
    assert during.routes != own.before.routes
    assert any("/kubepods/" in name for name in during.cgroups - own.before.cgroups)
    namespaces = snapshot.network_namespaces(process.pid for process in processes)
    assert len(namespaces) == 1 + 2, "the node's and one for each pod"
    assert snapshot.processes_naming(own.state) != []
    assert during.mounts == own.before.mounts, "mounts belong in the cluster's own mount namespace"
    assert during.nft_tables == own.before.nft_tables, "so do its firewall rules, in its network namespace"
    own.remove_and_compare(processes)


def test_kill_9_of_every_component_is_mended(own: Own) -> None:
    """`up` starts what died; the pods, whose state lies in etcd, come back."""
    own.cluster.up()
    own.run_workload()
    for process in own.components():
        kill(process, timeout=10)
    wait_until(lambda: own.components() == [], what="the end of every component", timeout=10, hint="see ps")
    own.cluster.up()
    own.kubectl("wait", "--for=condition=Available", "deployment/idle", "--timeout=60s")
    own.kubectl("rollout", "restart", "deployment/idle")
    own.kubectl("rollout", "status", "deployment/idle", "--timeout=60s")
    own.remove_and_compare(own.processes())


def test_a_cluster_that_merely_hangs_is_not_thrown_away(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing died, so somebody may be using it: `up` says what does not answer, and leaves the rest to the person."""
    own.cluster.up()
    init = own.init_pid()
    (proxy,) = [process for process in own.components() if own.runs(process, "kube-proxy")]
    monkeypatch.setattr(lifecycle, "HEALTH_TIMEOUT", 1.0)
    os.kill(proxy.pid, signal.SIGSTOP)
    try:
        with pytest.raises(testbed.ClusterError, match=r"(?s)not healthy after 1 s: kube-proxy;.*make cluster-down"):
            own.cluster.up()
    finally:
        os.kill(proxy.pid, signal.SIGCONT)
    wait_until(lambda: own.cluster.status() == "healthy", what="kube-proxy's recovery", timeout=30, hint="see its log")
    own.cluster.up()
    assert own.init_pid() == init


def test_down_after_kill_9_of_everything(own: Own) -> None:
    """The processes, all at once: the pods', the node's, and PID 1 of the namespaces."""
    own.cluster.up()
    own.run_workload()
    processes = own.processes()
    for process in reversed(processes):
        kill(process, timeout=10)
    own.remove_and_compare(processes)


UP = """
import pathlib, sys
from tests.testbed.selfcontained.backend import SelfContainedCluster
SelfContainedCluster(pathlib.Path(sys.argv[1])).up()
"""


@pytest.mark.parametrize(
    "reached",
    ["settings.json", "init", "arranged", "processes/etcd", "processes/kubelet", "complete"],
)
def test_up_after_an_up_that_was_killed(own: Own, reached: str) -> None:
    """An `up` is killed with -9 as soon as a file shows how far it got; the next one works, and `down` finds all."""
    first = subprocess.Popen([sys.executable, "-c", UP, own.state], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: (own.state / reached).exists(), what=f"`up` reaching {reached}", timeout=60, hint="see the logs"
        )
    finally:
        first.kill()
        first.wait()
    own.cluster.up()
    assert own.cluster.status() == "healthy"
    own.remove_and_compare(own.processes())


def test_down_of_nothing(own: Own) -> None:
    """`down` without a cluster, and twice, is no error."""
    assert not own.cluster.down()
    assert not own.cluster.down()
    assert own.look() == own.before
