"""What the resource's status says at one moment, and whether an outage of the broker was told truly.

Pure: the driver samples `kubectl get outboxrelays -o json`, this module reads and judges.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.demo.verdict import Check

MINIMUM_SHARE_OF_BACKLOG = 0.5
"""Of the rows written during the outage, the status must have shown at least this share at its peak."""

MINIMUM_SHARE_OF_LAG = 0.6
"""Of the outage's length, the lag shown at its peak must be at least this share."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The resource's totals; what the status does not tell is None."""

    at: float
    """Monotonic time, seconds."""
    ready: str | None
    reason: str | None
    backlog: int | None
    lag_seconds: float | None
    replicas: int | None
    ready_replicas: int | None

    @property
    def settled(self) -> bool:
        """Ready, with little enough waiting that nothing is behind."""
        return (
            self.ready == "True"
            and self.backlog is not None
            and self.backlog < 1_000
            and (self.lag_seconds or 0.0) < 5.0
        )


def sample(resource: Mapping[str, Any], *, at: float) -> Sample:
    """Read the totals of one OutboxRelay object."""
    status = resource.get("status", {})
    ready: Mapping[str, Any] = next((entry for entry in status.get("conditions", ()) if entry["type"] == "Ready"), {})
    return Sample(
        at=at,
        ready=ready.get("status"),
        reason=ready.get("reason"),
        backlog=status.get("backlog"),
        lag_seconds=status.get("lagSeconds"),
        replicas=status.get("replicas"),
        ready_replicas=status.get("readyReplicas"),
    )


def judge_outage(
    during: Sequence[Sample], after: Sequence[Sample], *, seconds: float, rows_written: int
) -> tuple[Check, ...]:
    """Whether backlog and lag rose in the status while the broker was away, why, and whether they drained.

    Args:
        during: samples while the broker was stopped.
        after: samples from the start of its return on; the outage lasts until the resource is Ready again.
        seconds: how long it was stopped.
        rows_written: rows that the shop committed meanwhile.
    """
    away = [*during, *itertools.takewhile(lambda taken: taken.ready != "True", after)]
    backlog = max((taken.backlog for taken in away if taken.backlog is not None), default=0)
    lag = max((taken.lag_seconds for taken in away if taken.lag_seconds is not None), default=0.0)
    reasons = sorted({taken.reason for taken in during if taken.ready != "True" and taken.reason})
    drained = next((taken for taken in after if taken.settled), None)
    return (
        Check(
            "outage: backlog in status",
            f"rose to {backlog:,} until rows flowed ({rows_written:,} written in the first {seconds:.0f} s)",
            ok=backlog >= MINIMUM_SHARE_OF_BACKLOG * rows_written > 0,
        ),
        Check("outage: lag in status", f"rose to {lag:.0f} s", ok=lag >= MINIMUM_SHARE_OF_LAG * seconds),
        Check(
            "outage: reason in status",
            f"not Ready: {', '.join(reasons)}" if reasons else "stayed Ready",
            ok=bool(reasons),
        ),
        Check(
            "outage: drained",
            f"{drained.at - after[0].at:.0f} s after the broker's return" if drained and after else "not drained",
            ok=drained is not None,
        ),
    )
