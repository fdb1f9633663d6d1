"""Which rights a pod's service account used, and which it lacked, as the API server's audit log tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.api import Object
from tests.testbed.charts import Right


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the service account."""

    rights: frozenset[Right]
    """What it took."""

    namespace: str
    allowed: bool
    reason: str
    """The authorizer's: which binding and which role."""


def requests_of(user: str, log: Path) -> Iterator[Request]:
    """The requests for resources of a service account so far; the last line may not be complete yet."""
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            # Most of a long log is about others.
            if user not in line or not line.endswith("\n"):
                continue
            entry = json.loads(line)
            if entry["user"]["username"] == user and "objectRef" in entry:
                yield _request(entry)


def _request(entry: Object) -> Request:
    reference, annotations = entry["objectRef"], entry.get("annotations") or {}
    group, resource = reference.get("apiGroup", ""), reference["resource"]
    if "subresource" in reference:
        resource = f"{resource}/{reference['subresource']}"
    rights = {(group, resource, entry["verb"])}
    if entry["verb"] == "patch" and (entry.get("responseStatus") or {}).get("code") == 201:
        # To apply what does not exist takes the right to create it, too.
        rights.add((group, resource, "create"))
    return Request(
        rights=frozenset(rights),
        namespace=reference.get("namespace", ""),
        allowed=annotations.get("authorization.k8s.io/decision") == "allow",
        reason=annotations.get("authorization.k8s.io/reason", ""),
    )
