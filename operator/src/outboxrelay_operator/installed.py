"""What the installed CustomResourceDefinition lacks of what this operator knows. Pure.

Helm does not upgrade CRDs, so a new operator may meet an older one (HP-02). The API server refuses a server-side apply
with a single undeclared field as a whole: a status is cut to what it declares, so that the rest is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outboxrelay_operator.api import GROUP, KIND, VERSION
from outboxrelay_operator.api.crd import definition

Schema = Mapping[str, Any]


class InstalledSchema:
    """The schema as the API server publishes it; nothing is cut before it is known."""

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self.missing: tuple[str, ...] = ()
        """Paths of fields that this operator knows and the installed schema does not; the outermost ones."""

    def learn(self, document: Mapping[str, Any] | None) -> None:
        """Take the OpenAPI v3 document of the group and version; None, or without the kind: it is not known."""
        self._schema = None if document is None else _published(document)
        self.missing = () if self._schema is None else tuple(_lacking(_known(), self._schema))

    def fitting(self, status: dict[str, Any]) -> dict[str, Any]:
        """The part of a status that can be stored."""
        declared = None if self._schema is None else (self._schema.get("properties") or {}).get("status")
        if not self.missing or declared is None:
            return status
        cut: dict[str, Any] = _cut(status, declared)
        return cut


def _known() -> Schema:
    schema: Schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _published(document: Mapping[str, Any]) -> Schema | None:
    kind = {"group": GROUP, "version": VERSION, "kind": KIND}
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        if kind in (schema.get("x-kubernetes-group-version-kind") or ()):
            found: Schema = schema
            return found
    return None


def _lacking(wanted: Schema, found: Schema, path: str = "") -> Iterator[str]:
    if _open(found):
        return
    declared = found.get("properties") or {}
    for name, child in (wanted.get("properties") or {}).items():
        # What every object has is published as a reference to its own schema.
        if path == "" and name not in ("spec", "status"):
            continue
        here = f"{path}.{name}" if path else name
        if name not in declared:
            yield here
        else:
            yield from _lacking(child, declared[name], here)
    for inner, mark in (("items", "[]"), ("additionalProperties", "[]")):
        if isinstance(wanted.get(inner), Mapping) and isinstance(found.get(inner), Mapping):
            yield from _lacking(wanted[inner], found[inner], path + mark)


def _cut(value: Any, declared: Schema) -> Any:
    if _open(declared):
        return value
    if isinstance(value, dict) and "properties" in declared:
        fields = declared["properties"]
        return {name: _cut(part, fields[name]) for name, part in value.items() if name in fields}
    if isinstance(value, list) and isinstance(declared.get("items"), Mapping):
        return [_cut(part, declared["items"]) for part in value]
    return value


def _open(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))
