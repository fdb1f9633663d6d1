"""One installation of the product for the whole tier: PostgreSQL, Kafka and the operator, by its chart.

Its namespaces enforce the `restricted` Pod Security level, and the chart is installed without any cluster-wide
right, so that every test of this tier also tests that (HP-05, HP-06).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest

from tests.e2e.install import install, services
from tests.e2e.stage import OPERATOR_LABELS, RELEASE, START_SECONDS, Stage
from tests.testbed import Cluster
from tests.testbed.api import Api, Object
from tests.testbed.cluster_fixtures import api, cluster, crd, lasting_namespace, new_namespace
from tests.testbed.images.catalog import RECIPES
from tests.testbed.services.eventually import eventually

__all__ = ["api", "cluster", "crd", "lasting_namespace", "new_namespace"]


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> None:
    """The images of this checkout, in the cluster."""
    for recipe in RECIPES:
        cluster.load(recipe.build())


@pytest.fixture(scope="session")
def installation(
    images: None, crd: Object, cluster: Cluster, api: Api, lasting_namespace: Callable[..., str]
) -> Iterator[Stage]:
    """The servers and the operator, once for all modules."""
    namespace = lasting_namespace("e2e", pod_security="restricted")
    second = lasting_namespace("e2e", pod_security="restricted")
    stage = Stage(cluster=cluster, api=api, namespace=namespace, second=second)
    for manifest in services(namespace):
        api.create(manifest)
    install(stage)
    eventually(lambda: _complete(stage), seconds=START_SECONDS, what="the installation", detail=lambda: _told(stage))
    yield stage
    cluster.helm("uninstall", RELEASE, "--namespace", namespace, "--ignore-not-found", "--wait", timeout=120)


@pytest.fixture(scope="module")
def stage(installation: Stage) -> Iterator[Stage]:
    """The installation, without relays; each test makes its own tables and topics."""
    yield installation
    for item in installation.api.list("OutboxRelay", namespace=installation.namespace):
        installation.api.delete("OutboxRelay", item["metadata"]["name"], namespace=installation.namespace)
    eventually(
        lambda: not installation.all_relay_pods(), seconds=START_SECONDS, what="relays of a finished module to be gone"
    )


def _complete(stage: Stage) -> bool:
    """Whether servers, toolbox and operator run."""
    toolbox = stage.api.get("Pod", "toolbox", namespace=stage.namespace)["status"]["phase"]
    deployments = stage.api.list("Deployment", namespace=stage.namespace)
    available = {item["metadata"]["name"] for item in deployments if item.get("status", {}).get("availableReplicas")}
    return toolbox == "Running" and available >= {"postgres", "kafka", RELEASE}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the state of the installation beside a failure."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("installation")
    if report.failed and isinstance(stage, Stage):
        for title, text in _state(stage):
            report.sections.append((title, text))
    return report


def _state(stage: Stage) -> Iterator[tuple[str, str]]:
    for command in ("get pods,deployments,outboxrelays -o wide", "get events --sort-by=.lastTimestamp"):
        yield command, stage.cluster.kubectl("-n", stage.namespace, *command.split())
    logs = ("logs", "--selector", OPERATOR_LABELS, "--tail", "60", "--prefix")
    yield "the operator's log", stage.cluster.kubectl("-n", stage.namespace, *logs)


def _told(stage: Stage) -> str:
    return "\n".join(f"{title}\n{text}" for title, text in _state(stage))
