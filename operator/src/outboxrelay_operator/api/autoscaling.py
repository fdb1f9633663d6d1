"""`spec.autoscaling`: how the operator may choose the number of relays of each pair by itself."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from outboxrelay_operator.api.model import Model, Rule


class Autoscaling(Model):
    min_replicas: int = Field(
        default=1,
        ge=0,
        le=256,
        description="Fewest pods per pair. 0: a pair without rows has no pod, and the next row starts one.",
    )
    max_replicas: int = Field(
        ge=1,
        le=256,
        description=(
            "Most pods per pair, at most lanes. More than the topic has partitions, and more that share the lanes no "
            "better than fewer would, are not started unless minReplicas asks for them."
        ),
    )
    catch_up_seconds: int = Field(
        default=60,
        ge=1,
        le=86_400,
        description="In how many seconds a backlog is to be worked off, besides the rows that keep coming.",
    )
    scale_down_after_seconds: int = Field(
        default=120,
        ge=5,
        le=86_400,
        description="For how many seconds fewer pods must have been enough before pods are removed.",
    )
    idle_after_seconds: int = Field(
        default=600,
        ge=5,
        le=86_400,
        description="For how many seconds no row may have waited or been sent before the last pod is removed.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="minReplicas must not be above maxReplicas",
            cel="self.minReplicas <= self.maxReplicas",
            holds=lambda it: it.min_replicas <= it.max_replicas,
            field_path=".minReplicas",
        ),
    )
