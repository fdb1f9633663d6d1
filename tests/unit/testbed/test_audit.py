"""Which rights an audit log tells of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.testbed.audit import requests_of

USER = "system:serviceaccount:shop:operator"


def entry(verb: str, resource: str, *, code: int = 200, user: str = USER, **changes: Any) -> str:
    """A line of the log."""
    reference = {"resource": resource, "namespace": "shop"} | changes.pop("reference", {})
    annotations = {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed"}
    body = {
        "verb": verb,
        "user": {"username": user},
        "objectRef": reference,
        "responseStatus": {"code": code},
        "annotations": annotations,
    } | changes
    return json.dumps(body) + "\n"


def used(log: Path, *lines: str) -> set[tuple[str, str, str]]:
    log.write_text("".join(lines))
    return {right for request in requests_of(USER, log) for right in request.rights}


def test_group_subresource_and_verb(tmp_path: Path) -> None:
    status = {"apiGroup": "outboxrelay.io", "subresource": "status"}
    lines = [entry("list", "pods"), entry("patch", "outboxrelays", reference=status)]
    assert used(tmp_path / "log", *lines) == {
        ("", "pods", "list"),
        ("outboxrelay.io", "outboxrelays/status", "patch"),
    }


def test_an_apply_that_creates_takes_two_rights(tmp_path: Path) -> None:
    assert used(tmp_path / "log", entry("patch", "configmaps", code=201)) == {
        ("", "configmaps", "patch"),
        ("", "configmaps", "create"),
    }


def test_what_others_ask_and_what_is_no_resource_does_not_count(tmp_path: Path) -> None:
    discovery = json.loads(entry("get", "x"))
    del discovery["objectRef"]
    unfinished = entry("get", "secrets").rstrip("\n")
    lines = [entry("get", "nodes", user=USER + "-2"), json.dumps(discovery) + "\n", unfinished]
    assert used(tmp_path / "log", *lines) == set()


def test_a_refusal_is_told(tmp_path: Path) -> None:
    forbidden = {"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""}
    (tmp_path / "log").write_text(entry("get", "secrets", code=403, annotations=forbidden))
    [request] = requests_of(USER, tmp_path / "log")
    assert (request.allowed, request.namespace) == (False, "shop")
