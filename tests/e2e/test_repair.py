"""What the operator puts right, what it removes, and what it leaves alone."""

from __future__ import annotations

import pytest

from outboxrelay_operator.names import shared_name
from tests.e2e.stage import REACT_SECONDS, START_SECONDS, Stage, condition, uids, written
from tests.testbed.api import Object
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

RELAY = "repair"


@pytest.fixture(scope="module")
def running(stage: Stage) -> Stage:
    """An OutboxRelay with the pairs `one` and `two`."""
    for name in ("one", "two"):
        stage.create_table(f"repair_{name}")
        stage.create_topic(f"repair.{name}")
    stage.api.create(stage.relay(RELAY, databases=_databases(stage, "one", "two"), topics=_topics("one", "two")))
    stage.wait_ready(RELAY)
    return stage


def _databases(stage: Stage, *names: str) -> list[Object]:
    table = {"columns": {"createdAt": "created_at"}}
    return [stage.database(name, table={"name": f"repair_{name}"} | table) for name in names]


def _topics(*names: str) -> list[Object]:
    return [topic(name, topic=f"repair.{name}", databases=[name]) for name in names]


def _deployment(stage: Stage, name: str) -> Object | None:
    return stage.deployment(RELAY, database=name, topic=name)


def _existing(stage: Stage, name: str) -> Object:
    found = _deployment(stage, name)
    assert found is not None
    return found


def test_a_deleted_deployment_comes_back(running: Stage) -> None:
    before = _existing(running, "one")["metadata"]
    running.api.delete("Deployment", before["name"], namespace=running.namespace)
    eventually(
        lambda: (found := _deployment(running, "one")) is not None and found["metadata"]["uid"] != before["uid"],
        seconds=REACT_SECONDS,
        what="the Deployment to come back",
    )
    running.wait_ready(RELAY)


EDITS: dict[str, Object] = {
    "replicas": {"spec": {"replicas": 3}},
    "token mounted": {"spec": {"template": {"spec": {"automountServiceAccountToken": True}}}},
    "label removed": {"metadata": {"labels": {"app.kubernetes.io/component": None}}},
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_deployment_is_put_right(edit: Object, running: Stage) -> None:
    before = _existing(running, "one")
    running.api.merge("Deployment", before["metadata"]["name"], edit, namespace=running.namespace)

    def repaired() -> bool:
        now = _existing(running, "one")
        return bool(now["spec"] == before["spec"] and now["metadata"]["labels"] == before["metadata"]["labels"])

    eventually(repaired, seconds=REACT_SECONDS, what="the edit to be undone")
    running.wait_ready(RELAY)


def test_an_edited_config_map_is_put_right(running: Stage) -> None:
    """It is not watched; the regular pass over every OutboxRelay finds it."""
    name = shared_name(RELAY)
    before = running.api.get("ConfigMap", name, namespace=running.namespace)
    emptied = {"data": dict.fromkeys(before["data"])}
    running.api.merge("ConfigMap", name, emptied, namespace=running.namespace)
    eventually(
        lambda: running.api.get("ConfigMap", name, namespace=running.namespace).get("data") == before["data"],
        seconds=2 * REACT_SECONDS,
        what="the config map to be put right",
    )


def test_os_06_an_unrelated_edit_restarts_nothing(running: Stage) -> None:
    """cases.md OS-06: neither an annotation nor a changed number of pods touches the pods that run."""
    running.wait_ready(RELAY)
    before = uids(running.relay_pods(RELAY))
    annotation = {"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"team": "shop"}}}
    running.api.merge("OutboxRelay", RELAY, annotation, namespace=running.namespace)
    running.api.merge("OutboxRelay", RELAY, {"spec": {"replicas": 2}}, namespace=running.namespace)
    running.wait_status(
        RELAY, lambda status: status["readyReplicas"] == 4, what="four ready pods", seconds=START_SECONDS
    )
    assert before <= uids(running.relay_pods(RELAY))
    running.api.merge("OutboxRelay", RELAY, {"spec": {"replicas": 1}}, namespace=running.namespace)
    eventually(lambda: len(running.relay_pods(RELAY)) == 2, seconds=START_SECONDS, what="two pods")


def test_a_changed_table_rolls_its_own_pods_only(running: Stage) -> None:
    """A new configuration reaches new pods, and rows flow from the new table."""
    running.create_table("repair_moved")
    before = {name: running.relay_pods(RELAY) for name in ("all",)}["all"]
    of_two = {pod["metadata"]["uid"] for pod in before if "-two-" in pod["metadata"]["name"]}
    assert len(of_two) == 1
    moved = _databases(running, "one", "two")
    moved[0]["table"]["name"] = "repair_moved"
    running.api.merge("OutboxRelay", RELAY, {"spec": {"databases": moved}}, namespace=running.namespace)
    running.write("repair_moved", rows=30)
    running.wait_delivered("repair.one", written(rows=30), seconds=START_SECONDS)
    eventually(lambda: len(running.relay_pods(RELAY)) == 2, seconds=START_SECONDS, what="the rollout to end")
    now = uids(running.relay_pods(RELAY))
    assert of_two <= now
    assert len(now & uids(before)) == 1


def test_an_image_that_cannot_be_pulled_stops_no_rows(running: Stage) -> None:
    """The old pods go on until new ones are ready, and the status says why there are none."""
    running.wait_ready(RELAY)
    before = uids(running.relay_pods(RELAY))
    image = {"spec": {"pod": {"image": "outboxrelay/relay:never-built"}}}
    running.api.merge("OutboxRelay", RELAY, image, namespace=running.namespace)
    status = running.wait_status(
        RELAY,
        lambda status: condition(status, "Ready").get("reason") == "ImagePullFailed",
        what="the pull has failed",
        seconds=2 * REACT_SECONDS,
    )
    assert "never-built" in condition(status, "Ready")["message"]
    running.write("repair_two", rows=10)
    running.wait_delivered("repair.two", written(rows=10))
    assert before <= uids(running.relay_pods(RELAY))

    running.api.merge("OutboxRelay", RELAY, {"spec": {"pod": {"image": None}}}, namespace=running.namespace)
    running.wait_ready(RELAY, seconds=REACT_SECONDS)
    eventually(
        lambda: uids(running.relay_pods(RELAY)) == before, seconds=START_SECONDS, what="the pods that never ran to go"
    )


def test_a_pair_that_leaves_the_spec_is_removed(running: Stage) -> None:
    config_map = shared_name(RELAY)
    two = uids([pod for pod in running.relay_pods(RELAY) if "-two-" in pod["metadata"]["name"]])
    removed = _existing(running, "one")["metadata"]["name"]
    spec = {"databases": _databases(running, "two"), "topics": _topics("two")}
    running.api.merge("OutboxRelay", RELAY, {"spec": spec}, namespace=running.namespace)
    running.gone("Deployment", removed)
    eventually(lambda: uids(running.relay_pods(RELAY)) == two, seconds=START_SECONDS, what="only the other pair's pod")
    status = running.wait_ready(RELAY)
    assert [pair["name"] for pair in status["pairs"]] == [_existing(running, "two")["metadata"]["name"]]
    assert status["pairsReady"] == "1/1"
    # The config map keeps what a pod might still start with, until the next regular pass.
    eventually(
        lambda: (
            [
                key.partition(".")[0]
                for key in running.api.get("ConfigMap", config_map, namespace=running.namespace)["data"]
            ]
            == [status["pairs"][0]["name"]]
        ),
        seconds=2 * REACT_SECONDS,
        what="the configuration of the removed pair to go",
    )
