"""`spec.slo`: what the owner of a resource wants to hold of every pair."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from outboxrelay_operator.api.model import Model, Rule


class Slo(Model):
    max_lag_seconds: int | None = Field(
        default=None, ge=1, le=31_536_000, description="How old the oldest row that waits may be, in each pair."
    )
    max_backlog: int | None = Field(
        default=None, ge=1, le=1_000_000_000_000, description="How many rows may wait, in each pair."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="slo must give maxLagSeconds or maxBacklog",
            cel="has(self.maxLagSeconds) || has(self.maxBacklog)",
            holds=lambda slo: slo.max_lag_seconds is not None or slo.max_backlog is not None,
        ),
    )
