"""The number of pods follows the load by itself, and without autoscaling whoever sets the scale subresource."""

from __future__ import annotations

import json
import time

from tests.e2e.stage import (
    REACT_SECONDS,
    START_SECONDS,
    Stage,
    condition,
    numbered,
    out_of_order,
    pair_status,
    uids,
    written,
)
from tests.testbed.api import Object
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

ROWS = 200_000
KEYS = 200
MOST = 4

AUTOSCALING = {
    "minReplicas": 0,
    "maxReplicas": MOST,
    "catchUpSeconds": 10,
    "scaleDownAfterSeconds": 10,
    "idleAfterSeconds": 10,
}

SLOW = """
create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.001); return old; end $$;
create trigger slow before delete on auto for each row when (old.id % 2 = 0) execute function slow()"""
"""At most 2,000 rows a second and relay, on a machine of any speed: so there is something to scale for."""

DRAIN_SECONDS = 480
"""For 200,000 rows on a busy machine: a bound on the machine's speed, not the product's."""


def test_up_with_a_backlog_down_to_zero_and_awake_for_one_row(stage: Stage) -> None:
    """Nothing lost, nothing overtaken; the operator is killed halfway and goes on from the status."""
    stage.create_table("auto")
    stage.sql(SLOW)
    stage.create_topic("auto", partitions=6)
    stage.api.create(
        stage.relay(
            "auto",
            databases=[stage.database("auto")],
            topics=[topic("auto", topic="auto")],
            autoscaling=AUTOSCALING,
        )
    )
    stage.wait_ready("auto")
    _wait_for(stage, 0, seconds=START_SECONDS)
    status = stage.wait_ready("auto")
    assert condition(status, "Ready")["reason"] == "Idle"
    assert _pair(stage)["scaling"]["reason"] == "Idle"

    stage.write("auto", rows=ROWS, keys=KEYS)
    _wait_for(stage, MOST, seconds=START_SECONDS)
    up = _pair(stage)["scaling"]
    assert up["ratePerPod"] > 0
    (operator,) = stage.operator_pods()
    stage.api.delete("Pod", operator["metadata"]["name"], namespace=stage.namespace)
    eventually(
        lambda: uids(stage.operator_pods()).isdisjoint(uids([operator])),
        seconds=START_SECONDS,
        what="the operator gone",
    )
    eventually(lambda: stage.count("auto") == 0, seconds=DRAIN_SECONDS, what="the table to be empty")

    messages = stage.consume("auto")
    assert {numbered(message) for message in messages} == written(rows=ROWS, keys=KEYS)
    assert out_of_order(messages) == []
    _wait_for(stage, 0, seconds=START_SECONDS)
    reasons = {
        event["reason"]
        for event in stage.api.list("Event", namespace=stage.namespace)
        if event["involvedObject"]["name"] == "auto"
    }
    assert reasons >= {"ScaledUp", "ScaledDown", "Idle"}

    began = time.monotonic()
    stage.write("auto", rows=1, keys=KEYS, first=ROWS + 1)
    # The topic is large: the row that is gone from the table was acknowledged by Kafka.
    eventually(lambda: stage.count("auto") == 0, seconds=REACT_SECONDS, what="the one row", interval_seconds=0.2)
    print(f"one row, from zero relays: delivered after {time.monotonic() - began:.1f} s")  # noqa: T201
    assert {numbered(message) for message in stage.consume("auto")} == written(rows=ROWS + 1, keys=KEYS)


def test_ol_09_without_autoscaling_an_hpa_sets_the_count(stage: Stage) -> None:
    """cases.md OL-09: the real HPA controller, which keeps to its limits without any metric, and `kubectl scale`."""
    stage.serve("hpa")
    autoscaler: Object = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "hpa", "namespace": stage.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "outboxrelay.io/v1alpha1", "kind": "OutboxRelay", "name": "hpa"},
            "minReplicas": 2,
            "maxReplicas": 3,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
                }
            ],
        },
    }
    stage.api.create(autoscaler)
    _wait_ready_replicas(stage, "hpa", 2)
    stage.cluster.kubectl("-n", stage.namespace, "scale", "obr/hpa", "--replicas=4")
    _wait_ready_replicas(stage, "hpa", 3)
    stage.api.delete("HorizontalPodAutoscaler", "hpa", namespace=stage.namespace)
    stage.cluster.kubectl("-n", stage.namespace, "scale", "obr/hpa", "--replicas=1")
    _wait_ready_replicas(stage, "hpa", 1)


def _pair(stage: Stage) -> Object:
    return pair_status(stage.status("auto"), database="auto", topic="auto")


def _deployed(stage: Stage) -> int:
    deployment = stage.deployment("auto", database="auto", topic="auto")
    return -1 if deployment is None else int(deployment["spec"]["replicas"])


def _wait_for(stage: Stage, count: int, *, seconds: float) -> None:
    """Wait until so many pods are wanted and told, and ready."""

    def reached() -> bool:
        pair = _pair(stage)
        return (
            _deployed(stage) == count
            and pair.get("desiredReplicas") == count
            and pair.get("readyReplicas") == count
            and len(stage.relay_pods("auto")) == count
        )

    eventually(
        reached, seconds=seconds, what=f"{count} relays", detail=lambda: json.dumps(stage.status("auto"), indent=1)
    )


def _wait_ready_replicas(stage: Stage, name: str, count: int) -> None:
    stage.wait_status(
        name,
        lambda status: status.get("readyReplicas") == count == status.get("replicasPerPair"),
        what=f"{count} relays",
        seconds=START_SECONDS,
    )
