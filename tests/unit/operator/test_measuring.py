"""Measuring without a database: floors, ages, rates, and how one server's pairs share two sessions (OS-03, DV-13)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from outboxrelay.dberrors import Place
from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.logs import JsonFormatter
from outboxrelay_operator.measure.history import IdHistory
from outboxrelay_operator.measure.loop import DatabaseMeasurer
from outboxrelay_operator.measure.rates import RateTracker
from outboxrelay_operator.measure.server import GRACE_SECONDS, MAX_SESSIONS, LoginId, ServerMeasurer
from outboxrelay_operator.measure.session import MeasureError, Sample, TableInfo, nobody_answers
from outboxrelay_operator.measure.sql import COUNT_LIMIT, LOWEST_ID
from outboxrelay_operator.measure.tracking import LONGEST_SECONDS, SWEEP_SECONDS, Track
from outboxrelay_operator.measurements import Backlog, Failure, Measurement, PairId
from outboxrelay_operator.pairs import Key, Pair, pairs_of
from tests.unit.operator.builders import KEY, NOW, backlog, raw_database, raw_spec, raw_topic


class TestIdHistory:
    """When which ids were first seen."""

    def test_the_age_of_an_id_counts_from_when_it_was_first_covered(self) -> None:
        history = IdHistory()
        for clock, highest in ((100.0, 10), (105.0, 20), (110.0, None), (115.0, 20), (120.0, 30)):
            history.observe(clock=clock, highest=highest)
        assert history.age(20, clock=130.0) == 25.0
        assert history.age(21, clock=130.0) == 10.0
        assert history.age(5, clock=130.0) == 30.0
        assert history.age(31, clock=130.0) is None
        assert history.highest == 30

    def test_a_clock_that_steps_back_gives_no_negative_age(self) -> None:
        history = IdHistory()
        history.observe(clock=100.0, highest=1)
        assert history.age(1, clock=90.0) == 0.0

    def test_it_stays_small_and_keeps_old_rows_roughly(self) -> None:
        history = IdHistory()
        for second in range(10_000):
            history.observe(clock=float(second), highest=second)
        assert len(history._times) <= 512
        for row in (0, 100, 5_000, 9_990):
            age = history.age(row, clock=10_000.0)
            assert age is not None
            assert age <= 10_000 - row
            assert age >= (10_000 - row) * 0.9 - 1


class TestTrack:
    """The floor and the pace of one pair."""

    def test_the_floor_follows_what_is_gone(self) -> None:
        track = Track(next_sweep=1000.0)
        track.found(oldest_id=70, highest_id=90)
        assert track.start(0.0) == 70
        track.found(oldest_id=None, highest_id=120)
        assert track.start(0.0) == 120
        track.found(oldest_id=None, highest_id=None)
        assert track.start(0.0) == 120

    def test_the_true_start_is_looked_at_again_once_in_a_while(self) -> None:
        track = Track()
        assert track.start(0.0) == LOWEST_ID
        track.looked(began=0.0, ended=0.001, swept=True, interval=5.0)
        track.found(oldest_id=None, highest_id=9)
        assert track.start(SWEEP_SECONDS) == 9
        assert track.start(SWEEP_SECONDS + 0.3) == LOWEST_ID

    @pytest.mark.parametrize(("cost", "pause"), [(0.001, 5.0), (0.2, 10.0), (3.0, LONGEST_SECONDS)])
    def test_what_costs_much_is_done_seldom(self, cost: float, pause: float) -> None:
        track = Track()
        track.looked(began=10.0, ended=10.0 + cost, swept=False, interval=5.0)
        assert track.next_look == pytest.approx(10.0 + pause)


class TestRates:
    """Arrivals from how the backlog moved and what was sent."""

    def test_what_was_sent_and_what_the_backlog_grew_by_has_arrived(self) -> None:
        tracker = RateTracker()
        tracker.add(backlog(100, at=NOW), sent=50.0)
        tracker.add(backlog(200, at=NOW + 10), sent=70.0)
        assert tracker.rates(sent=70.0).arrival == pytest.approx(70.0)

    def test_one_measurement_tells_nothing(self) -> None:
        tracker = RateTracker()
        tracker.add(backlog(100), sent=50.0)
        assert tracker.rates(sent=50.0).arrival is None

    def test_an_unknown_sending_rate_makes_arrivals_unknown(self) -> None:
        tracker = RateTracker()
        tracker.add(backlog(100, whole_table=False), sent=50.0)
        tracker.add(backlog(100, at=NOW + 10, whole_table=False), sent=None)
        assert tracker.rates(sent=None).arrival is None

    def test_what_relays_have_told_since_they_were_unknown_is_enough(self) -> None:
        """After a start a database may be measured before the relays are asked for the first time."""
        tracker, told = RateTracker(), []
        for at, sent in ((0, None), (5, 50.0), (10, 50.0)):
            tracker.add(backlog(100 + 2 * at, at=NOW + at, whole_table=False), sent=sent)
            told.append((tracker.settled, tracker.rates(sent=sent).arrival))
        assert told == [(False, None), (False, None), (True, pytest.approx(52.0))]

    def test_relays_that_tell_nothing_are_not_waited_for(self) -> None:
        tracker, settled = RateTracker(), []
        for at in (0, 2, 5):
            tracker.add(backlog(100, at=NOW + at), sent=None)
            settled.append(tracker.settled)
        assert settled == [False, False, True]

    def test_above_the_count_the_ids_tell_of_a_table_with_one_pair(self) -> None:
        tracker = RateTracker()
        tracker.add(backlog(10**6, exact=False, highest_id=1000), sent=50.0)
        tracker.add(backlog(10**6, exact=False, highest_id=1500, at=NOW + 10), sent=50.0)
        assert tracker.rates(sent=50.0).arrival == pytest.approx(50.0)

    def test_old_measurements_are_forgotten(self) -> None:
        tracker = RateTracker()
        tracker.add(backlog(0, at=NOW), sent=0.0)
        tracker.add(backlog(1000, at=NOW + 31), sent=0.0)
        tracker.add(backlog(1000, at=NOW + 41), sent=0.0)
        assert tracker.rates(sent=0.0).arrival == 0.0

    def test_costly_looks_tell_a_rate_though_only_one_is_in_the_window(self) -> None:
        tracker = RateTracker()
        for look in range(4):
            at = NOW + 60 * look
            tracker.add(backlog(600 * look, at=at, believe_until=at + 75), sent=1.0)
        assert tracker.rates(sent=1.0).arrival == pytest.approx(11.0)

    def test_looks_from_before_the_clock_was_set_back_tell_nothing(self) -> None:
        tracker = RateTracker()
        for at, rows in ((NOW, 0), (NOW - 3600, 100), (NOW - 3590, 200)):
            tracker.add(backlog(rows, at=at), sent=0.0)
        assert tracker.rates(sent=0.0).arrival == pytest.approx(10.0)

    def test_a_look_from_before_a_long_gap_tells_nothing(self) -> None:
        tracker = RateTracker()
        tracker.add(backlog(0, at=NOW), sent=0.0)
        tracker.add(backlog(1000, at=NOW + 31), sent=0.0)
        assert tracker.rates(sent=0.0).arrival is None

    @pytest.mark.parametrize(("grown", "expected"), [(300, 80.0), (-5000, 0.0), (90_000, 100.0)])
    def test_above_the_count_the_estimate_tells_of_a_part_of_a_table(self, grown: int, expected: float) -> None:
        """At most what was written to the whole table: an estimate may jump."""
        tracker = RateTracker()
        part = {"exact": False, "whole_table": False}
        tracker.add(backlog(10**6, highest_id=1000, **part), sent=50.0)
        tracker.add(backlog(10**6 + grown, highest_id=2000, at=NOW + 10, **part), sent=50.0)
        assert tracker.rates(sent=50.0).arrival == pytest.approx(expected)


NOTHING_WAITS = Sample(counted=0, oldest_id=None, oldest_age=None, highest_id=None, clock=NOW)


@dataclass
class World:
    """One PostgreSQL server that does what a test says."""

    now: float = 1000.0
    seconds_per_sample: float = 0.0
    slow: list[float] = field(default_factory=list)
    """How much longer the next looks take."""

    open: int = 0
    most_open: int = 0
    logins: list[LoginId] = field(default_factory=list)
    asked: list[object] = field(default_factory=list)
    refuse: Exception | None = None
    sample: Sample = NOTHING_WAITS
    errors: list[Exception] = field(default_factory=list)
    ended: list[Exception] = field(default_factory=list)
    """What the next sessions say at once, whatever they are asked."""

    floors: list[int] = field(default_factory=list)
    estimate: int = 0
    reports: dict[PairId, Measurement] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    async def connect(self, login: LoginId) -> FakeSession:
        self.logins.append(login)
        if self.refuse is not None:
            raise self.refuse
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return FakeSession(self)

    @property
    def connects(self) -> int:
        return len(self.logins)

    def measurer(self) -> ServerMeasurer:
        return ServerMeasurer(
            connect=self.connect,
            report=self.reports.__setitem__,
            interval=5.0,
            clock=self.clock,
            wall=lambda: NOW,
            chance=lambda: 0.5,
        )

    def one(self) -> Measurement:
        [measurement] = self.reports.values()
        return measurement

    def backlog(self) -> Backlog:
        measurement = self.one()
        assert isinstance(measurement, Backlog)
        return measurement

    def failure(self) -> Failure:
        measurement = self.one()
        assert isinstance(measurement, Failure)
        return measurement


@dataclass
class FakeSession:
    world: World

    async def inspect(self, pair: Pair) -> TableInfo:
        self.world.asked.append(pair)
        if self.world.ended:
            raise self.world.ended.pop(0)
        return TableInfo(index_on_id=True)

    async def sample(self, pair: Pair, *, floor: int, count: bool) -> Sample:
        self.world.asked.append(pair)
        self.world.floors.append(floor)
        self.world.now += self.world.seconds_per_sample + (self.world.slow.pop(0) if self.world.slow else 0.0)
        if self.world.errors:
            raise self.world.errors.pop(0)
        return self.world.sample if count else replace(self.world.sample, counted=None)

    async def estimate(self, pair: Pair, *, floor: int) -> int:
        self.world.asked.append((pair, floor))
        return self.world.estimate

    async def routes(self, pair: Pair, *, floor: int) -> tuple[str | None, ...]:
        self.world.asked.append((pair, floor))
        return ("refund", None)

    async def close(self) -> None:
        self.world.open -= 1


BESIDE: dict[str, Any] = {"topics": [raw_topic(name, match=[name]) for name in ("orders", "refunds")]}
"""Two pairs of one login."""


def error(reason: Any = "DatabaseError", *, lost: bool = False, down: bool = False) -> MeasureError:
    return MeasureError(reason, "what happened", session_lost=lost, server_down="connection refused" if down else None)


def too_slow() -> MeasureError:
    return MeasureError("DatabaseError", "took too long", session_lost=False, too_slow=True)


def pairs(count: int = 1, **changes: Any) -> dict[PairId, Pair]:
    raw = raw_spec(databases=[raw_database(f"d{n}", host="server") for n in range(count)], **changes)
    return {PairId.of(pair): pair for pair in pairs_of(KEY, OutboxRelaySpec.model_validate(raw))}


class TestRounds:
    """When the pairs of a server are measured again."""

    @pytest.mark.parametrize(("a_look", "expected"), [(0.25, [0.5, 0.25]), (3.0, [5.0, 3.0])])
    async def test_resources_that_come_all_the_time_leave_a_server_a_rest(
        self, a_look: float, expected: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As long as the round took, but not longer than without news.

        With more logins than sessions each round logs in anew, which costs more than all the measuring.
        """
        world, rests, resting, go = World(seconds_per_sample=a_look), list[float](), asyncio.Event(), asyncio.Event()

        async def rest(seconds: float) -> None:
            rests.append(seconds)
            resting.set()
            await go.wait()

        monkeypatch.setattr("outboxrelay_operator.measure.loop.asyncio.sleep", rest)
        measurer = DatabaseMeasurer(
            connect=world.connect,
            report=world.reports.__setitem__,
            interval=5.0,
            clock=world.clock,
            wall=lambda: NOW,
            chance=lambda: 0.5,
        )
        measurer.measure(KEY, pairs(2).values())
        await resting.wait()
        measurer.measure(KEY, pairs(3).values())
        assert (rests, len(world.reports)) == (expected[:1], 2)
        resting.clear()
        go.set()
        await resting.wait()
        assert (rests, len(world.reports)) == (expected, 3)
        await measurer.close()


class TestServer:
    """One server's round."""

    @pytest.mark.parametrize(
        ("counted", "leftover", "expected"),
        [
            (3, True, (3, ("refund", None))),
            (0, True, (0, ())),
            (3, False, (3, ())),
            (COUNT_LIMIT + 1, True, (COUNT_LIMIT + 1, ("refund", None))),
        ],
    )
    async def test_what_no_topic_takes_is_told_with_its_routes(
        self, counted: int, leftover: bool, expected: tuple[int, tuple[str | None, ...]]
    ) -> None:
        world = World()
        world.sample, world.estimate = replace(world.sample, counted=counted), 5_000_000
        await world.measurer().round({id_: replace(pair, leftover=leftover) for id_, pair in pairs().items()})
        [found] = world.reports.values()
        assert isinstance(found, Backlog)
        assert (found.rows, found.routes) == expected

    async def test_what_could_not_be_counted_is_not_nothing(self) -> None:
        world = World()
        world.sample, world.errors = replace(world.sample, oldest_id=5), [too_slow()]
        await world.measurer().round({id_: replace(pair, leftover=True) for id_, pair in pairs().items()})
        [found] = world.reports.values()
        assert isinstance(found, Backlog)
        assert (found.rows, found.exact, found.routes) == (1, False, ("refund", None))

    async def test_os_03_many_logins_share_two_sessions(self) -> None:
        """cases.md OS-03."""
        world, wanted = World(), pairs(64)
        measurer = world.measurer()
        for _ in range(3):
            await measurer.round(wanted)
            world.now += 6
        assert len(world.reports) == 64
        assert world.most_open == MAX_SESSIONS == 2
        await measurer.close()
        assert world.open == 0

    async def test_what_is_measured_is_believed_for_as_long_as_a_round_takes(self) -> None:
        """With thousands of pairs on one server the next look at each comes when all others were looked at."""
        world, wanted = World(seconds_per_sample=0.1), pairs(64)
        measurer = world.measurer()
        await measurer.round(wanted)
        assert world.now == pytest.approx(1006.4)
        world.reports.clear()
        world.now += 5
        await measurer.round(wanted)
        assert len(world.reports) == 64
        believed = {round(found.believe_until - NOW, 3) for found in world.reports.values()}
        assert believed == {4.9 + 2 * 6.4 + GRACE_SECONDS}

    async def test_what_misses_a_round_is_believed_until_the_next_one_has_come_to_it(self) -> None:
        """A look that took a little long, on a busy machine, is repeated later: a moment too late for the next round.

        Else a large fleet at rest says again and again that it is not measured, and takes it back.
        """
        world, wanted, believed, late = World(seconds_per_sample=0.2), pairs(64), dict[PairId, float](), list[PairId]()
        measurer = world.measurer()
        measurer.wall = world.clock

        def report(pair: PairId, measurement: Measurement) -> None:
            if believed.get(pair, math.inf) < world.now:
                late.append(pair)
            believed[pair] = measurement.believe_until

        measurer.report = report
        for slow in ((), (), (0.2,), (), ()):
            world.slow = list(slow)
            await measurer.round(wanted)
            world.now += 5.25
        assert len(believed) == 64
        assert late == []

    async def test_a_server_may_be_allowed_one_session_only(self) -> None:
        world, wanted = World(), pairs(8)
        measurer = world.measurer()
        measurer.max_sessions = 1
        await measurer.round(wanted)
        assert len(world.reports) == 8
        assert world.most_open == 1
        await measurer.close()

    async def test_a_session_is_kept_between_rounds(self) -> None:
        world = World()
        measurer = world.measurer()
        for _ in range(5):
            await measurer.round(pairs())
            world.now += 6
        assert (world.connects, len(world.floors)) == (1, 5)

    async def test_one_refused_connection_stands_for_all_of_a_dead_server(self) -> None:
        world = World(refuse=error("DatabaseUnreachable", down=True))
        await world.measurer().round(pairs(20))
        assert world.connects == 1
        assert len(world.reports) == 20
        assert {m.reason for m in world.reports.values() if isinstance(m, Failure)} == {"DatabaseUnreachable"}

    async def test_whoever_tries_a_dead_server_all_say_the_same_of_it_in_every_round(self) -> None:
        """Else the statuses of a large fleet are written in turns for as long as the server is away."""
        world, wanted, said = World(), pairs(3), []

        async def connect(login: LoginId) -> FakeSession:
            world.logins.append(login)
            database = login.database
            place = Place(address=database.address, dbname=database.dbname, user="relay")
            raise nobody_answers(place, "connection refused: check that the server runs")

        measurer = replace(world.measurer(), connect=connect)
        for _ in range(6):
            await measurer.round(wanted)
            said.append({id_: found.message for id_, found in world.reports.items() if isinstance(found, Failure)})
            world.now += 10
        assert len(set(world.logins)) == 3
        why = "connection refused: check that the server runs"
        places = {id_: f"database {pair.database.dbname} on {pair.database.address}" for id_, pair in wanted.items()}
        assert said == 6 * [{id_: f"{place}: {why}" for id_, place in places.items()}]

    async def test_a_login_without_an_address_is_no_other_ones_problem(self) -> None:
        """The server may be unreachable under one login's name, or for its role, and well for all others."""
        world = World(refuse=error("DatabaseUnreachable"))
        await world.measurer().round(pairs(20))
        assert world.connects == 20

    async def test_a_login_that_keeps_failing_comes_last_and_its_past_says_nothing(self) -> None:
        world, wanted = World(), pairs(2)
        bad, good = wanted
        refused = LoginId.of(wanted[bad])

        async def connect(login: LoginId) -> FakeSession:
            if login == refused:
                raise error("DatabaseUnreachable", down=True)
            return await world.connect(login)

        measurer = replace(world.measurer(), connect=connect)
        for _ in range(3):
            await measurer.round(wanted)
            world.now += 5
        assert isinstance(world.reports[good], Backlog)
        assert isinstance(world.reports[bad], Failure)

    async def test_a_round_that_begins_a_little_early_measures(self) -> None:
        world = World()
        measurer = world.measurer()
        for _ in range(10):
            await measurer.round(pairs())
            world.now += 4.8
        assert len(world.floors) == 10

    async def test_one_refused_login_is_no_other_ones_problem(self) -> None:
        world = World(refuse=error("AuthenticationFailed"))
        await world.measurer().round(pairs(20))
        assert world.connects == 20

    async def test_a_refused_login_is_tried_again_later_each_time_but_never_late(self) -> None:
        world = World(refuse=error("AuthenticationFailed"))
        measurer, tries = world.measurer(), []
        for _ in range(600):
            before = world.connects
            await measurer.round(pairs())
            if world.connects > before:
                tries.append(world.now)
            world.now += 0.1
        gaps = [round(late - early) for early, late in pairwise(tries)]
        assert gaps[:4] == [1, 2, 4, 8]
        assert max(gaps) <= 8
        world.refuse = None
        world.now += 9
        await measurer.round(pairs())
        assert world.backlog().rows == 0

    async def test_ol_06_a_changed_secret_is_tried_at_once(self) -> None:
        """cases.md OL-06: also by the operator's own sessions."""
        world = World(refuse=error("AuthenticationFailed"))
        measurer = world.measurer()
        await measurer.round(pairs())
        world.refuse = None
        measurer.retry_soon()
        await measurer.round(pairs())
        assert isinstance(world.one(), Backlog)

    @pytest.mark.parametrize("edit", ["table", "topics"])
    async def test_a_pair_that_is_edited_is_looked_at_from_the_start(self, edit: str) -> None:
        """Its floor is where the rows end that it had before: others may be far below."""
        world = World(sample=Sample(0, None, None, 10**6, NOW))
        measurer = world.measurer()
        before = raw_spec(topics=[raw_topic(match=["order"])])
        change = (
            {"databases": [raw_database(table={"name": "outbox2"})]}
            if edit == "table"
            else {"topics": [raw_topic(match=["order", "refund"])]}
        )
        for raw in (before, before, before | change):
            [pair] = pairs_of(KEY, OutboxRelaySpec.model_validate(raw))
            await measurer.round({PairId.of(pair): pair})
            world.now += 6
        assert world.floors == [LOWEST_ID, 10**6, LOWEST_ID]

    async def test_a_session_that_died_idle_is_replaced_in_the_same_round(self) -> None:
        world = World()
        measurer = world.measurer()
        await measurer.round(pairs(**BESIDE))
        world.now += 6
        world.ended = [error("DatabaseUnreachable", lost=True)]
        await measurer.round(pairs(**BESIDE))
        assert world.connects == 2
        assert all(isinstance(found, Backlog) for found in world.reports.values()), "the server was not even asked"

    async def test_a_session_that_ends_when_it_is_used_is_a_failure(self) -> None:
        world, lost = World(), error("DatabaseUnreachable", lost=True)
        measurer = world.measurer()
        await measurer.round(pairs())
        world.now += 6
        world.errors = [lost]
        await measurer.round(pairs())
        assert (world.connects, world.failure().reason) == (2, "DatabaseUnreachable")
        await measurer.round(pairs())
        world.now += 6
        world.ended = [lost, lost]
        await measurer.round(pairs())
        assert (world.connects, world.failure().reason) == (4, "DatabaseUnreachable")
        await measurer.round(pairs())
        assert isinstance(world.one(), Backlog)

    async def test_a_login_that_is_refused_when_its_session_has_ended_is_a_failure(self) -> None:
        world = World()
        measurer = world.measurer()
        await measurer.round(pairs(**BESIDE))
        world.now += 6
        world.ended, world.refuse = [error("DatabaseUnreachable", lost=True)], error("AuthenticationFailed")
        await measurer.round(pairs(**BESIDE))
        assert [getattr(found, "reason", "") for found in world.reports.values()] == ["AuthenticationFailed"] * 2

    async def test_a_pair_that_cannot_be_understood_is_told_and_costs_the_others_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A database of the encoding SQL_ASCII may hold texts that are none; what they are is in no log either."""
        world = World(errors=[UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")])
        wanted = pairs(2)
        await world.measurer().round(wanted)
        bad, well = (world.reports[id_] for id_ in wanted)
        assert isinstance(bad, Failure)
        assert (bad.reason, "UnicodeDecodeError" in bad.message) == ("DatabaseError", True)
        assert "invalid start byte" not in bad.message
        said = "".join(JsonFormatter().format(record) for record in caplog.records)
        assert ("UnicodeDecodeError" in said, "in sample" in said) == (True, True)
        assert "invalid start byte" not in said
        assert isinstance(well, Backlog)

    async def test_a_login_that_fails_unexpectedly_is_told_and_no_other_ones_problem(self) -> None:
        world = World(refuse=OSError("no space left"))
        await world.measurer().round(pairs(2))
        assert [type(found) for found in world.reports.values()] == [Failure, Failure]
        assert world.connects == 2

    async def test_a_failure_is_believed_until_the_next_try_and_a_little_longer(self) -> None:
        world = World(refuse=error("AuthenticationFailed"))
        await world.measurer().round(pairs())
        assert NOW + 5 < world.failure().believe_until < NOW + 30

    async def test_a_count_within_the_bound_is_exact(self) -> None:
        world = World(sample=Sample(COUNT_LIMIT, 7, 3.5, 20_000, NOW), estimate=5)
        await world.measurer().round(pairs())
        found = world.backlog()
        assert (found.rows, found.exact, found.lag_seconds, found.lag_exact) == (COUNT_LIMIT, True, 3.5, True)

    async def test_a_count_beyond_the_bound_is_estimated_and_never_less_than_counted(self) -> None:
        world = World(sample=Sample(COUNT_LIMIT + 1, 7, 3.5, 20_000, NOW), estimate=5)
        measurer = world.measurer()
        await measurer.round(pairs())
        assert (world.backlog().rows, world.backlog().exact) == (COUNT_LIMIT + 1, False)
        world.estimate, world.now = 1_800_000, world.now + 6
        await measurer.round(pairs())
        assert world.backlog().rows == 1_800_000

    async def test_without_created_at_the_age_is_derived_and_unknown_at_first(self) -> None:
        world = World(sample=Sample(1, 7, None, 7, NOW))
        measurer = world.measurer()
        await measurer.round(pairs())
        assert (world.backlog().lag_seconds, world.backlog().lag_exact) == (None, False)
        world.sample, world.now = Sample(1, 7, None, 7, NOW + 6), world.now + 6
        await measurer.round(pairs())
        assert (world.backlog().lag_seconds, world.backlog().lag_exact) == (6.0, False)

    async def test_a_clock_skew_gives_no_negative_lag(self) -> None:
        world = World(sample=Sample(1, 7, -2.0, 7, NOW))
        await world.measurer().round(pairs())
        assert world.backlog().lag_seconds == 0.0

    async def test_an_empty_table_has_no_lag(self) -> None:
        world = World()
        await world.measurer().round(pairs())
        assert (world.backlog().lag_seconds, world.backlog().lag_exact) == (0.0, True)

    async def test_a_look_from_the_start_that_takes_too_long_falls_back_to_the_floor(self) -> None:
        world = World(sample=Sample(3, 50, 1.0, 60, NOW))
        measurer = world.measurer()
        await measurer.round(pairs())
        world.now += SWEEP_SECONDS + 1
        world.errors = [too_slow()]
        await measurer.round(pairs())
        assert world.floors == [LOWEST_ID, LOWEST_ID, 50]
        assert (world.backlog().rows, world.backlog().exact) == (3, True)

    async def test_a_count_that_takes_too_long_among_other_pairs_rows_is_estimated(self) -> None:
        world = World(sample=Sample(3, 50, 9.0, 60, NOW), estimate=1234)
        measurer = world.measurer()
        await measurer.round(pairs())
        world.now += 6
        world.errors = [too_slow()]
        await measurer.round(pairs())
        found = world.backlog()
        assert (found.rows, found.exact, found.lag_seconds) == (1234, False, 9.0)

    async def test_dv_13_what_is_too_slow_in_every_way_is_unknown(self) -> None:
        world = World()
        world.errors = [too_slow(), too_slow()]
        await world.measurer().round(pairs())
        assert world.failure().message == "took too long"

    async def test_what_is_no_longer_wanted_is_closed(self) -> None:
        world = World()
        measurer = world.measurer()
        await measurer.round(pairs())
        await measurer.round({})
        assert world.open == 0

    def test_another_namespace_is_another_login(self) -> None:
        [mine] = pairs().values()
        raw = raw_spec(databases=[raw_database("d0", host="server")])
        [theirs] = pairs_of(Key("elsewhere", "shop"), OutboxRelaySpec.model_validate(raw))
        assert LoginId.of(mine) != LoginId.of(theirs)
        assert LoginId.of(mine) == LoginId.of(mine)
