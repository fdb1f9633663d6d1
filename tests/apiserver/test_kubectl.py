"""What a person meets who uses kubectl on an OutboxRelay: apply, explain, get, describe, scale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.testbed import Cluster, ClusterError
from tests.testbed.api import Api, Object
from tests.testbed.cluster_fixtures import CRD_FILE, CRD_NAME
from tests.testbed.relays import relay

# etcd and client-side apply both have a limit of 262,144 bytes for annotations; design.md keeps well below.
MOST_BYTES = 200_000

STATUS: Object = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "SecretMissing",
            "message": "Secret shop/orders-db does not exist",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
    "pairsReady": "0/1",
    "pairsTotal": 1,
    "replicas": 7,
    "readyReplicas": 0,
    "replicasPerPair": 7,
    "selector": "app.kubernetes.io/instance=shop",
    "parked": 3,
    "display": {"replicas": "0/7", "backlog": "~12345", "lag": "67s", "rate": "89/s", "catchUp": "2m"},
    "pairs": [],
}


@pytest.fixture
def stored(crd: Object, api: Api, namespace: str) -> Object:
    """An OutboxRelay `shop` with a status."""
    api.create(relay(namespace=namespace, lanes=4))
    return api.merge("OutboxRelay", "shop", {"status": STATUS}, namespace=namespace, subresource="status")


def test_hp_02_the_crd_can_be_applied_by_the_client(cluster: Cluster) -> None:
    """cases.md HP-02: client-side apply stores the whole file once more, in an annotation."""
    assert CRD_FILE.stat().st_size < MOST_BYTES
    assert CRD_NAME in cluster.kubectl("apply", "--dry-run=server", "-f", str(CRD_FILE))


def test_apply_refuses_an_unknown_field(crd: Object, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(relay(namespace=namespace, autoScaling={"maxReplicas": 4})), encoding="utf-8")
    with pytest.raises(ClusterError, match=r'unknown field "spec.autoScaling"'):
        cluster.kubectl("apply", "-f", str(file))


def test_apply_twice_changes_nothing(crd: Object, cluster: Cluster, api: Api, namespace: str, tmp_path: Path) -> None:
    """kubectl cannot tell, since its patch lacks the defaults inside lists; the server must."""
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(relay(namespace=namespace)), encoding="utf-8")
    assert "created" in cluster.kubectl("apply", "-f", str(file))
    before = api.get("OutboxRelay", "shop", namespace=namespace)
    cluster.kubectl("apply", "-f", str(file))
    assert api.get("OutboxRelay", "shop", namespace=namespace)["metadata"] == before["metadata"]


def test_get_shows_what_people_scan_for(stored: Object, cluster: Cluster, namespace: str) -> None:
    header, row = (line.split() for line in cluster.kubectl("-n", namespace, "get", "obr").splitlines())
    assert header == ["NAME", "READY", "PAIRS", "REPLICAS", "BACKLOG", "LAG", "RATE", "AGE"]
    assert row[:-1] == ["shop", "False", "0/1", "0/7", "~12345", "67s", "89/s"]


def test_get_wide(stored: Object, cluster: Cluster, namespace: str) -> None:
    header, row = (line.split() for line in cluster.kubectl("-n", namespace, "get", "obr", "-o", "wide").splitlines())
    shown = dict(zip(header, row, strict=True))
    assert (shown["CATCH-UP"], shown["PARKED"], shown["REASON"]) == ("2m", "3", "SecretMissing")


def test_category_and_names(stored: Object, cluster: Cluster, namespace: str) -> None:
    for name in ("outbox", "outboxrelay", "outboxrelays", "obr"):
        assert "shop" in cluster.kubectl("-n", namespace, "get", name, "-o", "name")


def test_describe_tells_the_reason(stored: Object, cluster: Cluster, namespace: str) -> None:
    text = cluster.kubectl("-n", namespace, "describe", "obr", "shop")
    assert "SecretMissing" in text
    assert "Secret shop/orders-db does not exist" in text


def test_explain_describes_every_field(crd: Object, cluster: Cluster) -> None:
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert [path for path, field in _fields(schema) if len(field.get("description", "")) < 10] == []

    text = cluster.kubectl("explain", "obr.spec.topics")
    assert "The Kafka topic to send to" in text
    assert "match" in text
    assert "-required-" in text


def test_scale(stored: Object, cluster: Cluster, api: Api, namespace: str) -> None:
    cluster.kubectl("-n", namespace, "scale", "obr/shop", "--replicas=3")
    assert api.get("OutboxRelay", "shop", namespace=namespace)["spec"]["replicas"] == 3
    scale = api.get("OutboxRelay", "shop", namespace=namespace, subresource="scale")
    assert scale["status"] == {"replicas": 7, "selector": "app.kubernetes.io/instance=shop"}

    with pytest.raises(ClusterError, match="replicas must not be above lanes"):
        cluster.kubectl("-n", namespace, "scale", "obr/shop", "--replicas=5")
    with pytest.raises(ClusterError, match=r"spec\.replicas"):
        cluster.kubectl("-n", namespace, "scale", "obr/shop", "--replicas=257")


def test_ol_09_a_manifest_without_replicas_leaves_what_was_scaled(
    crd: Object, cluster: Cluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    """cases.md OL-09: the default is for those that nobody ever scaled."""
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(relay(namespace=namespace)), encoding="utf-8")
    cluster.kubectl("apply", "-f", str(file))
    cluster.kubectl("-n", namespace, "scale", "obr/shop", "--replicas=3")
    file.write_text(yaml.safe_dump(relay(namespace=namespace, suspend=True)), encoding="utf-8")
    cluster.kubectl("apply", "-f", str(file))
    stored = api.get("OutboxRelay", "shop", namespace=namespace)["spec"]
    assert (stored["suspend"], stored["replicas"]) == (True, 3)


def test_the_spec_and_the_status_have_their_own_writers(stored: Object, api: Api, namespace: str) -> None:
    """Who may write the spec cannot forge the status, and a status changes no generation."""
    forged = api.merge(
        "OutboxRelay", "shop", {"spec": {"replicas": 2}, "status": {"pairsReady": "9/9"}}, namespace=namespace
    )
    assert forged["spec"]["replicas"] == 2
    assert forged["status"]["pairsReady"] == "0/1"
    assert forged["metadata"]["generation"] == stored["metadata"]["generation"] + 1

    written = api.merge(
        "OutboxRelay",
        "shop",
        {"spec": {"replicas": 4}, "status": {"pairsReady": "1/1"}},
        namespace=namespace,
        subresource="status",
    )
    assert written["spec"]["replicas"] == 2
    assert written["status"]["pairsReady"] == "1/1"
    assert written["metadata"]["generation"] == forged["metadata"]["generation"]


def test_get_as_json_gives_it_back(stored: Object, cluster: Cluster, namespace: str) -> None:
    shown = json.loads(cluster.kubectl("-n", namespace, "get", "obr", "shop", "-o", "json"))
    assert shown["spec"] == stored["spec"]
    assert shown["status"] == STATUS


def _fields(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every field below a schema with its path, but for the three that each kind has."""
    for name, field in schema.get("properties", {}).items():
        if not path and name in ("apiVersion", "kind", "metadata"):
            continue
        yield f"{path}.{name}", field
        yield from _fields(field, f"{path}.{name}")
        yield from _fields(field.get("items", {}), f"{path}.{name}[]")
