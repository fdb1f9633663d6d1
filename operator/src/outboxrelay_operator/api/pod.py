"""`spec.pod`: the few things of a relay pod that may be overridden.

This is an allow-list. A way to mount volumes, to choose a service account or to weaken the security context
would let whoever may create an OutboxRelay read what they must not.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from outboxrelay_operator.api.fields import ObjectName, Quantity, matching
from outboxrelay_operator.api.model import Model, Rule
from outboxrelay_operator.quantity import parse_quantity

_FIELDS = (("cpu", "cpu"), ("memory", "memory"), ("ephemeral_storage", "ephemeral__dash__storage"))


class ResourceAmounts(Model):
    cpu: Quantity | None = Field(default=None, description='CPU, for example 100m; a fraction needs quotes: "0.5".')
    memory: Quantity | None = Field(default=None, description="Memory, for example 256Mi.")
    ephemeral_storage: Quantity | None = Field(
        default=None, alias="ephemeral-storage", description="Local scratch space, for example 64Mi."
    )


def _requests_within_limits(resources: Resources) -> bool:
    if resources.requests is None or resources.limits is None:
        return True
    for field, _ in _FIELDS:
        request, limit = getattr(resources.requests, field), getattr(resources.limits, field)
        if request is not None and limit is not None and parse_quantity(request) > parse_quantity(limit):
            return False
    return True


class Resources(Model):
    requests: ResourceAmounts | None = Field(default=None, description="What the scheduler reserves.")
    limits: ResourceAmounts | None = Field(
        default=None, description="What the pod may use at most. A relay needs 96Mi, and 256Mi with rows near 1 MB."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="a request must not be above its limit",
            cel="!has(self.requests) || !has(self.limits) || ("
            + " && ".join(
                f"(!has(self.requests.{name}) || !has(self.limits.{name}) || "
                f"quantity(string(self.requests.{name})).compareTo(quantity(string(self.limits.{name}))) <= 0)"
                for _, name in _FIELDS
            )
            + ")",
            holds=_requests_within_limits,
            field_path=".requests",
        ),
    )


class PullSecret(Model):
    name: ObjectName = Field(description="Name of a Secret in the namespace of this OutboxRelay.")


class Pod(Model):
    image: (
        Annotated[
            str,
            matching(
                r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$",
                "an image, such as registry.example/outboxrelay/relay:0.1.0",
                min_length=1,
                max_length=512,
            ),
        ]
        | None
    ) = Field(default=None, description="Image of the relay. Omitted: the one the operator was installed with.")
    image_pull_secrets: tuple[PullSecret, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="Secrets with which the kubelet pulls the image; relays use those of no ServiceAccount.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    resources: Resources | None = Field(
        default=None,
        description=(
            "Replaces the default resources of the relay container as a whole (requests: cpu 50m, memory 96Mi; "
            "limits: memory 256Mi)."
        ),
    )
