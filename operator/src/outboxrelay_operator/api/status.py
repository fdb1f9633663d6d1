"""`status`: what the operator reports.

A value that could not be measured is absent, and a condition says why; it is never 0 and never stale without
saying so. Sizes are bounded: 256 pairs with every field filled stay below 900 kB.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from outboxrelay_operator.api.model import Model
from outboxrelay_operator.api.spec import MAX_PAIRS

MAX_MESSAGE = 2048
MAX_PAIR_MESSAGE = 400
MAX_ERROR_MESSAGE = 300
MAX_SCALING_MESSAGE = 160
MAX_CALM = 4

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339, UTC, whole seconds."""


class Condition(Model):
    """As metav1.Condition of Kubernetes."""

    type: str = Field(max_length=64, description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: int | None = Field(default=None, ge=0, description="The spec that this was decided for.")
    last_transition_time: Timestamp = Field(description="When status last changed.")
    reason: str = Field(max_length=64, description="Why, as one stable CamelCase word.")
    message: str = Field(max_length=MAX_MESSAGE, description="For people: what is wrong, on what, and what to do.")


class PairError(Model):
    reason: str = Field(max_length=64, description="Why, as one stable CamelCase word.")
    message: str = Field(max_length=MAX_ERROR_MESSAGE, description="For people. Holds neither payload nor secret.")
    row_id: str | None = Field(default=None, max_length=64, description="Id of the row, if it was one row's fault.")
    key: str | None = Field(default=None, max_length=256, description="Key of that row, shortened.")
    at: Timestamp | None = Field(default=None, description="When it happened, by the relay's clock.")


class BlockedBy(Model):
    what: str = Field(max_length=32, description="session, prepared transaction, replication slot or lock.")
    pid: int | None = Field(default=None, ge=0, description="Server process, if there is one.")
    name: str | None = Field(default=None, max_length=64, description="Of a prepared transaction or slot.")
    database: str | None = Field(default=None, max_length=63, description="The database that it works in.")
    application: str | None = Field(default=None, max_length=63, description="application_name of the session.")
    age_seconds: int | None = Field(
        default=None, ge=0, description="How long its transaction has been open: at least this, in one digit."
    )


class ScalingCalm(Model):
    replicas: int = Field(ge=0, description="So few pods would have done.")
    since: Timestamp = Field(description="Since when.")


class Scaling(Model):
    reason: str = Field(max_length=64, description="Why desiredReplicas is what it is, as one stable CamelCase word.")
    message: str = Field(
        max_length=MAX_SCALING_MESSAGE,
        description="The same for people, with the numbers of when desiredReplicas or reason last changed.",
    )
    changed_at: Timestamp = Field(description="When desiredReplicas last changed.")
    rate_per_pod: float | None = Field(
        default=None,
        ge=0,
        description="Rows a second that a pod has shown it can send. Absent until one was seen with more to do.",
    )
    calm: tuple[ScalingCalm, ...] | None = Field(
        default=None,
        max_length=MAX_CALM,
        description="Since when fewer pods would have done: what a restarted operator goes on from.",
    )


class PairStatus(Model):
    name: str = Field(max_length=63, description="Name of the pair and of its Deployment.")
    database: str = Field(max_length=63, description="Name of the entry in spec.databases.")
    topic: str = Field(max_length=63, description="Name of the entry in spec.topics.")
    ready: bool = Field(description="Whether rows can flow now.")
    reason: str = Field(max_length=64, description="Why the pair is, or is not, ready.")
    message: str | None = Field(
        default=None, max_length=MAX_PAIR_MESSAGE, description="For people: what is wrong, on what, and what to do."
    )
    desired_replicas: int = Field(ge=0, description="Pods this pair should have.")
    scaling: Scaling | None = Field(default=None, description="Why, while spec.autoscaling decides it.")
    replicas: int = Field(ge=0, description="Pods this pair has.")
    ready_replicas: int = Field(ge=0, description="Pods of this pair that reach database and broker.")
    backlog: int | None = Field(default=None, ge=0, description="Rows that wait to be sent.")
    backlog_exact: bool | None = Field(
        default=None, description="False: backlog is above 10,000 and the planner's estimate."
    )
    lag_seconds: int | None = Field(
        default=None, ge=0, description="Age of the oldest row that waits, by the database's clock. 0: none waits."
    )
    lag_exact: bool | None = Field(
        default=None,
        description="False: there is no createdAt column, and the age is derived from when the operator saw which ids.",
    )
    arrival_per_second: float | None = Field(default=None, ge=0, description="Rows written a second, lately.")
    rate_per_second: float | None = Field(default=None, ge=0, description="Rows sent a second, by all pods, lately.")
    catch_up_seconds: int | None = Field(
        default=None,
        ge=0,
        description="Time until the backlog is gone at these rates. Absent while it does not shrink or no row flows.",
    )
    parked: int | None = Field(
        default=None,
        ge=0,
        description="Rows that the broker refuses as they are; each holds back only its own key.",
    )
    halted_lanes: int | None = Field(
        default=None, ge=0, description="Key lanes that stand still for the sake of a row at fault, with policy Halt."
    )
    dead_lettered: int | None = Field(
        default=None,
        ge=0,
        description=(
            "Rows that went to the dead-letter topic, as the relays that run now count since they started. Absent "
            "while none runs."
        ),
    )
    last_error: PairError | None = Field(
        default=None,
        description=(
            "The newest failure that the relays that run now tell of, also after it healed. While none runs, the one "
            "that was told last."
        ),
    )
    blocked_by: BlockedBy | None = Field(
        default=None,
        description=(
            "What keeps PostgreSQL from clearing away rows that were sent, so that the table grows, as the relays see "
            "it. Absent: nothing for half a minute, or the relays' user may not see it."
        ),
    )
    slo_missed: tuple[Annotated[str, Field(max_length=16)], ...] | None = Field(
        default=None,
        max_length=2,
        description=(
            "The limits of spec.slo that the pair is above, as reasons of the condition SloMet; each until the pair is "
            "well below it again."
        ),
    )
    measured_at: Timestamp | None = Field(
        default=None,
        description="When these numbers were measured. While Measured is True they hold, also if that is long ago: "
        "what stays equal is not written again.",
    )


class Display(Model):
    replicas: str = Field(max_length=16, description="Pods that reach database and broker, of those wanted: 6/6.")
    backlog: str = Field(max_length=24, description="~ an estimate, >= some pairs are unknown, ? unknown.")
    lag: str = Field(max_length=24, description="~ not exact, >= some pairs are unknown, ? unknown.")
    rate: str = Field(max_length=24, description=">= some pairs are unknown, ? unknown.")
    catch_up: str = Field(max_length=24, description="Longest time to catch up, - if a backlog does not shrink.")


class OutboxRelayStatus(Model):
    observed_generation: int = Field(ge=0, description="The spec that this status is about.")
    conditions: tuple[Condition, ...] = Field(
        max_length=16,
        description="Ready says whether rows can flow in every pair.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    pairs_ready: str = Field(max_length=16, description="Pairs in which rows can flow, of all pairs: 3/3.")
    pairs_total: int = Field(ge=0, description="How many pairs the spec makes.")
    replicas: int = Field(ge=0, description="Pods of all pairs.")
    ready_replicas: int = Field(ge=0, description="Pods of all pairs that reach database and broker.")
    replicas_per_pair: int = Field(
        ge=0, description="Pods that each pair has at most: the scale subresource's replicas."
    )
    selector: str = Field(max_length=512, description="Label selector of all relay pods of this OutboxRelay.")
    backlog: int | None = Field(
        default=None, ge=0, description="Rows that wait, in all pairs. Absent while a pair's is unknown."
    )
    backlog_exact: bool | None = Field(default=None, description="False: an estimate is part of it.")
    lag_seconds: int | None = Field(
        default=None, ge=0, description="Age of the oldest row that waits. Absent while a pair's is unknown."
    )
    lag_exact: bool | None = Field(default=None, description="False: it was derived and not read from createdAt.")
    rate_per_second: float | None = Field(
        default=None, ge=0, description="Rows sent a second. Absent while a pair's is unknown."
    )
    parked: int | None = Field(default=None, ge=0, description="Parked rows. Absent while a pair's are unknown.")
    unrouted: int | None = Field(
        default=None,
        ge=0,
        description=(
            "Rows that no topic takes, counted up to 10,001 in each table. Absent while unknown, and if topics without "
            "match take all rows."
        ),
    )
    dead_lettered: int | None = Field(
        default=None,
        ge=0,
        description="Rows sent to the dead-letter topic since the relays started. Absent while a pair's are unknown.",
    )
    display: Display = Field(description="The numbers as kubectl get shows them.")
    pairs: tuple[PairStatus, ...] = Field(
        max_length=MAX_PAIRS,
        description="One entry for each database/topic pair.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
