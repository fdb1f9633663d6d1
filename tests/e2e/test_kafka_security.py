"""An OutboxRelay whose Kafka speaks TLS and wants a login: KF-03, SE-04 and a rotation without a restart."""

from __future__ import annotations

import json

from tests.e2e.stage import REACT_SECONDS, Stage, pair_status, uids, written
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

RELAY = "secured"
USER = "secured-relay"
WRONG, RIGHT, NEXT = "S3CR3T-CANARY-wrong", "S3CR3T-CANARY-right", "S3CR3T-CANARY-next"

ROTATION_SECONDS = 90
"""Within which the product promises to have taken up a changed Secret."""


def test_kf_03_a_login_to_kafka_is_refused_mended_and_rotated_without_a_restart(stage: Stage) -> None:
    stage.create_table("secured")
    stage.create_topic("secured")
    stage.set_kafka_password(USER, RIGHT)
    stage.put_secret("kafka-login", username=USER, password=WRONG)
    kafka = {
        "bootstrapServers": [f"kafka.{stage.namespace}.svc:9096"],
        "tls": {"caSecretRef": {"name": "kafka-ca"}},
        "sasl": {"mechanism": "SCRAM-SHA-512", "credentialsSecretRef": {"name": "kafka-login"}},
        "compression": "Zstd",
        "config": {"linger.ms": 1},
    }
    body = stage.relay(RELAY, databases=[stage.database("secured")], topics=[topic("secured", topic="secured")])
    body["spec"]["kafka"] = kafka
    stage.api.create(body)
    stage.write("secured", rows=50)

    status = stage.wait_told(RELAY, BrokerReachable=("False", "BrokerAuthenticationFailed"), seconds=120)
    assert pair_status(status, database="secured", topic="secured")["reason"] == "BrokerAuthenticationFailed"
    pods = uids(stage.relay_pods(RELAY))

    stage.put_secret("kafka-login", username=USER, password=RIGHT)
    stage.wait_ready(RELAY, seconds=REACT_SECONDS)
    stage.wait_delivered("secured", written(rows=50))

    stage.set_kafka_password(f"{USER}-next", NEXT)
    stage.put_secret("kafka-login", username=f"{USER}-next", password=NEXT)
    eventually(
        lambda: all("have changed; connecting anew" in log for log in logs(stage)),
        seconds=ROTATION_SECONDS,
        what="the rotated login in use",
        detail=lambda: "\n".join(logs(stage)),
    )
    stage.write("secured", rows=50, first=51)
    stage.wait_delivered("secured", written(rows=100))
    stage.wait_ready(RELAY, seconds=REACT_SECONDS)
    assert uids(stage.relay_pods(RELAY)) == pods
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in stage.relay_pods(RELAY)] == [0]
    kinds = ("OutboxRelay", "Deployment", "Pod", "ConfigMap", "Event")
    said = [
        *logs(stage),
        *(stage.from_pod(pod, "/status") for pod in stage.relay_pods(RELAY)),
        *(json.dumps(stage.api.list(kind, namespace=stage.namespace)) for kind in kinds),
    ]
    assert [text for text in said if "S3CR3T-CANARY" in text] == []


def logs(stage: Stage) -> list[str]:
    """What the relays have logged."""
    return [stage.api.pod_log(pod["metadata"]["name"], namespace=stage.namespace) for pod in stage.relay_pods(RELAY)]
