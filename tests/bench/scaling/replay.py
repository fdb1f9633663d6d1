"""Replays each trace for each scaler, and says who was better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.scaling.model import World
from tests.bench.scaling.scalers import HpaOnCpu, Keda, Ours, Scaler
from tests.bench.scaling.traces import Trace

KEDA_SECONDS = (2, 5, 10, 15, 30, 60)
"""Targets of KEDA: rows per pod, as seconds of a pod's work. Ours has none, and needs no capacity to be known."""

RIVALS: tuple[Callable[[], Scaler], ...] = (
    HpaOnCpu,
    *(lambda seconds=seconds: Keda(seconds) for seconds in KEDA_SECONDS),
)
SCALERS: tuple[Callable[[], Scaler], ...] = (Ours, *RIVALS)


@dataclass(frozen=True, slots=True)
class Run:
    """One trace under one scaler; the lists have one entry for each second."""

    name: str
    pod_hours: float
    backlogs: list[float]
    lags: list[float]
    counts: list[int]

    @property
    def end_lag(self) -> float:
        """Age of the oldest row that still waits when the trace ends, seconds."""
        return self.lags[-1]

    @property
    def mean_lag(self) -> float:
        """Seconds, over the whole trace."""
        return sum(self.lags) / len(self.lags)

    @property
    def p99_lag(self) -> float:
        """Seconds; worse for 1 % of the trace."""
        return sorted(self.lags)[int(0.99 * len(self.lags))]

    @property
    def changes(self) -> int:
        """How often the count of pods changed."""
        return sum(one != other for one, other in zip(self.counts, self.counts[1:], strict=False))


def replay(trace: Trace, scaler: Scaler) -> Run:
    """One trace, second by second."""
    world = World(trace)
    for _ in range(trace.seconds):
        scaler.look(world)
        world.step()
    return Run(
        name=scaler.name,
        pod_hours=world.pod_seconds / 3600,
        backlogs=world.backlogs,
        lags=world.lags,
        counts=world.counts,
    )
