"""Who decides: our own `decide`, and the published formulas of the HPA and of KEDA, each with its own intervals."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from outboxrelay_operator.api.autoscaling import Autoscaling
from outboxrelay_operator.measure.rates import RateTracker
from outboxrelay_operator.measure.server import GRACE_SECONDS
from outboxrelay_operator.measure.sql import COUNT_LIMIT
from outboxrelay_operator.measurements import Backlog
from outboxrelay_operator.scale import WARM_SECONDS, Limits, Load
from outboxrelay_operator.scaling import decide, first
from tests.bench.scaling.model import LANES, World
from tests.bench.scaling.traces import CAPACITY

MAX_REPLICAS = 8
CATCH_UP_SECONDS = 60
HPA_WINDOW_SECONDS = 300
"""The HPA's default for going down."""

IDLE_SECONDS = 300
"""KEDA's default cooldownPeriod for going to zero, and here ours, too."""


class Scaler(Protocol):
    """Called once a second."""

    name: str

    def look(self, world: World) -> None:
        """Set the count of pods, if it is time to."""


class Ours:
    """The operator: a measurement every 5 seconds."""

    name = "OutboxRelay"

    def __init__(self) -> None:
        spec = Autoscaling(
            min_replicas=0,
            max_replicas=MAX_REPLICAS,
            catch_up_seconds=CATCH_UP_SECONDS,
            idle_after_seconds=IDLE_SECONDS,
        )
        self._limits = Limits(spec=spec, lanes=LANES)
        self._rates = RateTracker()
        self.scale = first(0, self._limits, now=0.0)

    def look(self, world: World) -> None:
        if world.second % 5:
            return
        now, running = float(world.second), world.running
        sent = sum(pod.rate() for pod in running)
        self._rates.add(_measured(world), sent=sent)
        self.scale = decide(
            Load(
                rows=round(world.backlog),
                arrival=self._rates.rates(sent=sent).arrival,
                sent=sent,
                pod_rates=tuple(pod.rate() for pod in running if len(pod.sent) >= WARM_SECONDS),
                blocked=bool(running)
                and all(pod.sent and pod.busy[-1] == 0.0 for pod in running)
                and world.backlog > 0,
            ),
            self._limits,
            self.scale,
            now=now,
        )
        world.scale(self.scale.replicas)


def _measured(world: World) -> Backlog:
    """What a look at the table finds: the operator counts so far and no further, and sees the highest id."""
    return Backlog(
        rows=round(world.backlog),
        exact=world.backlog <= COUNT_LIMIT,
        lag_seconds=None,
        lag_exact=False,
        highest_id=round(world.sent + world.backlog),
        whole_table=True,
        index_missing=False,
        at=float(world.second),
        believe_until=world.second + GRACE_SECONDS,
    )


class _Hpa:
    """The HPA controller: every 15 seconds, tolerance 10 %, its default behaviour up and down.

    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
    """

    def __init__(self) -> None:
        self._recommended: deque[tuple[int, int]] = deque()

    def _apply(self, world: World, ratio: float, *, wanted: int, least: int) -> None:
        present = world.wanted
        count = present if abs(ratio - 1.0) <= 0.1 else wanted
        self._recommended.append((world.second, count))
        while self._recommended[0][0] <= world.second - HPA_WINDOW_SECONDS:
            self._recommended.popleft()
        count = max(count, min(present, max(count for _, count in self._recommended)))
        count = min(count, max(2 * present, present + 4), MAX_REPLICAS)
        world.scale(max(count, least))


class HpaOnCpu(_Hpa):
    """An HPA on CPU utilisation, target 80 %, with metrics of the last half minute; a pod at work uses one unit."""

    name = "HPA, CPU 80 %"

    def look(self, world: World) -> None:
        if world.second == 0:
            world.scale(1)
        running = world.running
        if world.second % 15 or not running:
            return
        used = sum(sum(pod.busy[-30:]) / max(1, len(pod.busy[-30:])) for pod in running) / len(running)
        ratio = used / 0.8
        self._apply(world, ratio, wanted=math.ceil(ratio * len(running)), least=1)


class Keda(_Hpa):
    """KEDA's postgresql scaler on the count of rows, with the defaults of pollingInterval and cooldownPeriod.

    Between one and the most pods KEDA leaves the decision to an HPA on an external metric with an average value.
    https://keda.sh/docs/latest/concepts/scaling-deployments/
    """

    def __init__(self, seconds: int) -> None:
        super().__init__()
        self.name = f"KEDA, {seconds} s"
        self._target = seconds * CAPACITY
        self._active_at = 0

    def look(self, world: World) -> None:
        if world.second % 30 == 0:
            if world.backlog >= 1:
                self._active_at = world.second
                if world.wanted == 0:
                    world.scale(1)
            elif world.wanted and world.second - self._active_at >= IDLE_SECONDS:
                world.scale(0)
        if world.second % 15 or world.wanted == 0:
            return
        wanted = max(1, math.ceil(world.backlog / self._target))
        self._apply(world, world.backlog / (self._target * world.wanted), wanted=wanted, least=1)
