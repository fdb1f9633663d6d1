"""What a scaling decision is made of: the load, the limits, and what the next decision has to remember. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

from outboxrelay_operator.api.autoscaling import Autoscaling

BUSY_SECONDS: Final = 2.0
"""While more waits than is sent in this time, relays do what they can."""

WARM_SECONDS: Final = 10.0
"""How long a relay must have run before its rate says anything."""

UNKNOWN_SECONDS: Final = 30.0
"""How long a gap in the measurements may be before the windows start anew."""

BLIND_LOOK_SECONDS: Final = 5.0

LASTING_SECONDS: Final = 60.0
"""Calm that is younger, and younger than a quarter of its window, is not worth a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is known of the load of one pair now; None is unknown, and what is too old is unknown."""

    rows: int | None
    """Rows that wait."""

    arrival: float | None
    """Rows written a second, lately."""

    sent: float | None
    """Rows sent a second, by all relays."""

    pod_rates: tuple[float, ...] = ()
    """Rows a second of each relay that reaches both ends and has run for `WARM_SECONDS`."""

    blocked: bool = False
    """Relays run, and each says that it cannot reach the database or the brokers."""

    parked: int | None = 0
    """Rows that relays put aside; None also if one that is ready does not say."""

    partitions: int | None = None
    """Of the topic."""

    failures: int = 0
    """Measurements that failed in a row."""

    @property
    def idle(self) -> bool:
        """Certainly nothing to do: no row waits, and none was sent in the time over which relays count."""
        return self.rows == 0 and self.sent == 0.0

    @property
    def busy(self) -> bool:
        """Whether relays do what they can."""
        return bool(self.rows and self.sent and self.rows >= BUSY_SECONDS * self.sent)

    @property
    def keeping_up(self) -> bool:
        """Whether rows are sent as they are written."""
        return not self.rows or bool(self.sent and not self.busy)


@dataclass(frozen=True, slots=True)
class Calm:
    """Since when so few relays would have done. Of several, more relays go with an earlier time."""

    replicas: int
    since: float


@dataclass(frozen=True, slots=True)
class Resting:
    """The fewest and the most rows that waited since parked rows may be holding back others."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A decision about one pair, and what the next one has to remember. Times are Unix times."""

    replicas: int
    reason: str
    """One of `REASONS`."""

    message: str
    """Why, with the numbers of the moment when count or reason last changed: else it would never be at rest."""

    changed_at: float
    rate_per_pod: float | None = None
    """Rows a second that a relay has shown it can send; None if none was ever seen with more to do."""

    calm: tuple[Calm, ...] = ()
    at: float = 0.0
    """When this was decided. From here on nothing survives a restart."""

    hold_until: float = 0.0
    """Until then it does not go down."""

    partitions: int | None = None
    """Of the topic, when a relay last told."""

    busy_since: float | None = None
    resting: Resting | None = None
    unknown_since: float | None = None


INITIAL: Final = "Initial"
LOAD: Final = "Load"
CALM: Final = "WaitingForCalm"
IDLE: Final = "Idle"
MINIMUM: Final = "Minimum"
MAXIMUM: Final = "Maximum"
PARTITIONS: Final = "Partitions"
UNKNOWN: Final = "Unknown"
UNPROVEN: Final = "Unproven"
BLIND: Final = "Blind"
BLOCKED: Final = "Blocked"
ROWS_HELD_BACK: Final = "RowsHeldBack"
KEPT_TO_MEASURE: Final = "KeptToMeasure"
CONNECTION_BUDGET: Final = "ConnectionBudget"

REASONS: Final = (
    INITIAL,
    LOAD,
    CALM,
    IDLE,
    MINIMUM,
    MAXIMUM,
    PARTITIONS,
    UNKNOWN,
    UNPROVEN,
    BLIND,
    BLOCKED,
    ROWS_HELD_BACK,
    KEPT_TO_MEASURE,
    CONNECTION_BUDGET,
)
"""Why a count is what it is: a closed list, since alerts and scripts depend on these words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the spec allows."""

    spec: Autoscaling
    lanes: int
    kept_to_measure: bool = False
    """The spec allows for no relay at all, but then nobody would see the next row."""

    @classmethod
    def of(cls, spec: Autoscaling, *, lanes: int, may_sleep: bool) -> Self:
        """`may_sleep`: the next row is seen also while no relay runs."""
        if may_sleep or spec.min_replicas > 0:
            return cls(spec=spec, lanes=lanes)
        return cls(spec=spec.model_copy(update={"min_replicas": 1}), lanes=lanes, kept_to_measure=True)

    def ceiling(self, partitions: int | None) -> int:
        """The most relays that are of use; never below what the spec wants at least."""
        most = min(self.spec.max_replicas, self.lanes, self.lanes if partitions is None else max(1, partitions))
        return max(self.spec.min_replicas, self.useful(most))

    def enough_for(self, need: float) -> int:
        """The fewest relays that can do the work of so many, of which each had as many lanes as any other.

        The keys are spread over the lanes, so the relay with the most lanes is the first that has too much to do:
        of 5 relays one has 4 of 16 lanes, as each of 4 relays has.
        """
        if need > self.lanes:
            # A pod that hardly ever sends anything makes the need infinite.
            return math.ceil(min(need, sys.maxsize))
        return self.useful(math.ceil(self.lanes / max(1, math.floor(self.lanes / max(need, 1.0) + 1e-9))))

    def useful(self, replicas: int) -> int:
        """The fewest relays of which none has more lanes than with so many."""
        return 0 if replicas == 0 else math.ceil(self.lanes / math.ceil(self.lanes / replicas))

    def clamped(self, replicas: int, partitions: int | None) -> int:
        """A count within the limits."""
        return max(self.spec.min_replicas, min(replicas, self.ceiling(partitions)))

    def window(self, replicas: int) -> float:
        """For how many seconds so few relays must have been enough."""
        return self.spec.scale_down_after_seconds if replicas > 0 else self.spec.idle_after_seconds


def ways_down(calm: Calm, limits: Limits) -> Iterator[tuple[int, float]]:
    """Counts that a calm leads to, with the time that it takes."""
    if calm.replicas == 0:
        yield 0, limits.window(0)
    yield max(1, calm.replicas), limits.window(1)


def next_look(scale: Scale, limits: Limits, *, now: float) -> float | None:
    """Seconds until time alone may change the count; None if it cannot."""
    if scale.replicas == 0 and scale.unknown_since is not None:
        return BLIND_LOOK_SECONDS
    waits = [
        max(calm.since + window, scale.hold_until) - now
        for calm in scale.calm
        for count, window in ways_down(calm, limits)
        if count < scale.replicas
    ]
    return min((wait for wait in waits if wait > 0), default=None)


def lasting(scale: Scale, limits: Limits, *, now: float) -> tuple[Calm, ...]:
    """What of the calm is worth a write of the status: one that comes and goes is not."""

    def lasts(calm: Calm) -> bool:
        return now - calm.since >= min(LASTING_SECONDS, limits.window(calm.replicas) / 4)

    return tuple(calm for calm in scale.calm if lasts(calm))


def set_back(scale: Scale, *, now: float) -> Scale:
    """A decision of before the clock was set back: what was to come after a while still does, by the new clock."""
    ahead = scale.at - now
    if ahead <= 0:
        return scale

    def moved(at: float | None) -> float | None:
        return None if at is None else at - ahead

    return replace(
        scale,
        changed_at=scale.changed_at - ahead,
        calm=tuple(replace(calm, since=calm.since - ahead) for calm in scale.calm),
        at=now,
        hold_until=scale.hold_until - ahead,
        busy_since=moved(scale.busy_since),
        unknown_since=moved(scale.unknown_since),
    )


def resumed(scale: Scale, *, now: float) -> Scale:
    """A decision that was read from a status: nobody watched for a while, so going down takes a moment at least."""
    return replace(scale, at=now, hold_until=now + UNKNOWN_SECONDS)
