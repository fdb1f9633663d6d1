"""The base of the resource's models: where a rule is written once, as CEL for the API server and as Python.

The API server refuses what breaks a rule; the same rule guards every reconcile, since an object may have been
stored before the rule existed. Nothing here may know a single field of the resource.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule over several fields.

    `cel` is what the API server evaluates (None where the schema says it already); `holds` is the same
    decision in Python (None for rules about a change, which need the old object). `field_path` makes the
    refusal point at the field.
    """

    message: str
    cel: str | None = None
    holds: Callable[[Any], bool] | None = None
    field_path: str | None = None

    def as_validation(self) -> dict[str, str]:
        """The entry of x-kubernetes-validations."""
        if self.cel is None:
            raise ValueError(f"rule without CEL: {self.message}")
        validation = {"rule": self.cel, "message": self.message}
        if self.field_path is not None:
            validation["fieldPath"] = self.field_path
        return validation


class Model(BaseModel):
    """A part of the resource. Unknown fields are ignored here: the API server refused or pruned them already."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        validations = [rule.as_validation() for rule in cls.rules if rule.cel is not None]
        if validations:
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = validations
        return schema
