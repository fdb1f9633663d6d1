"""Whole load traces against a model of pods: ours beside the formulas of the HPA and of KEDA (docs/scaling.md)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from outboxrelay_operator.api.autoscaling import Autoscaling
from outboxrelay_operator.scale import Limits
from tests.bench.scaling.model import LANES, World
from tests.bench.scaling.replay import RIVALS, Run, replay
from tests.bench.scaling.scalers import MAX_REPLICAS, Ours
from tests.bench.scaling.traces import CAPACITY, TRACES, Trace

BY_NAME = {trace.name: trace for trace in TRACES}

SAME_SECONDS = 1.0
"""Mean lags that differ by less are the same: we look every five seconds."""


@pytest.fixture(params=TRACES, ids=[trace.name for trace in TRACES])
def trace(request: pytest.FixtureRequest) -> Trace:
    value: Trace = request.param
    return value


@pytest.fixture
def ours(trace: Trace) -> Run:
    return replay(trace, Ours())


def test_nothing_waits_at_the_end_and_nobody_has_less_lag_for_fewer_pods(trace: Trace, ours: Run) -> None:
    assert ours.end_lag == 0
    for make in RIVALS:
        other = replay(trace, make())
        assert ours.end_lag <= other.end_lag, other.name
        saves = ours.pod_hours > other.pod_hours
        assert not saves or other.mean_lag > ours.mean_lag + SAME_SECONDS or other.end_lag > 0, other.name
        late = ours.mean_lag > other.mean_lag + SAME_SECONDS
        assert not late or other.pod_hours > ours.pod_hours, other.name
        if other.name in ("HPA, CPU 80 %", "KEDA, 2 s", "KEDA, 5 s", "KEDA, 10 s") and other.end_lag == 0:
            assert ours.pod_hours <= other.pod_hours, other.name
            assert ours.mean_lag <= other.mean_lag + SAME_SECONDS, other.name


def test_a_count_is_not_changed_back_soon(ours: Run) -> None:
    """Down is never followed by up within the window: that would be flapping."""
    down = None
    for second, (before, after) in enumerate(zip(ours.counts, ours.counts[1:], strict=False)):
        if after < before:
            down = second
        elif after > before and before > 0 and down is not None:
            assert second - down >= 120


@pytest.mark.parametrize("rate", [9500.0, 9990.0, 10_100.0, 10_500.0, 14_800.0])
def test_noise_around_a_threshold_changes_little(rate: float) -> None:
    """The load of two (or three) pods, 10 % more or less in turn every few seconds."""
    noisy = Trace("noise", "", 3600, lambda second: rate * (1.1 if second // 7 % 2 else 0.9))
    run = replay(noisy, Ours())
    assert run.changes <= 6
    assert run.counts[600:] == sorted(run.counts[600:], reverse=run.counts[600] > run.counts[-1])
    assert run.p99_lag < 60


def test_from_zero_one_row_has_a_pod_at_the_next_measurement() -> None:
    trickle = Trace("one row", "", 1200, lambda second: 1.0 if second == 1003 else 0.0)
    run = replay(trickle, Ours())
    assert run.counts[900] == 0
    assert run.counts[1004:1010].count(0) <= 5
    assert run.end_lag == 0


def test_the_model_loses_no_row() -> None:
    for trace in (BY_NAME["burst"], replace(BY_NAME["outage"], seconds=1800)):
        world, scaler, arrived = World(trace), Ours(), 0.0
        for second in range(trace.seconds):
            scaler.look(world)
            world.step()
            arrived += trace.arrival(second)
        assert world.sent + world.backlog == pytest.approx(arrived)


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@example(parts=[], last=26_903.0)
@given(
    parts=st.lists(st.tuples(st.floats(0, 45_000), st.integers(30, 400)), max_size=5),
    last=st.floats(0, 0.9 * MAX_REPLICAS * CAPACITY),
)
def test_whatever_happened_the_load_of_now_is_kept_up_with(parts: list[tuple[float, int]], last: float) -> None:
    """After any history, as long as all pods together can do it: 20 minutes later hardly anything waits."""
    ends = list(accumulate(seconds for _, seconds in parts))

    def arrival(second: int) -> float:
        place = bisect_right(ends, second)
        return parts[place][0] if place < len(parts) else last

    run = replay(Trace("random", "", (ends[-1] if ends else 0) + 1200, arrival), Ours())
    assert run.end_lag < 15
    assert run.counts[-1] <= Limits(spec=Autoscaling(max_replicas=8), lanes=LANES).enough_for(last / (0.8 * CAPACITY))
