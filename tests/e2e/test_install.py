"""The installed chart: its rights, its own test, the user ids it runs under, and what it does not serve."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.stage import REACT_SECONDS, RELEASE, START_SECONDS, Stage, condition, written
from tests.testbed.api import Api, ApiError, Object
from tests.testbed.relays import relay, topic
from tests.testbed.services.eventually import eventually

RELAY = "installed"

OPERATOR_MIB = 150
RELAY_MIB = 96
"""What the README promises."""


@pytest.fixture(scope="module")
def running(stage: Stage) -> Stage:
    """An OutboxRelay whose rows flow."""
    stage.serve(RELAY)
    return stage


@pytest.fixture(scope="module")
def operator(stage: Stage) -> Api:
    """The API server with the operator's rights."""
    return stage.api.acting_as(f"system:serviceaccount:{stage.namespace}:{RELEASE}")


def test_helm_test(stage: Stage) -> None:
    assert "Phase:          Succeeded" in stage.cluster.helm(
        "test", RELEASE, "--namespace", stage.namespace, timeout=120
    )


def test_helm_tells_what_next(stage: Stage) -> None:
    notes = stage.cluster.helm("get", "notes", RELEASE, "--namespace", stage.namespace)
    assert f"serves the namespaces {stage.namespace}, {stage.second}" in notes


FORBIDDEN: dict[str, Callable[[Api, Stage], object]] = {
    "list Secrets": lambda api, stage: api.list("Secret", namespace=stage.namespace),
    "read a Secret elsewhere": lambda api, _: api.get("Secret", "x", namespace="kube-system"),
    "list OutboxRelays everywhere": lambda api, _: api.list("OutboxRelay"),
    "list namespaces": lambda api, _: api.list("Namespace"),
    "change an OutboxRelay": lambda api, stage: api.merge(
        "OutboxRelay", RELAY, {"spec": {}}, namespace=stage.namespace
    ),
    "delete an OutboxRelay": lambda api, stage: api.delete("OutboxRelay", RELAY, namespace=stage.namespace),
    "create a pod": lambda api, stage: api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": stage.namespace}, "spec": {}}
    ),
    "delete a pod": lambda api, stage: api.delete("Pod", "toolbox", namespace=stage.namespace),
    "delete a config map": lambda api, stage: api.delete("ConfigMap", "toolbox", namespace=stage.namespace),
    "change another Lease": lambda api, stage: api.merge("Lease", "x", {"spec": {}}, namespace=stage.namespace),
    "grant itself more": lambda api, stage: api.merge("Role", RELEASE, {"rules": []}, namespace=stage.namespace),
}


@pytest.mark.parametrize("attempt", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_the_operator_may_not(attempt: Callable[[Api, Stage], object], running: Stage, operator: Api) -> None:
    with pytest.raises(ApiError) as refusal:
        attempt(operator, running)
    assert refusal.value.code == 403


def test_the_operator_may_read_a_named_secret(running: Stage, operator: Api) -> None:
    assert operator.get("Secret", "relay-login", namespace=running.namespace)["data"]


def test_hp_05_another_namespace_is_not_served(running: Stage, new_namespace: Callable[..., str]) -> None:
    """cases.md HP-05: and not asked about either, over and over."""
    other = new_namespace("e2e")
    # An API server that begins refuses for a moment what it grants later: what others saw of that does not count.
    before = running.requests()
    running.api.create(relay(namespace=other))
    # By the time that a later one is served, the earlier one would have been.
    running.serve("later")
    assert running.status("shop", namespace=other) == {}
    assert running.api.list("Deployment", namespace=other) == []
    refused = {
        request: number - before.get(request, 0.0)
        for request, number in running.requests().items()
        if request[2] in ("401", "403")
    }
    assert sum(refused.values()) == 0, refused


@pytest.fixture
def no_pods(stage: Stage) -> Iterator[None]:
    """A quota that lets no pod into the second namespace, for one test."""
    metadata = {"name": "none", "namespace": stage.second}
    spec = {"hard": {"pods": "0"}}
    stage.api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    yield
    stage.api.delete("ResourceQuota", "none", namespace=stage.second)


def test_hp_06_a_quota_is_told(stage: Stage, no_pods: None) -> None:
    """cases.md HP-06: the refusal is on a ReplicaSet, where nobody looks."""
    stage.create_table("quota")
    stage.copy_secrets(stage.second)
    body = stage.relay("quota", databases=[stage.database("quota")], topics=[topic("quota", topic=RELAY)])
    body["metadata"]["namespace"] = stage.second
    stage.api.create(body)

    def reason() -> str:
        ready: Object = condition(stage.status("quota", namespace=stage.second), "Ready")
        return f"{ready.get('reason')}: {ready.get('message')}"

    eventually(
        lambda: reason().startswith("FailedCreate") and "exceeded quota: none" in reason(),
        seconds=REACT_SECONDS,
        what="the quota to be told",
        detail=reason,
    )
    stage.api.delete("OutboxRelay", "quota", namespace=stage.second)


def test_os_03_few_connections(running: Stage) -> None:
    """cases.md OS-03: however many OutboxRelays, the operator holds at most two connections to one server."""
    names = running.sql("select application_name from pg_stat_activity where usename = 'relay'").splitlines()
    operators = [name for name in names if name.startswith("outboxrelay-operator")]
    assert 1 <= len(operators) <= 2
    assert all(name.startswith("outboxrelay") for name in names)


@pytest.mark.parametrize("which", ["operator", "relay"])
def test_hp_06_any_user_id_will_do(which: str, running: Stage) -> None:
    """cases.md HP-06: OpenShift runs every namespace under a user id of its own."""
    (pod,) = running.operator_pods() if which == "operator" else running.relay_pods(RELAY)
    spec = {name: value for name, value in pod["spec"].items() if name not in ("nodeName", "tolerations")}
    spec["securityContext"] = {**spec["securityContext"], "runAsUser": 1_000_680_000, "runAsGroup": 0}
    name = f"any-user-{which}"
    running.api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": running.namespace}, "spec": spec}
    )
    eventually(
        lambda: _ready(running.api.get("Pod", name, namespace=running.namespace)),
        seconds=START_SECONDS,
        what=f"{which} to be ready under another user id",
        detail=lambda: running.api.pod_log(name, namespace=running.namespace),
    )
    running.api.delete("Pod", name, namespace=running.namespace)
    running.gone("Pod", name)
    running.write(RELAY, rows=10)
    running.wait_delivered(RELAY, written(rows=10))


def _ready(pod: Object) -> bool:
    return any((c["type"], c["status"]) == ("Ready", "True") for c in pod["status"].get("conditions") or ())


def test_memory(running: Stage) -> None:
    (operator,) = running.operator_pods()
    (relay_pod,) = running.relay_pods(RELAY)
    assert _resident_mib(running, operator) < OPERATOR_MIB
    assert _resident_mib(running, relay_pod) < RELAY_MIB


def _resident_mib(stage: Stage, pod: Object) -> float:
    found = re.search(r"^process_resident_memory_bytes (\S+)$", stage.from_pod(pod, "/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1]) / 2**20


def test_the_operators_log_is_json_and_it_ends_only_with_its_lease(running: Stage) -> None:
    """Other tests stop the control plane; a leader that cannot renew its Lease must end. Nothing else may end it."""
    (operator,) = running.operator_pods()
    name = operator["metadata"]["name"]
    _log_lines(running, name)
    if operator["status"]["containerStatuses"][0]["restartCount"]:
        assert any("is lost; this process ends" in line for line in _log_lines(running, name, "--previous")[-20:])


def _log_lines(stage: Stage, pod: str, *options: str) -> list[str]:
    log = stage.cluster.kubectl("-n", stage.namespace, "logs", pod, "--tail", "-1", *options)
    lines = [line for line in log.splitlines() if line]
    assert lines
    assert all(line.startswith("{") and line.endswith("}") for line in lines)
    return lines
