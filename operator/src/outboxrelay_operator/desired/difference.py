"""Whether an object in the cluster still says what we want of it.

Server-side apply of an unchanged object costs the API server as much as a change, so only what differs is sent.
Compared is what we set; what defaulting, other controllers and people added beside it is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outboxrelay_operator.quantity import parse_quantity

_MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
}
"""Lists that the API server merges by key (x-kubernetes-list-map-keys), so others may add entries."""

_LEFT_OUT_IF_FALSE = {"paused", "hostNetwork", "hostPID", "hostIPC"}
"""Fields that the API server does not return while they are false. Of most others absence means something else."""

_QUANTITIES = {"requests", "limits"}


def difference(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """The path of the first wanted field that `live` lacks or has otherwise; None if there is none."""
    # The items of a list carry neither apiVersion nor kind.
    wanted = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}
    return _in_mapping(wanted, live, "")


def _in_mapping(desired: Mapping[str, Any], live: Mapping[str, Any], path: str) -> str | None:
    for key, wanted in desired.items():
        here = f"{path}.{key}" if path else key
        if key not in live:
            if wanted in ({}, [], None) or (wanted is False and key in _LEFT_OUT_IF_FALSE):
                continue
            return here
        found = live[key]
        if path.rpartition(".")[2] in _QUANTITIES:
            if parse_quantity(wanted) != parse_quantity(found):
                return here
            continue
        deeper = _in_value(wanted, found, here, merge_key=_MERGE_KEYS.get(key))
        if deeper is not None:
            return deeper
    return None


def _in_value(wanted: Any, found: Any, path: str, *, merge_key: str | None) -> str | None:
    if isinstance(wanted, Mapping):
        return _in_mapping(wanted, found, path) if isinstance(found, Mapping) else path
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return _in_list(wanted, found, path, merge_key=merge_key) if isinstance(found, Sequence) else path
    return None if wanted == found else path


def _in_list(wanted: Sequence[Any], found: Sequence[Any], path: str, *, merge_key: str | None) -> str | None:
    # Ports of a container have a key, those of a network policy have none.
    if merge_key is not None and all(merge_key in item for item in wanted):
        by_key = {item.get(merge_key): item for item in found}
        pairs = [(item, by_key.get(item[merge_key]), f"{path}[{item[merge_key]}]") for item in wanted]
    elif len(wanted) == len(found):
        pairs = [(item, found[index], f"{path}[{index}]") for index, item in enumerate(wanted)]
    else:
        return path
    for item, other, here in pairs:
        if other is None:
            return here
        deeper = _in_value(item, other, here, merge_key=None)
        if deeper is not None:
            return deeper
    return None
