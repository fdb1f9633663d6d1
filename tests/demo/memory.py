"""Memory of pods as the kubelet tells it: the working set, by which it would also evict.

Pure: reads the JSON of the kubelet's /stats/summary, which every kubelet serves without an add-on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIB = 1024 * 1024


def working_sets(summary: Mapping[str, Any], *, namespace: str, prefix: str = "") -> dict[str, float]:
    """Working set in MiB of each pod of a namespace whose name begins with `prefix`."""
    return {
        pod["podRef"]["name"]: sum(used["memory"]["workingSetBytes"] for used in measured) / MIB
        for pod in summary.get("pods", ())
        if pod["podRef"]["namespace"] == namespace
        and pod["podRef"]["name"].startswith(prefix)
        and (measured := [entry for entry in pod.get("containers", ()) if "workingSetBytes" in entry.get("memory", {})])
    }
