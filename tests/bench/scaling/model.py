"""A model of one pair: a table whose keys lie in lanes, and pods that share the lanes. One step is one second."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from tests.bench.scaling.traces import CAPACITY, Trace

LANES = 16
START_SECONDS = 8
"""From the wish for a pod until it sends rows."""

REPORT_SECONDS = 10
"""Over which a relay reports its rate."""


@dataclass(slots=True)
class Pod:
    """`sent` are the rows of each of its last seconds."""

    number: int
    created: int
    sent: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def rate(self) -> float:
        """Rows a second, as the relay reports it."""
        return sum(self.sent[-REPORT_SECONDS:]) / REPORT_SECONDS


class World:
    """The pair at one second."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.second = 0
        self.pods: list[Pod] = []
        self._waiting = [0.0] * LANES
        self._arrived: list[list[float]] = [[0.0] for _ in range(LANES)]
        self._sent = [0.0] * LANES
        self.pod_seconds = 0
        self.backlogs: list[float] = []
        self.lags: list[float] = []
        self.counts: list[int] = []

    @property
    def wanted(self) -> int:
        """Pods that exist, whether they run already or not."""
        return len(self.pods)

    @property
    def running(self) -> list[Pod]:
        """Pods that own lanes."""
        return [pod for pod in self.pods if self.second - pod.created >= START_SECONDS]

    @property
    def backlog(self) -> float:
        """Rows that wait."""
        return sum(self._waiting)

    @property
    def sent(self) -> float:
        """Rows that were sent."""
        return sum(self._sent)

    def scale(self, count: int) -> None:
        """As a Deployment does: the youngest pods go first, new ones need their time."""
        del self.pods[count:]
        while len(self.pods) < count:
            self.pods.append(Pod(number=len(self.pods), created=self.second))

    def step(self) -> None:
        """One second passes."""
        arrival = self._trace.arrival(self.second) / LANES
        for lane in range(LANES):
            self._waiting[lane] += arrival
            self._arrived[lane].append(self._arrived[lane][-1] + arrival)
        running = self.running
        for position, pod in enumerate(running):
            capacity = CAPACITY * self._trace.speed(pod.number, self.second)
            done = 0.0
            mine = sorted(range(position, LANES, len(running)), key=lambda lane: self._waiting[lane])
            for left, lane in zip(range(len(mine), 0, -1), mine, strict=True):
                part = min(self._waiting[lane], (capacity - done) / left)
                self._waiting[lane] -= part
                self._sent[lane] += part
                done += part
            pod.sent.append(done)
            pod.busy.append(done / CAPACITY if capacity == 0 else done / capacity)
        self.second += 1
        self.pod_seconds += len(self.pods)
        self.backlogs.append(self.backlog)
        self.lags.append(self.lag())
        self.counts.append(len(self.pods))

    def lag(self) -> float:
        """Age of the oldest row that waits, seconds."""
        ages = (
            self.second - bisect_right(self._arrived[lane], self._sent[lane] + 1e-6) + 1
            for lane in range(LANES)
            if self._waiting[lane] >= 0.5
        )
        return float(max(ages, default=0))
