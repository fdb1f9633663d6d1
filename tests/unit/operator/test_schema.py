"""The generated schema as a whole: what is in it, what must not be, and its size.

Covers SE-01 (no way to name another namespace, or to change more of a pod than the allow-list says).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from outboxrelay_operator.api import crd
from outboxrelay_operator.api.schema import structural


def properties(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from properties(child, f"{path}.{name}")
    if "items" in node:
        yield f"{path}[]", node["items"]
        yield from properties(node["items"], f"{path}[]")


def version() -> dict[str, Any]:
    only: dict[str, Any] = crd.definition()["spec"]["versions"][0]
    return only


def schema() -> dict[str, Any]:
    root: dict[str, Any] = version()["schema"]["openAPIV3Schema"]
    return root


SPEC = dict(properties(schema()["properties"]["spec"], "spec"))
EVERYTHING = dict(properties(schema()))


def test_se_01_no_field_names_a_namespace() -> None:
    """cases.md SE-01: so nothing of another namespace can be asked for."""
    assert not [path for path in EVERYTHING if "namespace" in path.lower()]


def test_se_01_of_a_pod_only_image_and_resources_can_be_set() -> None:
    """cases.md SE-01."""
    below = {path for path in SPEC if path.startswith("spec.pod.")}
    assert below == {
        "spec.pod.image",
        "spec.pod.imagePullSecrets",
        "spec.pod.imagePullSecrets[]",
        "spec.pod.imagePullSecrets[].name",
        "spec.pod.resources",
        *(
            f"spec.pod.resources.{section}{field}"
            for section in ("requests", "limits")
            for field in ("", ".cpu", ".memory", ".ephemeral-storage")
        ),
    }


def test_every_field_of_the_spec_is_explained() -> None:
    silent = [path for path, node in EVERYTHING.items() if not path.endswith("[]") and "description" not in node]
    assert silent == [".metadata"]


def test_ol_11_every_string_and_list_of_the_spec_is_bounded() -> None:
    """cases.md OL-11."""
    for path, node in SPEC.items():
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path


def test_every_pattern_has_a_sentence() -> None:
    """What the API server says of a pattern is the pattern."""
    patterns = {path: node for path, node in SPEC.items() if "pattern" in node}
    assert len(patterns) > 50
    for path, node in patterns.items():
        told = [rule["message"] for rule in node["x-kubernetes-validations"] if f"r'{node['pattern']}'" in rule["rule"]]
        assert len(told) == 1, path
        assert told[0].startswith("must be "), path


def test_the_status_is_bounded_far_below_what_etcd_takes() -> None:
    def largest(node: dict[str, Any]) -> int:
        if "properties" in node:
            return sum(len(name) + 6 + largest(child) for name, child in node["properties"].items())
        if node["type"] == "array":
            return int(node["maxItems"]) * (largest(node["items"]) + 1)
        return int(node.get("maxLength", 24)) + 2

    assert largest(schema()["properties"]["status"]) < 900_000


def test_of_a_status_only_the_keys_of_lists_are_required() -> None:
    """Else a field that is new in a release would make the objects of the one before unchangeable."""

    def required(node: dict[str, Any]) -> set[str]:
        below = set().union(*(required(child) for child in node.get("properties", {}).values()), set())
        return set(node.get("required", ())) | below | (required(node["items"]) if "items" in node else set())

    assert required(schema()["properties"]["status"]) == {"type", "name"}


def test_hp_02_the_text_is_small_enough_for_client_side_apply() -> None:
    """cases.md HP-02: an annotation of 262,144 bytes holds it once more."""
    assert len(crd.text()) < 200_000


def test_printer_columns_show_what_people_scan_for() -> None:
    columns = version()["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    assert narrow == ["Ready", "Pairs", "Replicas", "Backlog", "Lag", "Rate", "Age"]
    assert {column["name"] for column in columns if column.get("priority")} == {"Catch-up", "Parked", "Reason"}


def test_printer_columns_and_scale_name_fields_that_exist() -> None:
    paths = [column["jsonPath"] for column in version()["additionalPrinterColumns"]]
    paths += version()["subresources"]["scale"].values()
    for path in paths:
        if not path.startswith(".metadata") and "[?" not in path:
            assert path in EVERYTHING, path


@pytest.mark.parametrize("annotation", [dict[str, str], int | str, tuple[int, str]])
def test_what_a_structural_schema_cannot_say_is_refused(annotation: Any) -> None:
    model = type("M", (BaseModel,), {"__annotations__": {"field": annotation}})
    with pytest.raises(ValueError, match=r"M\.field"):
        structural(model)
