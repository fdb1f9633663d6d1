"""The status on the real API server: nothing that the operator writes is pruned, and the largest one fits.

OL-11: a field that the schema does not know vanishes without an error.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from outboxrelay_operator.api.status import OutboxRelayStatus
from tests.testbed.api import Api, ApiError, Object
from tests.testbed.relays import database, relay, topic

# etcd refuses a request of more than 1.5 MiB, and the object also holds the spec.
MOST_BYTES = 1_000_000


def _largest(schema: Object, unique: str = "") -> Any:
    """A value with every field, every list and every text at its limit; `unique` tells list entries apart."""
    match schema["type"]:
        case "object":
            keys = schema["properties"].items()
            return {name: _largest(field, unique) for name, field in keys}
        case "array":
            return [_entry(schema, number) for number in range(schema["maxItems"])]
        case "string" if schema.get("format") == "date-time":
            return "2026-01-01T00:00:00Z"
        case "string" if "enum" in schema:
            return schema["enum"][0]
        case "string":
            return "x" * schema["maxLength"]
        case "integer":
            return 1_234_567
        case "number":
            return 12345.5
        case "boolean":
            return False
    raise AssertionError(f"unknown type in {schema}")


def _entry(schema: Object, number: int) -> Any:
    entry = _largest(schema["items"])
    for key in schema.get("x-kubernetes-list-map-keys", []):
        entry[key] = f"{number:04}{entry[key]}"[: len(entry[key])]
    return entry


@pytest.fixture
def largest(crd: Object) -> Object:
    """The largest status that the schema allows."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    status: Object = _largest(schema)
    return status


def test_the_schema_and_the_model_have_the_same_fields(largest: Object) -> None:
    parsed = OutboxRelayStatus.model_validate(largest)
    assert parsed.model_dump(mode="json", exclude_none=True) == largest


def test_ol_11_the_largest_status_fits_and_comes_back_whole(largest: Object, api: Api, namespace: str) -> None:
    """cases.md OL-11."""
    assert len(largest["pairs"]) == 256
    assert len(json.dumps(largest)) < MOST_BYTES
    databases = [database(f"d{number}") for number in range(64)]
    topics = [topic(f"t{number}", match=[str(number)]) for number in range(4)]
    api.create(relay(namespace=namespace, databases=databases, topics=topics))
    body = {
        "apiVersion": "outboxrelay.io/v1alpha1",
        "kind": "OutboxRelay",
        "metadata": {"name": "shop", "namespace": namespace},
        "status": largest,
    }
    api.apply(body, subresource="status")
    assert api.get("OutboxRelay", "shop", namespace=namespace)["status"] == largest


def test_ol_11_a_field_that_the_schema_lacks_is_an_error(largest: Object, api: Api, namespace: str) -> None:
    """cases.md OL-11: for a writer that asks for strict validation, as ours does; else it is dropped silently."""
    api.create(relay(namespace=namespace))
    with pytest.raises(ApiError, match=r'unknown field "status\.mood"'):
        api.merge("OutboxRelay", "shop", {"status": {"mood": "fine"}}, namespace=namespace, subresource="status")


def test_a_status_of_another_version_is_valid(crd: Object, api: Api, namespace: str) -> None:
    """HP-02: the CRD is upgraded before the operator, and a change of the spec validates the stored status too."""
    api.create(relay(namespace=namespace))
    older = {"conditions": [{"type": "Ready"}], "pairs": [{"name": "shop-orders-orders-123456"}], "display": {}}
    api.merge("OutboxRelay", "shop", {"status": older}, namespace=namespace, subresource="status")
    changed = api.merge("OutboxRelay", "shop", {"spec": {"replicas": 2}}, namespace=namespace)
    assert changed["status"] == older
