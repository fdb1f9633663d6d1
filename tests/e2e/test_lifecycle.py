"""Deleting and restarting things in any order wedges nothing and stops no relay that is still wanted.

Covers OL-01, OL-02, OS-05, OS-06, HP-03. The last test deletes a namespace that the operator serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from outboxrelay_operator.names import shared_name
from tests.e2e.install import install
from tests.e2e.stage import DBNAME, REACT_SECONDS, RELEASE, START_SECONDS, Stage, uids, written
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

RELAY = "lasting"


@pytest.fixture(scope="module")
def lasting(stage: Stage) -> Stage:
    """An OutboxRelay that goes on through whatever happens to the operator."""
    _make(stage, RELAY)
    return stage


def _make(stage: Stage, name: str, *, login: str = "relay-login", dbname: str = DBNAME) -> None:
    stage.create_table(name, dbname=dbname)
    stage.ensure_topic(name)
    database = stage.database(name, credentialsSecretRef={"name": login}, dbname=dbname)
    stage.api.create(stage.relay(name, databases=[database], topics=[topic(name, topic=name)]))
    stage.wait_ready(name)


def _operator_ready(stage: Stage, count: int) -> bool:
    pods = stage.operator_pods()
    ready = [
        c
        for pod in pods
        for c in pod["status"].get("conditions") or ()
        if (c["type"], c["status"]) == ("Ready", "True")
    ]
    return len(pods) == len(ready) == count


def _leader(stage: Stage) -> str | None:
    """The pod that holds the Lease."""
    lease = stage.api.find("Lease", RELEASE, namespace=stage.namespace)
    holder: str = "" if lease is None else lease["spec"].get("holderIdentity", "")
    names = [pod["metadata"]["name"] for pod in stage.operator_pods()]
    return next((name for name in names if holder.startswith(name)), None)


def test_os_06_a_restarted_operator_restarts_no_relay(lasting: Stage) -> None:
    """cases.md OS-06."""
    before = uids(lasting.relay_pods(RELAY))
    (old,) = lasting.operator_pods()
    lasting.api.delete("Pod", old["metadata"]["name"], namespace=lasting.namespace)
    lasting.wait_reconciled(RELAY, 2)
    assert _leader(lasting) not in (None, old["metadata"]["name"])
    assert before <= uids(lasting.relay_pods(RELAY))
    lasting.wait_reconciled(RELAY, 1)


@pytest.fixture
def two_operators(lasting: Stage) -> Iterator[Stage]:
    """Two pods of the operator, for one test."""
    install(lasting, replicas=2)
    eventually(lambda: _operator_ready(lasting, 2), seconds=START_SECONDS, what="two operators")
    yield lasting
    install(lasting)
    eventually(lambda: _operator_ready(lasting, 1), seconds=START_SECONDS, what="one operator")


def test_os_05_a_follower_takes_over_from_a_killed_leader(two_operators: Stage) -> None:
    """cases.md OS-05."""
    stage = two_operators
    before = uids(stage.relay_pods(RELAY))
    leader = _leader(stage)
    assert leader is not None
    stage.api.delete("Pod", leader, namespace=stage.namespace, grace_seconds=0)
    stage.wait_reconciled(RELAY, 2)
    assert _leader(stage) not in (None, leader)
    assert before <= uids(stage.relay_pods(RELAY))
    stage.wait_reconciled(RELAY, 1)


def _nothing(_: Stage) -> None:
    """The OutboxRelay goes while everything that it refers to is there."""


def _secret(stage: Stage) -> None:
    stage.api.delete("Secret", "leaving-login", namespace=stage.namespace)


def _database(stage: Stage) -> None:
    stage.sql("drop database leaving with (force)")


def _deployment(stage: Stage) -> None:
    found = stage.deployment("leaving", database="leaving", topic="leaving")
    assert found is not None
    stage.api.delete("Deployment", found["metadata"]["name"], namespace=stage.namespace)


@pytest.mark.parametrize(
    "first", [_nothing, _secret, _database, _deployment], ids=lambda function: function.__name__[1:]
)
def test_ol_02_an_outboxrelay_goes_whatever_went_before_it(first: Callable[[Stage], None], stage: Stage) -> None:
    """cases.md OL-02: nothing outside has to be asked, so nothing can hold the deletion up."""
    data = stage.api.get("Secret", "relay-login", namespace=stage.namespace)["data"]
    metadata = {"name": "leaving-login", "namespace": stage.namespace}
    stage.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    stage.sql("drop database if exists leaving with (force)")
    stage.sql("create database leaving")
    _make(stage, "leaving", login="leaving-login", dbname="leaving")
    stored = stage.api.get("OutboxRelay", "leaving", namespace=stage.namespace)
    assert "finalizers" not in stored["metadata"]
    deployment = stage.deployment("leaving", database="leaving", topic="leaving")
    assert deployment is not None

    first(stage)
    stage.api.delete("OutboxRelay", "leaving", namespace=stage.namespace)
    stage.gone("OutboxRelay", "leaving", seconds=REACT_SECONDS)
    stage.gone("Deployment", deployment["metadata"]["name"])
    stage.gone("ConfigMap", shared_name("leaving"))
    eventually(lambda: not stage.all_relay_pods("leaving"), seconds=START_SECONDS, what="the relay pods to go")


def test_hp_03_uninstalling_stops_no_relay_and_reinstalling_adopts_it(lasting: Stage) -> None:
    """cases.md HP-03, OL-01: without an operator rows flow, and an OutboxRelay can be deleted."""
    stage = lasting
    _make(stage, "orphan")
    before = uids(stage.relay_pods(RELAY))
    stage.cluster.helm("uninstall", RELEASE, "--namespace", stage.namespace, "--wait", timeout=120)
    # Helm waits for the Deployment; its pod may take a moment longer to end.
    eventually(lambda: stage.operator_pods() == [], seconds=START_SECONDS, what="the operator to be gone")

    stage.write(RELAY, rows=50)
    stage.wait_delivered(RELAY, written(rows=50))
    stage.api.delete("OutboxRelay", "orphan", namespace=stage.namespace)
    stage.gone("OutboxRelay", "orphan", seconds=REACT_SECONDS)
    eventually(lambda: not stage.all_relay_pods("orphan"), seconds=START_SECONDS, what="the orphan's pods to go")
    assert uids(stage.relay_pods(RELAY)) == before

    install(stage)
    eventually(lambda: _operator_ready(stage, 1), seconds=START_SECONDS, what="the operator to be back")
    stage.wait_reconciled(RELAY, 2)
    assert before <= uids(stage.relay_pods(RELAY))
    stage.wait_reconciled(RELAY, 1)


def test_ol_01_a_namespace_goes_and_the_operator_serves_the_others(lasting: Stage) -> None:
    """cases.md OL-01: with the namespace goes the operator's right to read it. The chart names it still."""
    stage = lasting
    stage.copy_secrets(stage.second)
    stage.create_table("doomed")
    stage.create_topic("doomed")
    relay = stage.relay("doomed", databases=[stage.database("doomed")], topics=[topic("doomed", topic="doomed")])
    relay["metadata"]["namespace"] = stage.second
    stage.api.create(relay)
    stage.wait_ready("doomed", namespace=stage.second)
    (operator,) = stage.operator_pods()

    stage.api.delete("Namespace", stage.second)
    stage.gone("Namespace", stage.second)

    stage.wait_reconciled(RELAY, 2)
    stage.wait_reconciled(RELAY, 1)
    (now,) = stage.operator_pods()
    assert now["metadata"]["uid"] == operator["metadata"]["uid"]
    assert now["status"]["containerStatuses"][0]["restartCount"] == 0
