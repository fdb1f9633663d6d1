"""What a Deployment's status means. Pure; an absent number in it means 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """The live state of one pair's Deployment."""

    wanted: int
    replicas: int
    ready: int
    rolled_out: bool
    """All pods are of the newest template, and the controller has seen it."""

    replacing: bool
    """Pods of an older template are still there, or the controller has not seen the newest."""

    stuck: bool
    """The rollout made no progress for progressDeadlineSeconds."""

    create_problem: str | None
    """Why the controller cannot create a pod; None if it can."""

    @classmethod
    def of(cls, deployment: dict[str, Any]) -> Self:
        """Read a Deployment as the API server returns it."""
        status = deployment.get("status") or {}
        wanted = deployment.get("spec", {}).get("replicas", 1)
        conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
        seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 1)
        replicas, updated = status.get("replicas", 0), status.get("updatedReplicas", 0)
        progressing = conditions.get("Progressing", {})
        failure = conditions.get("ReplicaFailure", {})
        return cls(
            wanted=wanted,
            replicas=replicas,
            ready=status.get("readyReplicas", 0),
            rolled_out=seen and updated == replicas == wanted,
            replacing=not seen or updated < replicas,
            stuck=progressing.get("status") == "False" and progressing.get("reason") == "ProgressDeadlineExceeded",
            create_problem=failure.get("message") if failure.get("status") == "True" else None,
        )
