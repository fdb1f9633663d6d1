"""cases.md SE-04: neither a password nor a payload appears where people and machines look, whatever goes wrong."""

from __future__ import annotations

import base64
import json

import pytest

from tests.e2e.stage import Stage, insert, pair_status, written
from tests.testbed.relays import topic

RELAY = "canaries"
PASSWORD = "S3CR3T-CANARY"
PAYLOAD = "P4YL0AD-CANARY"
ENCODED = base64.b64encode(PASSWORD.encode()).decode().rstrip("=")[:-1]


@pytest.fixture(scope="module")
def failing(stage: Stage) -> Stage:
    """A refused password, a host that does not exist, a server that is not trusted, and a row that is too large."""
    login = {"username": "relay", "password": PASSWORD}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in login.items()}
    ca = {"ca.crt": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n").decode()}
    for name, content in (("canary-login", data), ("canary-ca", ca)):
        metadata = {"name": name, "namespace": stage.namespace}
        stage.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content})
    canary = {"credentialsSecretRef": {"name": "canary-login"}}
    names = ("refused", "nowhere", "untrusted", "parked")
    for name in names:
        stage.create_table(name)
    stage.create_topic("canaries", max_message_bytes="2000")
    databases = [
        stage.database("refused", **canary),
        stage.database("nowhere", host="nowhere.invalid", **canary),
        stage.database("untrusted", tls={"caSecretRef": {"name": "canary-ca"}}, **canary),
        stage.database("parked"),
    ]
    topics = [topic(name, topic="canaries", databases=[name]) for name in names]
    stage.api.create(stage.relay(RELAY, databases=databases, topics=topics))
    stage.sql(
        f"""insert into parked (aggregatetype, aggregateid, type, payload)
            select 'order', 'large', 'Changed', jsonb_build_object('number', 0, 'text',
              string_agg('{PAYLOAD}' || md5(i::text), '')) from generate_series(1, 2000) as i;"""
        + insert("parked", rows=10, keys=2, first=1)
    )
    return stage


def test_se_04_each_fault_is_told(failing: Stage) -> None:
    """cases.md SE-04."""
    expected = {
        "refused": "AuthenticationFailed",
        "nowhere": "DatabaseUnreachable",
        "untrusted": "TlsFailed",
        "parked": "RowsParked",
    }

    failing.wait_status(
        RELAY,
        lambda status: (
            {name: pair_status(status, database=name, topic=name).get("reason") for name in expected} == expected
        ),
        what=f"the reasons {expected}",
    )


def test_a_parked_row_is_counted_and_holds_back_its_own_key_only(failing: Stage) -> None:
    failing.wait_delivered("canaries", written(rows=10, keys=2))
    status = failing.wait_status(
        RELAY,
        lambda status: pair_status(status, database="parked", topic="parked").get("parked"),
        what="the parked row is counted",
    )
    pair = pair_status(status, database="parked", topic="parked")
    assert pair["parked"] == 1
    assert pair["lastError"]["reason"] == "RowTooLarge"
    assert pair["lastError"]["key"] == "large"
    assert pair["ready"] is True
    assert failing.count("parked") == 1


def test_se_04_no_canary_anywhere(failing: Stage) -> None:
    """cases.md SE-04. Runs after the faults were told, so that all that tells of them is there to be searched."""
    test_se_04_each_fault_is_told(failing)
    places: dict[str, str] = {}
    for kind in ("OutboxRelay", "Deployment", "ReplicaSet", "Pod", "ConfigMap", "Event", "Lease"):
        objects = failing.api.list(kind, namespace=failing.namespace)
        places |= {f"{kind} {item['metadata']['name']}": json.dumps(item) for item in objects}
    for pod in (*failing.operator_pods(), *failing.relay_pods(RELAY)):
        name = pod["metadata"]["name"]
        places[f"log of {name}"] = failing.api.pod_log(name, namespace=failing.namespace)
        places[f"metrics of {name}"] = failing.from_pod(pod, "/metrics")
    for pod in failing.relay_pods(RELAY):
        places[f"report of {pod['metadata']['name']}"] = failing.from_pod(pod, "/status")
    assert any("AuthenticationFailed" in text for text in places.values())
    assert any("RowTooLarge" in text for text in places.values())
    found = [
        f"{canary} in {place}"
        for place, text in places.items()
        for canary in (PASSWORD, PAYLOAD, ENCODED)
        if canary in text
    ]
    assert found == []


def test_se_04_errors_keep_what_helps(failing: Stage) -> None:
    """cases.md SE-04: host, database, table and user are not secret, and an error without them is of little use."""
    refused = pair_status(failing.status(RELAY), database="refused", topic="refused")["message"]
    assert f"postgres.{failing.namespace}.svc" in refused
    assert "relay" in refused
    assert "nowhere.invalid" in pair_status(failing.status(RELAY), database="nowhere", topic="nowhere")["message"]
