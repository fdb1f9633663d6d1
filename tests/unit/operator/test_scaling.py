"""How many relays a pair should have: what each case decides, and what holds for every load whatever."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxrelay_operator.api.autoscaling import Autoscaling
from outboxrelay_operator.scale import REASONS, Calm, Limits, Load, Scale, lasting, next_look, resumed
from outboxrelay_operator.scaling import decide, first

NOW = 1_800_000_000.0


def limits(*, lanes: int = 16, **changes: int) -> Limits:
    values: dict[str, Any] = {
        "min_replicas": 1,
        "max_replicas": 8,
        "catch_up_seconds": 60,
        "scale_down_after_seconds": 120,
        "idle_after_seconds": 600,
    }
    return Limits(spec=Autoscaling(**(values | changes)), lanes=lanes)


def scale(replicas: int = 1, *, rate: float | None = 1000.0, **changes: Any) -> Scale:
    values: dict[str, Any] = {"reason": "Load", "message": "as before", "changed_at": NOW - 1000, "at": NOW - 5}
    return Scale(replicas=replicas, rate_per_pod=rate, **(values | changes))


def load(rows: int | None = 0, *, arrival: float | None = 0.0, sent: float | None = 0.0, **changes: Any) -> Load:
    return Load(rows=rows, arrival=arrival, sent=sent, **changes)


QUIET = load()
UNSEEN = load(None, arrival=None, sent=None)


class Clock:
    """Decides again and again."""

    def __init__(self, limits: Limits, before: Scale) -> None:
        self.limits = limits
        self.scale = before
        self.now = NOW

    def look(self, seen: Load, *, seconds: float = 5.0) -> int:
        """The count after one look, some seconds later."""
        self.now += seconds
        self.scale = decide(seen, self.limits, self.scale, now=self.now)
        return self.scale.replicas

    def keep(self, seen: Load, *, seconds: float) -> list[int]:
        """Each count in these seconds."""
        return [self.look(seen) for _ in range(round(seconds / 5))]


class TestClock:
    """Set back by an hour: what was to happen after a while does not wait for an hour more."""

    def test_a_window_goes_on(self) -> None:
        clock = Clock(limits(), scale(3))
        assert set(clock.keep(QUIET, seconds=90)) == {3}
        clock.now -= 3600
        assert clock.keep(QUIET, seconds=40) == [3] * 7 + [1]
        assert NOW - 3600 < clock.scale.changed_at < NOW

    def test_what_is_not_known_starts_a_pod(self) -> None:
        clock = Clock(limits(min_replicas=0), scale(0))
        clock.look(UNSEEN)
        clock.now -= 3600
        assert clock.keep(UNSEEN, seconds=35) == [0] * 6 + [1]


class TestUp:
    """At once, and by what relays have shown."""

    @pytest.mark.parametrize(
        ("rows", "arrival", "expected"),
        [
            (0, 3900.0, 4),
            (120_000, 0.0, 2),
            (120_000, 3000.0, 6),
            (0, 1040.0, 1),
            (0, 1060.0, 2),
            (100_000_000, 0.0, 8),
        ],
    )
    def test_as_many_as_it_takes_for_what_comes_and_what_waits(self, rows: int, arrival: float, expected: int) -> None:
        assert Clock(limits(), scale()).look(load(rows, arrival=arrival, sent=900.0)) == expected

    def test_the_explanation_has_the_numbers(self) -> None:
        clock = Clock(limits(), scale())
        clock.look(load(120_000, arrival=3000.0, sent=900.0))
        assert clock.scale.reason == "Load"
        assert clock.scale.message == (
            "3000 rows a second are written and 120000 wait; a pod sends 1000, catchUpSeconds is 60"
        )
        assert clock.scale.changed_at == clock.now

    @pytest.mark.parametrize(
        ("changes", "partitions", "count", "reason"),
        [
            ({}, None, 8, "Maximum"),
            ({"max_replicas": 3}, None, 3, "Maximum"),
            ({"max_replicas": 3}, 3, 3, "Maximum"),
            ({"max_replicas": 6, "lanes": 4}, None, 4, "Maximum"),
            ({}, 6, 6, "Partitions"),
            ({}, 0, 1, "Partitions"),
            ({}, 5, 4, "Partitions"),
            ({"max_replicas": 5}, None, 4, "Maximum"),
            ({"max_replicas": 5, "min_replicas": 5}, None, 5, "Maximum"),
            ({"max_replicas": 12, "lanes": 12}, None, 12, "Maximum"),
            ({"min_replicas": 5}, 2, 5, "Partitions"),
        ],
    )
    def test_what_limits_it_is_told(
        self, changes: dict[str, int], partitions: int | None, count: int, reason: str
    ) -> None:
        clock = Clock(limits(**changes), scale())
        assert clock.look(load(10_000_000, arrival=0.0, sent=900.0, partitions=partitions)) == count
        assert clock.scale.reason == reason

    def test_the_partitions_are_remembered_while_no_relay_tells(self) -> None:
        clock = Clock(limits(), scale())
        flood = load(10_000_000, arrival=0.0, sent=900.0)
        assert [clock.look(replace(flood, partitions=count)) for count in (6, None, 8, None)] == [6, 6, 8, 8]

    @pytest.mark.parametrize("lanes", [1, 2, 3, 16, 17, 64, 256])
    def test_as_many_as_share_the_lanes_well_enough(self, lanes: int) -> None:
        """No fewer do it: the one with the most lanes has too much to do. More than that is of no use."""
        found = limits(lanes=lanes)
        for step in range(1, 200):
            need = lanes * step / 199
            enough = [n for n in range(1, lanes + 1) if lanes / math.ceil(lanes / n) >= need - 1e-6]
            assert found.enough_for(need) == enough[0]
        assert found.enough_for(lanes + 0.5) == lanes + 1
        assert found.enough_for(float("inf")) > lanes

    def test_a_pair_that_has_shown_nothing_waits_for_proof(self) -> None:
        clock = Clock(limits(), scale(rate=None))
        flood = load(100_000, arrival=500.0, sent=800.0, pod_rates=(800.0,))
        assert set(clock.keep(flood, seconds=15)) == {1}
        assert clock.scale.reason == "Unproven"
        assert clock.look(flood) == 3

    def test_a_few_rows_prove_nothing(self) -> None:
        """A relay that sends the one row a second that comes could send more than that."""
        clock = Clock(limits(), scale(rate=None))
        assert set(clock.keep(load(1, arrival=1.0, sent=1.0, pod_rates=(1.0,)), seconds=60)) == {1}
        assert clock.scale.rate_per_pod is None

    def test_an_unknown_arrival_does_not_keep_a_backlog_waiting(self) -> None:
        assert Clock(limits(), scale()).look(load(250_000, arrival=None, sent=900.0)) == 4

    def test_relays_that_slow_down_are_believed_after_a_while(self) -> None:
        clock = Clock(limits(), scale(2))
        slow = load(60_000, arrival=900.0, sent=600.0, pod_rates=(300.0, 290.0))
        assert clock.keep(slow, seconds=15)[-1] == 2
        assert clock.keep(slow, seconds=60)[-1] == 8

    def test_one_slow_relay_says_nothing_of_the_others(self) -> None:
        clock = Clock(limits(), scale(3))
        clock.keep(load(60_000, arrival=1500.0, sent=2050.0, pod_rates=(1000.0, 50.0, 1000.0)), seconds=120)
        assert clock.scale.rate_per_pod == pytest.approx(1000.0)

    def test_an_outage_proves_nothing_and_changes_nothing(self) -> None:
        clock = Clock(limits(), scale(2))
        assert set(clock.keep(load(900_000, arrival=3000.0, sent=0.0, blocked=True), seconds=600)) == {2}
        assert clock.scale.reason == "Blocked"
        assert clock.look(load(900_000, arrival=3000.0, sent=100.0, pod_rates=(50.0, 50.0))) == 8
        assert clock.scale.rate_per_pod == 1000.0

    def test_rows_that_parked_ones_hold_back_are_no_work_for_more(self) -> None:
        clock = Clock(limits(), scale(1))
        held = load(500_000, arrival=10.0, sent=10.0, pod_rates=(10.0,), parked=1)
        assert set(clock.keep(held, seconds=120)) == {1}
        assert clock.scale.reason == "RowsHeldBack"
        assert clock.scale.rate_per_pod == 1000.0
        assert clock.look(replace(held, pod_rates=(900.0,), sent=900.0)) == 8

    def test_rows_go_on_to_rest_while_their_relay_does_not_answer(self) -> None:
        clock = Clock(limits(), scale(1))
        held = load(500_000, arrival=10.0, sent=10.0, pod_rates=(10.0,), parked=1)
        clock.keep(held, seconds=120)
        silent = replace(held, sent=None, pod_rates=(), parked=None)
        assert set(clock.keep(silent, seconds=60)) == {1}
        assert set(clock.keep(held, seconds=60)) == {1}

    def test_a_relay_that_does_not_answer_hides_no_backlog(self) -> None:
        assert Clock(limits(), scale(1)).look(load(500_000, arrival=10.0, sent=None, parked=None)) == 8

    def test_one_parked_row_does_not_hide_a_backlog_that_grows(self) -> None:
        """Relays that have become slow look as if parked keys held their rows back."""
        clock, rows, most = Clock(limits(), scale(1, rate=5000.0)), 0.0, 0.0
        for _ in range(240):
            count = clock.scale.replicas
            sent = min(2000.0 * count, 3000.0 + rows / 5)
            rows = max(1.0, rows + 5 * (3000.0 - sent))
            clock.look(load(round(rows), arrival=3000.0, sent=sent, pod_rates=(sent / count,) * count, parked=1))
            most = max(most, rows)
        assert most < 250_000

    def test_slow_relays_that_work_a_backlog_off_get_help_though_a_row_is_parked(self) -> None:
        clock = Clock(limits(), scale(1, rate=5000.0))
        for looks in range(60):
            clock.look(load(9_000_000 - looks * 10_000, arrival=0.0, sent=2000.0, pod_rates=(2000.0,), parked=1))
        assert clock.scale.replicas == 8
        assert clock.scale.rate_per_pod is not None
        assert clock.scale.rate_per_pod < 4000.0

    def test_rows_behind_parked_ones_teach_no_rate(self) -> None:
        clock = Clock(limits(), scale(1, rate=None))
        behind = load(5001, arrival=10.0, sent=10.0, pod_rates=(10.0,), parked=5000)
        assert set(clock.keep(behind, seconds=300)) == {1}
        assert clock.scale.rate_per_pod is None

    def test_a_rate_is_learnt_in_spite_of_a_parked_row_once_the_backlog_moves(self) -> None:
        clock = Clock(limits(), scale(1, rate=None))
        for looks in range(30):
            clock.look(load(1_000_000 + looks * 10_000, arrival=3000.0, sent=1000.0, pod_rates=(1000.0,), parked=1))
        assert clock.scale.rate_per_pod == 1000.0
        assert clock.scale.replicas == 8

    def test_a_restart_does_not_forget_that_partitions_are_the_limit(self) -> None:
        clock = Clock(limits(), scale(2))
        much = load(200_000, arrival=3000.0, sent=2000.0, pod_rates=(1000.0, 1000.0))
        clock.look(replace(much, partitions=2))
        assert (clock.scale.replicas, clock.scale.reason) == (2, "Partitions")
        clock.scale = resumed(replace(clock.scale, partitions=None), now=clock.now)
        assert clock.look(replace(much, pod_rates=())) == 2
        assert clock.look(replace(much, partitions=2)) == 2
        assert clock.look(replace(much, partitions=6)) == 6

    @pytest.mark.parametrize("back", [30.0, 900.0, 20_000.0])
    def test_a_clock_that_steps_back_teaches_no_rate_that_nobody_has_shown(self, back: float) -> None:
        clock = Clock(limits(), scale(1, rate=5000.0, busy_since=NOW - 100_000))
        clock.look(load(100_000, arrival=3000.0, sent=4000.0, pod_rates=(4000.0,)), seconds=-back)
        assert clock.scale.rate_per_pod == 5000.0


class TestDown:
    """After a whole window in which fewer would have done, and with a reserve."""

    def test_not_before_the_window_has_passed(self) -> None:
        clock = Clock(limits(), scale(4))
        low = load(0, arrival=1500.0, sent=1500.0)
        assert set(clock.keep(low, seconds=120)) == {4}
        assert clock.scale.reason == "WaitingForCalm"
        assert clock.look(low) == 2

    def test_to_the_highest_need_of_the_window(self) -> None:
        clock = Clock(limits(), scale(6))
        clock.keep(load(0, arrival=1500.0, sent=1500.0), seconds=60)
        clock.look(load(0, arrival=3300.0, sent=3300.0))
        counts = clock.keep(load(0, arrival=1500.0, sent=1500.0), seconds=125)
        assert counts[10:14] == [6, 4, 4, 4]
        assert counts[-1] == 2

    def test_no_flapping_around_a_threshold(self) -> None:
        """Both thresholds of going from 2 to 3 and back lie between these two loads."""
        clock = Clock(limits(), scale(2))
        for _ in range(200):
            assert clock.look(load(0, arrival=2090.0, sent=2000.0)) == 2
            assert clock.look(load(0, arrival=1750.0, sent=1750.0)) == 2

    def test_a_gap_in_the_measurements_starts_the_window_anew(self) -> None:
        clock = Clock(limits(), scale(4))
        clock.keep(QUIET, seconds=100)
        assert set(clock.keep(UNSEEN, seconds=60)) == {4}
        assert clock.scale.reason == "Unknown"
        assert set(clock.keep(QUIET, seconds=120)) == {4}
        assert clock.look(QUIET) == 1

    def test_one_late_measurement_is_no_news(self) -> None:
        clock = Clock(limits(), scale(4))
        clock.keep(QUIET, seconds=100)
        before = clock.scale
        assert set(clock.keep(UNSEEN, seconds=20)) == {4}
        assert (clock.scale.reason, clock.scale.message, clock.scale.calm) == (
            before.reason,
            before.message,
            before.calm,
        )
        assert clock.look(QUIET) == 1

    def test_relays_that_were_never_seen_at_work_go_one_by_one(self) -> None:
        clock = Clock(limits(), scale(3, rate=None))
        trickle = load(0, arrival=3.0, sent=3.0, pod_rates=(1.0, 1.0, 1.0))
        assert clock.keep(trickle, seconds=125)[-1] == 2
        assert clock.keep(trickle, seconds=125)[-1] == 1
        assert clock.keep(trickle, seconds=600)[-1] == 1

    def test_a_lower_limit_of_the_spec_counts_at_once(self) -> None:
        clock = Clock(limits(max_replicas=2), scale(6))
        assert clock.look(load(0, arrival=5000.0, sent=5000.0)) == 2

    def test_the_minimum_counts_even_if_nothing_is_known(self) -> None:
        clock = Clock(limits(min_replicas=3), scale(1))
        assert clock.look(UNSEEN) == 3


class TestZero:
    """No pod for a pair without rows, and one as soon as there is a row."""

    ZERO = limits(min_replicas=0)

    def test_after_the_idle_time(self) -> None:
        clock = Clock(self.ZERO, scale(3))
        assert clock.keep(QUIET, seconds=125)[-1] == 1
        assert set(clock.keep(QUIET, seconds=475)) == {1}
        assert clock.look(QUIET) == 0
        assert clock.scale.reason == "Idle"

    def test_not_while_rows_trickle(self) -> None:
        clock = Clock(self.ZERO, scale(1))
        for _ in range(10):
            assert set(clock.keep(QUIET, seconds=590)) == {1}
            assert clock.look(load(0, arrival=0.0, sent=0.1)) == 1

    def test_not_if_the_minimum_is_one(self) -> None:
        assert Clock(limits(), scale(1)).keep(QUIET, seconds=1000)[-1] == 1

    @pytest.mark.parametrize("rate", [None, 1000.0])
    @pytest.mark.parametrize("arrival", [None, 0.2])
    def test_one_row_wakes_at_the_first_look(self, rate: float | None, arrival: float | None) -> None:
        assert Clock(self.ZERO, scale(0, rate=rate)).look(load(1, arrival=arrival)) == 1

    def test_a_large_backlog_wakes_as_many_as_it_needs(self) -> None:
        assert Clock(self.ZERO, scale(0)).look(load(200_000, arrival=None)) == 4

    def test_a_database_that_cannot_be_measured_gets_a_relay_after_some_failures(self) -> None:
        clock = Clock(self.ZERO, scale(0, reason="Idle"))
        assert clock.look(replace(UNSEEN, failures=2)) == 0
        assert next_look(clock.scale, self.ZERO, now=clock.now) == 5.0
        # A restart of the database is several failures in a few seconds.
        assert clock.look(replace(UNSEEN, failures=3)) == 0
        assert clock.look(replace(UNSEEN, failures=4)) == 0
        assert clock.look(replace(UNSEEN, failures=5)) == 1
        assert clock.scale.reason == "Blind"
        assert set(clock.keep(replace(UNSEEN, failures=9), seconds=3600)) == {1}
        assert clock.scale.reason == "Blind"
        assert clock.keep(QUIET, seconds=605)[-1] == 0

    def test_one_that_is_not_measured_at_all_gets_a_relay_too(self) -> None:
        assert Clock(self.ZERO, scale(0)).keep(UNSEEN, seconds=40)[-1] == 1

    def test_unknown_rates_of_no_pods_wake_nobody(self) -> None:
        assert set(Clock(self.ZERO, scale(0)).keep(load(0, arrival=None, sent=None), seconds=300)) == {0}


class TestMemory:
    """What survives, and how little of it is worth a write."""

    def test_the_first_decision_keeps_what_there_is(self) -> None:
        assert first(0, limits(min_replicas=0), now=NOW).replicas == 1
        assert first(4, limits(), now=NOW).replicas == 4
        assert first(40, limits(), now=NOW).replicas == 8

    def test_deciding_again_at_the_same_moment_changes_nothing(self) -> None:
        seen = load(60_000, arrival=900.0, sent=600.0, pod_rates=(300.0,))
        once = decide(seen, limits(), scale(2, busy_since=NOW - 60), now=NOW)
        assert decide(seen, limits(), once, now=NOW) == once

    def test_nothing_changes_in_what_is_written_while_the_load_stays(self) -> None:
        clock = Clock(limits(), scale(3))
        clock.keep(load(0, arrival=2000.0, sent=2000.0), seconds=300)
        told = (clock.scale.reason, clock.scale.message, lasting(clock.scale, clock.limits, now=clock.now))
        for wobble in range(100):
            clock.look(load(wobble % 7, arrival=1950.0 + wobble, sent=1950.0 + wobble))
            assert (clock.scale.reason, clock.scale.message) == told[:2]
            assert lasting(clock.scale, clock.limits, now=clock.now) == told[2]

    def test_calm_that_comes_and_goes_is_not_written(self) -> None:
        clock = Clock(limits(), scale(3))
        for _ in range(100):
            clock.look(load(0, arrival=2600.0, sent=2600.0))
            clock.look(load(0, arrival=1500.0, sent=1500.0))
            assert lasting(clock.scale, clock.limits, now=clock.now) == ()

    def test_a_restart_goes_on_from_the_calm_that_was_written(self) -> None:
        clock = Clock(limits(scale_down_after_seconds=300), scale(4))
        clock.keep(QUIET, seconds=200)
        kept = lasting(clock.scale, clock.limits, now=clock.now)
        again = resumed(scale(4, calm=kept), now=clock.now + 10)
        after = Clock(clock.limits, again)
        after.now = clock.now + 10
        assert set(after.keep(UNSEEN, seconds=10)) == {4}
        assert set(after.keep(QUIET, seconds=75)) == {4}
        assert after.keep(QUIET, seconds=15)[-1] == 1

    def test_after_a_long_absence_it_takes_a_moment_at_least(self) -> None:
        calm = (Calm(2, NOW - 90_000), Calm(0, NOW - 80_000))
        after = Clock(limits(min_replicas=0), resumed(scale(4, calm=calm), now=NOW))
        assert set(after.keep(QUIET, seconds=25)) == {4}
        assert after.keep(QUIET, seconds=10)[-1] == 0

    def test_it_is_looked_at_again_when_the_window_ends(self) -> None:
        clock = Clock(limits(), scale(4))
        clock.look(QUIET)
        assert next_look(clock.scale, clock.limits, now=clock.now) == 120
        clock.look(load(0, arrival=3900.0, sent=3900.0))
        assert next_look(clock.scale, clock.limits, now=clock.now) is None
        assert next_look(scale(1), clock.limits, now=NOW) is None


LOADS = st.builds(
    Load,
    rows=st.none() | st.integers(0, 10**9),
    arrival=st.none() | st.floats(0, 1e6),
    sent=st.none() | st.floats(0, 1e6),
    pod_rates=st.lists(st.floats(0, 1e5), max_size=4).map(tuple),
    blocked=st.booleans(),
    parked=st.none() | st.integers(0, 3),
    partitions=st.none() | st.integers(0, 20),
    failures=st.integers(0, 5),
)


@st.composite
def _limits(draw: st.DrawFn) -> Limits:
    lanes = draw(st.integers(1, 32))
    most = draw(st.integers(1, lanes))
    return limits(
        lanes=lanes,
        max_replicas=most,
        min_replicas=draw(st.integers(0, most)),
        scale_down_after_seconds=draw(st.integers(5, 300)),
        idle_after_seconds=draw(st.integers(5, 300)),
    )


@given(
    limits=_limits(),
    looks=st.lists(st.tuples(LOADS, st.floats(0.5, 200)), min_size=1, max_size=12),
    present=st.integers(0, 40),
)
def test_whatever_the_load(limits: Limits, looks: list[tuple[Load, float]], present: int) -> None:
    now, scale = NOW, first(present, limits, now=NOW)
    for seen, seconds in looks:
        before, now = scale, now + seconds
        scale = decide(seen, limits, before, now=now)
        assert limits.spec.min_replicas <= scale.replicas <= limits.spec.max_replicas
        assert scale.replicas <= limits.lanes
        assert scale.reason in REASONS
        assert scale.message
        if scale.replicas < limits.clamped(before.replicas, seen.partitions):
            assert seen.rows is not None
            assert seen.idle or (seen.arrival is not None and not seen.blocked)
        if before.replicas == 0 and seen.rows:
            assert scale.replicas >= 1
        if scale.replicas == 0 < before.replicas:
            assert seen.idle
        counts = [calm.replicas for calm in scale.calm]
        times = [calm.since for calm in scale.calm]
        assert counts == sorted(set(counts), reverse=True)
        assert times == sorted(times)
        assert decide(seen, limits, scale, now=now).replicas == scale.replicas
