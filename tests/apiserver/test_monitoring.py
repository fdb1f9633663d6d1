"""The chart's objects for the Prometheus operator against its own definitions, and the dashboard for Grafana."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.testbed import Cluster
from tests.testbed.api import Api, ApiError, Object
from tests.testbed.charts import CHART, only, render
from tests.testbed.commands import run
from tests.testbed.paths import REPOSITORY
from tests.testbed.services.eventually import eventually

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
GOLDEN = REPOSITORY / "tests" / "unit" / "operator" / "golden" / "deployment.json"
"""A relay's Deployment, as the operator renders it."""

KINDS = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}

ENABLED = {
    "prometheus": {
        "podMonitors": {"enabled": True, "interval": "15s", "labels": {"release": "monitoring"}},
        "rules": {"enabled": True, "labels": {"release": "monitoring"}},
    }
}


@pytest.fixture(scope="module")
def definitions() -> list[Object]:
    """From the sources of the Prometheus operator; a few megabytes, fetched once per machine."""
    if shutil.which("go") is None:
        pytest.skip("fetching the Prometheus operator's CRDs needs Go on PATH")
    told = run(
        ["go", "mod", "download", "-json", MODULE], doing="fetching the Prometheus operator's CRDs", cwd=Path("/")
    )
    directory = Path(json.loads(told)["Dir"]) / "example" / "prometheus-operator-crd"
    return [
        yaml.safe_load((directory / f"monitoring.coreos.com_{plural}.yaml").read_text("utf-8"))
        for plural in KINDS.values()
    ]


@pytest.fixture(scope="module")
def monitored(definitions: list[Object], api: Api) -> Iterator[Api]:
    """An API server that knows the kinds; those that it did not know before are removed again.

    Once for all tests: a definition that is made anew right after it was deleted may not be served for a long while.
    """
    added = []
    for definition in definitions:
        if api.find("CustomResourceDefinition", definition["metadata"]["name"]) is None:
            api.create(definition)
            added.append(definition["metadata"]["name"])
    eventually(
        lambda: all(isinstance(api.list(kind), list) for kind in KINDS),
        seconds=30,
        what="the kinds to be served",
        tolerate=(ApiError,),
    )
    yield api
    for name in added:
        api.delete("CustomResourceDefinition", name)


@pytest.mark.parametrize("watched", [[], ["shop", "billing"]], ids=["cluster", "namespaces"])
def test_monitors_and_rules_are_valid(watched: list[str], cluster: Cluster, monitored: Api, namespace: str) -> None:
    objects = render(cluster, release="r" * 53, namespace=namespace, values=ENABLED | {"watchNamespaces": watched})
    made = [item for kind in KINDS for item in only(objects, kind)]
    assert len(made) == 3
    for item in made:
        assert item["metadata"]["labels"]["release"] == "monitoring"
        monitored.create(item, dry_run=True)


def test_monitors_select_operator_and_relays(cluster: Cluster) -> None:
    objects = render(cluster, release="outboxrelay", namespace="sys", values=ENABLED)
    deployments = (*only(objects, "Deployment"), json.loads(GOLDEN.read_text("utf-8")))
    for monitor, deployment in zip(only(objects, "PodMonitor"), deployments, strict=True):
        template, wanted = deployment["spec"]["template"], monitor["spec"]
        assert wanted["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert set(wanted.get("podTargetLabels", ())) <= template["metadata"]["labels"].keys()
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert {endpoint["port"] for endpoint in wanted["podMetricsEndpoints"]} <= ports


def test_the_dashboard_is_what_a_sidecar_of_grafana_finds(cluster: Cluster, api: Api, namespace: str) -> None:
    dashboard = {"enabled": True, "labels": {"team": "shop"}, "annotations": {"grafana_folder": "Outbox"}}
    objects = render(cluster, release="r" * 53, namespace=namespace, values={"prometheus": {"dashboard": dashboard}})
    (found,) = only(objects, "ConfigMap")
    assert {"grafana_dashboard": "1", "team": "shop"}.items() <= found["metadata"]["labels"].items()
    assert found["metadata"]["annotations"] == dashboard["annotations"]
    made = api.create(found, dry_run=True)
    assert made["data"]["outboxrelay.json"] == (CHART / "files" / "dashboard.json").read_text("utf-8").rstrip("\n")


def test_nothing_of_it_without_the_option(cluster: Cluster) -> None:
    objects = render(cluster, release="outboxrelay", namespace="sys")
    assert {item["kind"] for item in objects}.isdisjoint({*KINDS, "ConfigMap"})
