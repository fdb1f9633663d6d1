"""kill -9 for one container: the crash that a relay must survive, without the courtesy of a SIGTERM.

From inside its own PID namespace a container's first process cannot be killed, so it is looked for on this
machine. Where the node is another machine the pod is deleted without grace instead, which ends in the same
signal.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def container_id(pod: Mapping[str, Any]) -> str | None:
    """Id of the pod's first container as its runtime knows it, or None while it does not run.

    The kubelet writes `containerd://<64 hexadecimal digits>`.
    """
    statuses = pod.get("status", {}).get("containerStatuses", ())
    for status in statuses:
        found = re.fullmatch(r"[a-z0-9-]+://([0-9a-f]{64})", status.get("containerID", ""))
        if found is not None and "running" in status.get("state", {}):
            return found[1]
    return None


def processes_of(container: str, *, proc: Path = PROC) -> list[int]:
    """Processes on this machine that are in the container's cgroup."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            cgroups = (entry / "cgroup").read_text()
        except OSError:
            continue  # ended meanwhile
        if container in cgroups:
            found.append(int(entry.name))
    return sorted(found)


def kill_container(container: str, *, proc: Path = PROC) -> list[int]:
    """Send SIGKILL to every process of the container; returns those that were found."""
    found = processes_of(container, proc=proc)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return found
