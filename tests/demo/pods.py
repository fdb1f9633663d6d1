"""What a pod's object tells about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Pod = Mapping[str, Any]


def ready(pod: Pod) -> bool:
    """Whether a pod is ready and not on its way out."""
    return "deletionTimestamp" not in pod["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod.get("status", {}).get("conditions", ())
    )


def restarts(pod: Pod) -> int:
    """How often its containers were started again."""
    return sum(status["restartCount"] for status in pod.get("status", {}).get("containerStatuses", ()))


def replaced(victim: Pod, pods: Sequence[Pod], *, count: int) -> bool:
    """Whether a pair has its `count` pods ready again, the killed one in a new container or as a new pod."""
    same = [pod for pod in pods if pod["metadata"]["uid"] == victim["metadata"]["uid"]]
    return len(pods) == count and all(map(ready, pods)) and all(restarts(pod) > restarts(victim) for pod in same)
