"""Synthetic load traces: rows a second at each second, and what happens to the pods meanwhile. Deterministic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

CAPACITY = 5000.0
"""Rows a second that a pod of the model sends."""


def _always(_pod: int, _second: int) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class Trace:
    """`arrival` is rows a second at a second; `speed` is which part of its capacity a pod has at a second."""

    name: str
    text: str
    seconds: int
    arrival: Callable[[int], float]
    speed: Callable[[int, int], float] = field(default=_always)


def _step(second: int) -> float:
    return 12_500.0 if 600 <= second < 3000 else 1000.0


def _ramp(second: int) -> float:
    peak = 16_000.0
    return peak * max(0.0, 1.0 - abs(second - 2700) / 2400)


def _day(second: int) -> float:
    """Two hours that look like a day: a night with nothing, a morning and an evening peak."""
    hour = 24 * second / 7200
    if hour < 5:
        return 0.0
    morning, evening = math.exp(-(((hour - 10) / 2.5) ** 2)), math.exp(-(((hour - 19) / 2) ** 2))
    return 300.0 + 9000 * morning + 13_000 * evening if hour < 23 else 0.0


def _burst(second: int) -> float:
    """Batch jobs over a trickle: 400,000 rows in 20 seconds, every 20 minutes."""
    return 20_000.0 if second % 1200 in range(300, 320) else 20.0


def _steady(rate: float) -> Callable[[int], float]:
    return lambda second: rate if second < 3600 else 0.0


def _outage(_pod: int, second: int) -> float:
    return 0.0 if 900 <= second < 1500 else 1.0


def _slow(pod: int, second: int) -> float:
    return 0.4 if pod == 0 and second >= 900 else 1.0


TRACES = (
    Trace("step", "1,000 rows/s, then 12,500 rows/s for 40 minutes, then 1,000 rows/s", 4200, _step),
    Trace("ramp", "up to 16,000 rows/s over 40 minutes and down again, then nothing", 6000, _ramp),
    Trace("day", "a day in two hours: a quiet night, two peaks", 7800, _day),
    Trace("burst", "400,000 rows in 20 s, every 20 minutes, over a trickle", 4800, _burst),
    Trace("outage", "7,000 rows/s; Kafka is away for 10 minutes", 5400, _steady(7000.0), _outage),
    Trace("slow pod", "7,000 rows/s; one pod falls to 40 % of what it could", 5400, _steady(7000.0), _slow),
)
