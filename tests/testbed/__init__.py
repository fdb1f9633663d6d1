"""The throw-away cluster for tests and demo: `up`, `down`, and a `Cluster` in between.

Where it comes from is decided in choice.py; every caller on this machine shares
one, and keeps apart by namespaces.
"""

import os
import shutil
import sys

from tests.testbed import choice
from tests.testbed.cluster import Backend, Cluster
from tests.testbed.console import say
from tests.testbed.errors import ClusterError
from tests.testbed.existing import ExistingCluster
from tests.testbed.images import docker
from tests.testbed.kind import KindCluster
from tests.testbed.paths import cache_dir
from tests.testbed.selfcontained.backend import SelfContainedCluster

__all__ = ["Cluster", "ClusterError", "backend", "down", "up"]


def backend(*, quiet: bool = False) -> Backend:
    """Return the backend for this machine and environment, saying which and why.

    Raises ClusterError saying what is missing if none works here.
    """
    machine = choice.Machine(
        linux=sys.platform == "linux",
        root=os.geteuid() == 0,
        docker=docker.answers(),
        kind=shutil.which("kind") is not None,
    )
    chosen = choice.choose(os.environ, machine)
    if not quiet:
        say(f"cluster: {chosen.backend} ({chosen.why})")
    match chosen.backend:
        case choice.Backend.EXISTING:
            return ExistingCluster(os.environ)
        case choice.Backend.KIND:
            return KindCluster()
        case choice.Backend.SELF_CONTAINED:
            return SelfContainedCluster(cache_dir() / "cluster")


def up() -> Cluster:
    """Return the running cluster; create or mend it first if need be.

    Idempotent, quick when the cluster is healthy, and safe to call from several
    processes at once. Raises ClusterError saying what failed and where to look.
    """
    chosen = backend()
    chosen.up()
    return Cluster(kubeconfig=chosen.kubeconfig(), tool=chosen.tool, load=chosen.load, audit_log=chosen.audit_log())


def down() -> bool:
    """Remove the cluster that `up` made and every trace of it; return whether there was one."""
    return backend().down()
