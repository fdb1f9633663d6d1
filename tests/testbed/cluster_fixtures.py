"""Pytest fixtures for tests that need a real API server.

Import them in a tier's conftest.py. The cluster is shared with whoever else uses this machine, and so is the
CRD; everything else a test makes lies in namespaces of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.testbed import Cluster, up
from tests.testbed.api import Api, Object
from tests.testbed.paths import REPOSITORY
from tests.testbed.services.eventually import eventually

CRD_FILE = REPOSITORY / "crds" / "outboxrelays.yaml"
CRD_NAME = "outboxrelays.outboxrelay.io"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The running cluster; it is left running, since starting it costs more than any test."""
    return up()


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """A client with all rights."""
    api = Api(cluster.kubeconfig)
    yield api
    api.close()


@pytest.fixture(scope="session")
def crd(cluster: Cluster, api: Api) -> Object:
    """The CRD of this checkout, installed and served."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    return eventually(
        lambda: _established(api.get("CustomResourceDefinition", CRD_NAME)), seconds=30, what="CRD to be served"
    )


@pytest.fixture
def new_namespace(api: Api) -> Iterator[Callable[..., str]]:
    """Makes a namespace, at the Pod Security level if given; all of them are deleted at the end of the test.

    Not later: what pods of many finished tests ask for, also those that cannot start, leaves the node no CPU to give.
    """
    yield from _maker(api)


@pytest.fixture(scope="session")
def lasting_namespace(api: Api) -> Iterator[Callable[..., str]]:
    """The same for what a whole session shares."""
    yield from _maker(api)


def _maker(api: Api) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(prefix: str = "test", *, pod_security: str | None = None) -> str:
        name = f"{prefix}-{secrets.token_hex(3)}"
        labels = {} if pod_security is None else {"pod-security.kubernetes.io/enforce": pod_security}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        made.append(name)
        return name

    yield make
    for name in made:
        api.delete("Namespace", name)


@pytest.fixture
def namespace(new_namespace: Callable[..., str]) -> str:
    """A fresh namespace."""
    return new_namespace()


def _established(crd: Object) -> Object | None:
    # Of a CRD that was made this moment the list is there and null.
    conditions = {c["type"]: c["status"] for c in crd.get("status", {}).get("conditions") or ()}
    return crd if conditions.get("Established") == "True" else None
