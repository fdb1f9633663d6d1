"""Where the relay's time goes: CPU time of each step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.bench.profiled_relay import ORDER
from tests.bench.services import Services
from tests.bench.throughput import Bench, Profile
from tests.testbed.services.table import PayloadType


def measure(*, rows: int, runs: int, payload: PayloadType = "jsonb") -> Profile:
    """The median of each step over the runs."""
    with Services.started(payload=payload, rows=rows) as services:
        found = [Bench(services).profile() for _ in range(runs)]
    return {step: statistics.median(each[step] for each in found) for step in ORDER}


def lines(profile: Profile) -> list[Sequence[str]]:
    """A line for each step, and the sum."""
    return [*((step, f"{spent:.2f}") for step, spent in profile.items()), ("together", f"{sum(profile.values()):.2f}")]


def table(profile: Profile) -> str:
    """The figures as text."""
    return "\n".join(f"{step:<66}{spent:>8}" for step, spent in lines(profile))
