"""JSON schema of pydantic -> structural schema of Kubernetes.

A structural schema knows no references, titles, `const`, numeric exclusive bounds or `anyOf` with null; see
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_FIRST = ("type", "description", "enum", "default")
_LAST = ("required", "properties", "items", "x-kubernetes-validations")

_DROPPED = {"title", "$defs", "additionalProperties"}


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, by alias.

    Raises:
        ValueError: the model uses something that a structural schema cannot say.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    converted = _convert(schema, schema.get("$defs", {}), path=model.__name__)
    converted.pop("description", None)
    return converted


def _convert(node: Schema, definitions: dict[str, Schema], *, path: str) -> Schema:
    node = _without_null(_inlined(node, definitions), definitions, path=path)
    if node.get("additionalProperties") not in (None, False):
        raise ValueError(f"{path}: maps are not supported")
    result: Schema = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value is None):
            continue
        if key == "properties":
            result[key] = {name: _convert(child, definitions, path=f"{path}.{name}") for name, child in value.items()}
        elif key == "items":
            result[key] = _convert(value, definitions, path=f"{path}[]")
        elif key == "const":
            result["enum"] = [value]
        elif key in ("anyOf", "oneOf", "allOf", "not", "exclusiveMinimum", "exclusiveMaximum", "prefixItems"):
            raise ValueError(f"{path}: {key} cannot be said in a structural schema")
        else:
            result[key] = value
    if result.get("x-kubernetes-int-or-string"):
        del result["type"]
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    elif "type" not in result:
        raise ValueError(f"{path}: no type")
    return {key: result[key] for key in sorted(result, key=_position)}


def _position(key: str) -> tuple[int, int, str]:
    """Keeps the text stable and puts what a reader looks for first."""
    if key in _FIRST:
        return (0, _FIRST.index(key), key)
    if key in _LAST:
        return (2, _LAST.index(key), key)
    return (1, 0, key)


def _inlined(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """The node with its reference resolved; what is said beside the reference wins."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].removeprefix("#/$defs/")]
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}}


def _without_null(node: Schema, definitions: dict[str, Schema], *, path: str) -> Schema:
    """Optional[T] as T: in a Kubernetes object a value that is not given is absent."""
    if "anyOf" not in node:
        return node
    options = [option for option in node["anyOf"] if option.get("type") != "null"]
    if len(options) != 1:
        raise ValueError(f"{path}: a union cannot be said in a structural schema")
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**_inlined(options[0], definitions), **rest}
