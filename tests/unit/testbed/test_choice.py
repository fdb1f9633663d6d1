"""Which cluster is chosen, and which is refused.

Aspects: automatic choice and its reason; each explicit request with what it needs; never a context that was not named.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.testbed.choice import Backend, Machine, choose
from tests.testbed.errors import ClusterError

ROOT_ON_LINUX = Machine(linux=True, root=True, docker=False, kind=False)
WITH_KIND = Machine(linux=True, root=False, docker=True, kind=True)
LAPTOP = Machine(linux=False, root=False, docker=False, kind=False)


def test_kind_comes_first_where_docker_and_kind_are_at_hand() -> None:
    everything = dataclasses.replace(WITH_KIND, root=True)
    assert choose({}, everything).backend is Backend.KIND


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (ROOT_ON_LINUX, "no docker daemon answers"),
        (dataclasses.replace(ROOT_ON_LINUX, kind=True), "no docker daemon answers"),
        (dataclasses.replace(ROOT_ON_LINUX, docker=True), "kind is not installed"),
    ],
)
def test_the_self_contained_cluster_is_next_and_the_reason_is_said(machine: Machine, reason: str) -> None:
    chosen = choose({}, machine)
    assert chosen.backend is Backend.SELF_CONTAINED
    assert reason in chosen.why


@pytest.mark.parametrize(
    "machine", [LAPTOP, dataclasses.replace(LAPTOP, linux=True), dataclasses.replace(LAPTOP, root=True)]
)
def test_without_any_way_the_remedies_are_named(machine: Machine) -> None:
    with pytest.raises(ClusterError, match=r"Install docker and kind, or name a cluster with KUBECONFIG"):
        choose({}, machine)


def test_a_kubeconfig_alone_is_not_used() -> None:
    assert choose({"KUBECONFIG": "/home/me/.kube/config"}, ROOT_ON_LINUX).backend is Backend.SELF_CONTAINED


@pytest.mark.parametrize(
    ("environ", "absent"),
    [
        ({}, "KUBECONFIG and OUTBOXRELAY_CONTEXT"),
        ({"KUBECONFIG": "x"}, "OUTBOXRELAY_CONTEXT"),
        ({"KUBECONFIG": "x", "OUTBOXRELAY_CONTEXT": ""}, "OUTBOXRELAY_CONTEXT"),
        ({"OUTBOXRELAY_CONTEXT": "dev"}, "KUBECONFIG"),
    ],
)
def test_an_existing_cluster_needs_its_context_named(environ: dict[str, str], absent: str) -> None:
    with pytest.raises(ClusterError, match=f"also needs {absent}: the testbed never uses a context"):
        choose({"OUTBOXRELAY_CLUSTER": "existing", **environ}, ROOT_ON_LINUX)


def test_an_existing_cluster_with_its_context_named() -> None:
    environ = {"OUTBOXRELAY_CLUSTER": "existing", "KUBECONFIG": "x", "OUTBOXRELAY_CONTEXT": "dev"}
    chosen = choose(environ, LAPTOP)
    assert chosen.backend is Backend.EXISTING
    assert "context dev" in chosen.why


@pytest.mark.parametrize(
    ("asked", "machine"),
    [
        ("kind", ROOT_ON_LINUX),
        ("kind", dataclasses.replace(WITH_KIND, kind=False)),
        ("selfcontained", WITH_KIND),
        ("selfcontained", LAPTOP),
    ],
)
def test_what_was_asked_for_and_cannot_be_is_refused_not_replaced(asked: str, machine: Machine) -> None:
    with pytest.raises(ClusterError, match=f"OUTBOXRELAY_CLUSTER={asked} needs"):
        choose({"OUTBOXRELAY_CLUSTER": asked}, machine)


@pytest.mark.parametrize(("asked", "machine"), [("kind", WITH_KIND), ("selfcontained", ROOT_ON_LINUX)])
def test_what_was_asked_for_is_used(asked: str, machine: Machine) -> None:
    assert choose({"OUTBOXRELAY_CLUSTER": asked}, machine).backend == asked


def test_an_unknown_request_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="use one of: existing, kind, selfcontained"):
        choose({"OUTBOXRELAY_CLUSTER": "minikube"}, ROOT_ON_LINUX)
