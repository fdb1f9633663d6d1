"""What an older CRD lacks, and the status that it can store (OL-11, HP-02)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from outboxrelay_operator.api import GROUP, KIND, VERSION
from outboxrelay_operator.api.crd import definition
from outboxrelay_operator.installed import InstalledSchema

STATUS = {"pairsReady": "1/1", "unrouted": 3, "pairs": [{"name": "a", "parked": 0, "scaling": {"reason": "Load"}}]}


def schema() -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return found


def document(published: dict[str, Any]) -> dict[str, Any]:
    kinds = [{"group": GROUP, "kind": KIND, "version": VERSION}]
    schemas = {"other": {"type": "object"}, "ours": published | {"x-kubernetes-group-version-kind": kinds}}
    return {"components": {"schemas": schemas}}


def older() -> dict[str, Any]:
    found = schema()
    status = found["properties"]["status"]["properties"]
    del status["unrouted"]
    del status["pairs"]["items"]["properties"]["scaling"]
    del found["properties"]["spec"]["properties"]["onError"]
    return found


def test_the_same_schema_lacks_nothing_and_cuts_nothing() -> None:
    installed = InstalledSchema()
    installed.learn(document(schema()))
    assert installed.missing == ()
    assert installed.fitting(STATUS) is STATUS


def test_ol_11_what_is_missing_is_named_and_cut() -> None:
    """cases.md OL-11, HP-02."""
    installed = InstalledSchema()
    installed.learn(document(older()))
    assert set(installed.missing) == {"spec.onError", "status.unrouted", "status.pairs[].scaling"}
    assert installed.fitting(STATUS) == {"pairsReady": "1/1", "pairs": [{"name": "a", "parked": 0}]}


def test_a_newer_schema_lacks_nothing() -> None:
    newer = schema()
    newer["properties"]["status"]["properties"]["mood"] = {"type": "string"}
    installed = InstalledSchema()
    installed.learn(document(newer))
    assert installed.missing == ()


def test_what_is_not_known_cuts_nothing() -> None:
    installed = InstalledSchema()
    assert installed.fitting(STATUS) is STATUS
    installed.learn(document(older()))
    unknowns: list[dict[str, Any] | None] = [None, {}, {"components": {"schemas": {"other": {}}}}]
    for unknown in unknowns:
        installed.learn(unknown)
        assert (installed.missing, installed.fitting(STATUS)) == ((), STATUS)
