"""`spec.onError`: what becomes of a row that cannot be sent as it is."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from outboxrelay_operator.api.fields import TopicName
from outboxrelay_operator.api.model import Model, Rule

DEFAULT_ATTEMPTS = 3


class OnError(Model):
    policy: Literal["Park", "DeadLetter", "Halt"] = Field(
        default="Park",
        description=(
            "What happens to a row that cannot be sent as it is: too large, malformed headers, refused by the "
            "broker. Park: it stays in the table, holds back later rows of its key only, and is tried again for ever. "
            "DeadLetter: after some attempts it goes to a topic with its fault in headers, and leaves the table. Halt: "
            "after some attempts the row's whole lane stands still, with all its keys, until the row goes through or "
            "is deleted. An outage is never a row's fault."
        ),
    )
    topic: TopicName | None = Field(
        default=None,
        description="The dead-letter topic, for policy DeadLetter. It must exist, and should take larger messages.",
    )
    attempts: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description=(
            "After how many failed attempts policy DeadLetter gives a row up, or Halt stops its lane; until then it is "
            f"parked. The relay that has the row's lane counts. Omitted: {DEFAULT_ATTEMPTS}, and 1 for Halt."
        ),
    )
    retry_after_seconds: int = Field(
        default=5,
        ge=1,
        le=3600,
        description="Time from a row's first failed attempt to the next; it doubles with each further one.",
    )
    max_retry_after_seconds: int = Field(
        default=300, ge=1, le=86_400, description="The longest time between two attempts to send a row."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="policy DeadLetter needs topic, and no other policy uses it",
            cel="(self.policy == 'DeadLetter') == has(self.topic)",
            holds=lambda on_error: (on_error.policy == "DeadLetter") == (on_error.topic is not None),
            field_path=".topic",
        ),
        Rule(
            message="onError.topic must not be . or ..",
            cel="!has(self.topic) || (self.topic != '.' && self.topic != '..')",
            holds=lambda on_error: on_error.topic not in (".", ".."),
            field_path=".topic",
        ),
        Rule(
            message="policy Park never gives a row up: attempts is only used by policies DeadLetter and Halt",
            cel="!has(self.attempts) || self.policy != 'Park'",
            holds=lambda on_error: on_error.attempts is None or on_error.policy != "Park",
            field_path=".attempts",
        ),
        Rule(
            message="retryAfterSeconds must not be above maxRetryAfterSeconds",
            cel="self.retryAfterSeconds <= self.maxRetryAfterSeconds",
            holds=lambda on_error: on_error.retry_after_seconds <= on_error.max_retry_after_seconds,
            field_path=".retryAfterSeconds",
        ),
    )

    @property
    def effective_attempts(self) -> int:
        """After how many failed attempts the policy acts."""
        return self.attempts or (DEFAULT_ATTEMPTS if self.policy == "DeadLetter" else 1)
