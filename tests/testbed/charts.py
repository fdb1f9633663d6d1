"""Rendering the product's chart, for tests that judge its objects before anything is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tests.testbed.api import Object
from tests.testbed.cluster import Cluster
from tests.testbed.paths import REPOSITORY

CHART = REPOSITORY / "charts" / "outboxrelay"

# `helm template` talks to no server; without this it assumes one older than the chart allows.
KUBE_VERSION = "1.36.0"


def render(cluster: Cluster, *, release: str, namespace: str, values: Object | None = None) -> list[Object]:
    """The objects of a release, tests included, the CRD not.

    Raises:
        ClusterError: with Helm's words, if it refuses the values.
    """
    with values_file(values or {}) as path:
        text = cluster.helm(
            "template", release, str(CHART), "--namespace", namespace, "--kube-version", KUBE_VERSION, "--values", path
        )
    return [document for document in yaml.safe_load_all(text) if document]


@contextmanager
def values_file(values: Object) -> Iterator[str]:
    """Path of a temporary values file, deleted on leaving the block."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(values, file)
        file.flush()
        yield file.name


def only(objects: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [item for item in objects if item["kind"] == kind]


Right = tuple[str, str, str]
"""API group, resource (with its subresource) and verb."""


def rights(objects: list[Object]) -> set[Right]:
    """What the Roles and ClusterRoles among the objects grant, wherever."""
    return {
        (group, resource, verb)
        for role in (*only(objects, "ClusterRole"), *only(objects, "Role"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
