"""The CustomResourceDefinition, generated from the models: `python -m outboxrelay_operator.api.crd` prints it."""

from __future__ import annotations

import sys
from typing import Any

import yaml

from outboxrelay_operator.api import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from outboxrelay_operator.api.schema import structural
from outboxrelay_operator.api.spec import OutboxRelaySpec
from outboxrelay_operator.api.status import OutboxRelayStatus

_DESCRIPTION = (
    "OutboxRelay carries the rows of transactional outbox tables in PostgreSQL to Kafka topics, at least once and in "
    "order per key, with one relay Deployment for each database/topic pair."
)


def _column(name: str, type_: str, path: str, *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": type_, "jsonPath": path} | ({"priority": 1} if wide else {})


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


PRINTER_COLUMNS = (
    _column("Ready", "string", _ready("status")),
    _column("Pairs", "string", ".status.pairsReady"),
    _column("Replicas", "string", ".status.display.replicas"),
    _column("Backlog", "string", ".status.display.backlog"),
    _column("Lag", "string", ".status.display.lag"),
    _column("Rate", "string", ".status.display.rate"),
    _column("Catch-up", "string", ".status.display.catchUp", wide=True),
    _column("Parked", "integer", ".status.parked", wide=True),
    _column("Reason", "string", _ready("reason"), wide=True),
    _column("Age", "date", ".metadata.creationTimestamp"),
)


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition as a plain dict."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/name": "outboxrelay"}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["outbox"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(PRINTER_COLUMNS),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicasPerPair",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": _object_schema()},
                }
            ],
        },
    }


def _object_schema() -> dict[str, Any]:
    spec = structural(OutboxRelaySpec) | {"description": "What to carry from where to where."}
    status = _lenient(structural(OutboxRelayStatus)) | {"description": "What the operator sees; written by it alone."}
    return {
        "type": "object",
        "description": _DESCRIPTION,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": "Kind of this resource."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _lenient(schema: dict[str, Any], *, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """The schema without required fields, but for the keys of its lists.

    A stored status is validated along with every change of the spec: a field that becomes required later would
    make all older objects unchangeable, and an older operator's status invalid.
    """
    schema = dict(schema)
    schema.pop("required", None)
    if keys:
        schema["required"] = list(keys)
    if "properties" in schema:
        schema["properties"] = {name: _lenient(child) for name, child in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _lenient(schema["items"], keys=tuple(schema.get("x-kubernetes-list-map-keys", ())))
    return schema


class _Dumper(yaml.SafeDumper):
    """Repeats what is equal instead of using YAML anchors, which some tools cannot read."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def text() -> str:
    """The YAML text of the definition, byte-stable."""
    header = "# Generated from operator/src/outboxrelay_operator/api by `make crd`; do not edit.\n"
    return header + yaml.dump(definition(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(text())
