"""The loop over fakes.

Covered: order and completeness, late rows, faults of either side at every step of the cycle, outages, parking and its
bound, the idle back-off and what ends a rest, the hand-over of lanes, the stop request, and what the
status says meanwhile.
"""

from __future__ import annotations

import itertools
import random

import pytest

from outboxrelay import parked
from outboxrelay.ports import PublisherError, Row, SettleRefusedError, StoreError, Wake
from outboxrelay.report import WakeReason
from tests.contract.relay.fakes import FakeStore, Interference
from tests.unit.relay.slow_topic import Client, Topic
from tests.unit.relay.world import World

LOST = StoreError("DatabaseUnreachable", "the session was ended")
AWAY = PublisherError("BrokerUnreachable", "the broker went away")


def fill(world: World, *, rows: int = 45, keys: int = 7) -> list[int]:
    return [world.table.insert(b"key %d" % (number % keys)) for number in range(rows)]


class Once:
    """Raises `error` at the n-th occurrence of a moment."""

    def __init__(self, moment: str, error: Exception, *, occurrence: int = 1) -> None:
        self._moment = moment
        self._error = error
        self._left = occurrence

    def __call__(self, moment: str) -> None:
        if moment == self._moment:
            self._left -= 1
            if self._left == 0:
                raise self._error


def test_every_row_is_sent_once_in_order() -> None:
    world = World()
    written = fill(world)
    world.run()
    assert world.copies() == written
    assert world.board.sent_rows == len(written)


def test_the_time_that_batches_take_until_they_are_acknowledged_is_counted() -> None:
    world = World()
    fill(world, rows=45)
    spent: list[float] = []

    def slowly(moment: str) -> None:
        if moment in ("before publish", "before wait"):
            world.clock.sleep(2)
            spent.append(2)

    world.run(on_publisher=slowly)
    assert world.board.batches == 5
    assert world.board.publish_seconds == pytest.approx(sum(spent), abs=0.1)


def test_a_slow_database_is_not_taken_for_slow_brokers() -> None:
    """The removal of the batch before, which may be refused for hours, and the next read fall into that time."""
    world, topic = World(rebalance_seconds=10_000.0), Topic()
    topic.at_once = 6
    world.publisher = Client(topic, sleep=world.clock.sleep)
    fill(world, rows=45)
    refusals = itertools.repeat(True, 20)
    moments: set[str] = set()

    def slowly(moment: str) -> None:
        moments.add(moment)
        if moment.startswith("before"):
            world.clock.sleep(2)
        if moment == "before settle" and next(refusals, False):
            raise SettleRefusedError("a trigger")

    world.run(on_store=slowly)
    assert {"before ask", "before fetch", "before start_settling"} <= moments
    assert world.board.batches == 5
    assert world.board.publish_seconds == pytest.approx(0, abs=0.1)


def test_rows_that_become_visible_late_are_sent_too() -> None:
    world = World()
    late = world.table.begin()
    lower = late.insert(b"late")
    written = fill(world, rows=30)
    world.run(lambda: len(world.topic.messages) == 30)
    late.commit()
    world.run()
    assert world.copies() == [*written, lower]


@pytest.mark.parametrize(
    ("moment", "occurrence"),
    [
        ("before open", 1),
        ("after open", 1),
        ("before rebalance", 1),
        ("before rebalance", 2),
        ("after rebalance", 1),
        ("after rebalance", 2),
        ("before read", 1),
    ],
)
def test_a_lost_session_with_nothing_in_flight_repeats_nothing(moment: str, occurrence: int) -> None:
    world = World(rebalance_seconds=0.0001)
    written = fill(world)
    world.run(on_store=Once(moment, LOST, occurrence=occurrence))
    assert world.copies() == written
    assert world.board.store_failures == 1


@pytest.mark.parametrize(
    ("moment", "occurrence"),
    [("before start_settling", 1), ("after start_settling", 1), ("before read", 2), ("after read", 2)],
)
@pytest.mark.parametrize("error", [LOST, ZeroDivisionError()])
def test_a_session_lost_while_rows_are_being_removed_repeats_that_batch_only(
    moment: str, occurrence: int, error: Exception
) -> None:
    world = World()
    written = fill(world)
    world.run(on_store=Once(moment, error, occurrence=occurrence))
    assert world.copies() == [*written[:10], *written]


@pytest.mark.parametrize("lost", ["before settle", "before ask"])
def test_a_session_lost_while_the_next_batch_is_handed_over_repeats_two_at_most(lost: str) -> None:
    """The batch before may still be in the table, and rows of the next may have reached the broker."""
    world = World()
    written = fill(world)
    world.run(on_store=Once(lost, LOST, occurrence=2))
    assert world.sent() == written
    assert len(world.copies()) <= len(written) + 20


def test_what_is_being_removed_at_the_request_to_stop_is_removed() -> None:
    world = World()
    written = fill(world)
    world.run(lambda: len(world.topic.messages) == 10)
    assert sorted(world.table.rows) == written[10:]


def test_a_session_lost_when_the_last_rows_are_removed_is_told_of_as_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is tried again then."""
    world = World()
    fill(world)
    world.run(lambda: len(world.topic.messages) == 10, on_store=Once("before settle", LOST))
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        "the session was ended; rows of the last batch may be sent again"
    ]


def test_a_broker_lost_while_rows_are_being_removed_repeats_nothing_of_them() -> None:
    world = World()
    written = fill(world)
    world.run(on_publisher=Once("before publish", AWAY, occurrence=2))
    assert world.copies() == written


def test_rows_that_somebody_locks_while_the_next_batch_is_handed_over_are_waited_for() -> None:
    world = World()
    written = fill(world)
    tries = itertools.count()

    def locked(moment: str) -> None:
        if moment == "before settle" and next(tries) < 3:
            raise SettleRefusedError("somebody locks them")

    world.run(on_store=locked)
    assert world.copies() == written
    assert world.board.database.ok


def test_a_lost_answer_to_the_settling_repeats_nothing() -> None:
    world = World()
    written = fill(world)
    world.run(on_store=Once("after settle", LOST, occurrence=2))
    assert world.copies() == written


@pytest.mark.parametrize(
    "moment", ["before publish", "after publish", "before wait", "after wait", "before outcome", "after outcome"]
)
def test_a_lost_broker_repeats_that_batch_only(moment: str) -> None:
    world = World()
    written = fill(world)
    world.run(on_publisher=Once(moment, AWAY, occurrence=2))
    assert world.sent() == written
    assert len(world.copies()) <= len(written) + 10
    assert world.board.publisher_failures == 1


def test_a_broker_that_fails_in_the_middle_of_a_batch_keeps_the_order() -> None:
    world = World()
    written = fill(world)
    world.topic.breaks_after = 17
    world.run()
    assert world.sent() == written
    assert world.copies() == [*written[:17], *written[10:]]


@pytest.mark.parametrize("seed", range(40))
def test_random_faults_lose_and_reorder_nothing(seed: int) -> None:
    """Any call may fail before or after it took effect; repeats stay within two batches for each failure."""
    rng = random.Random(seed)
    world = World()
    failures = 0
    calm_from = world.clock.now + 200

    def interfere_with(error: Exception) -> Interference:
        def interfere(_moment: str) -> None:
            nonlocal failures
            if rng.random() < 0.05:
                world.table.insert(b"key %d" % rng.randrange(5))
            if world.clock.now < calm_from and rng.random() < 0.15:
                failures += 1
                raise error

        return interfere

    fill(world, rows=60, keys=5)
    world.run(
        lambda: world.clock.now > calm_from and not world.table.rows,
        on_store=interfere_with(LOST),
        on_publisher=interfere_with(AWAY),
        within=100_000,
        seed=seed,
    )
    assert failures > 0
    assert sorted(world.sent()) == list(range(1, world.table.draw()))
    for key in {message.key for message in world.topic.messages}:
        assert world.sent(key) == sorted(world.sent(key))
    assert len(world.copies()) <= len(world.sent()) + 20 * failures


def test_rc_07_an_outage_of_the_broker_parks_nothing_and_uses_up_no_attempt() -> None:
    """cases.md RC-07 (b)."""
    world = World()
    written = fill(world)
    world.topic.down = AWAY
    until = world.clock.now + 3600
    world.run(lambda: world.clock.now >= until, within=4000)
    assert world.board.broker.reason == "BrokerUnreachable"
    assert world.board.database.ok
    assert world.board.lanes_owned == ()
    world.topic.down = None
    world.run()
    assert world.copies() == written
    assert world.board.row_faults == 0
    assert world.board.parked_total == 0


def test_rc_05_a_broker_that_does_not_answer_is_waited_for_with_one_copy_of_each_row() -> None:
    """cases.md RC-05 (b): the batch stays where it is; the loop lives on and says what is wrong."""
    world = World()
    written = fill(world)
    world.topic.paused = True
    until = world.clock.now + 600

    def over() -> bool:
        if world.clock.now >= until and world.topic.paused:
            assert world.board.broker.reason == "BrokerUnreachable"
            assert not world.board.ready
            assert world.board.cycles > 1000
            world.topic.resume()
        return not world.table.rows

    world.run(over, within=700)
    assert world.copies() == written
    assert world.board.ready


def test_a_session_lost_while_waiting_for_the_broker_forgets_the_batch() -> None:
    """Another relay may own the lanes by then: what still waits in the client must not be sent."""
    world = World()
    written = fill(world, rows=5)
    world.topic.paused = True
    other = FakeStore(world.table)
    taken_over = False

    def interfere(moment: str) -> None:
        nonlocal taken_over
        if moment == "after wait" and not taken_over and world.clock.now > 1010:
            world.table.terminate(world.store)
            other.open()
            assert other.rebalance() == frozenset(range(4))
            taken_over = True

    def over() -> bool:
        if taken_over and world.board.store_failures == 1:
            world.topic.resume()
            return world.clock.now > 1030
        return False

    world.run(over, on_publisher=interfere)
    assert world.copies() == []
    other.close()
    world.run()
    assert world.copies() == written


def test_rr_02_reconnecting_backs_off_to_one_attempt_in_the_given_time() -> None:
    """cases.md RR-02."""
    world = World(reconnect_max_seconds=5.0)
    world.table.down = LOST
    attempts: list[float] = []
    until = world.clock.now + 600

    def count(moment: str) -> None:
        if moment == "before open":
            attempts.append(world.clock.now)

    world.run(lambda: world.clock.now >= until, on_store=count, within=700)
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts[10:])]
    assert gaps
    assert min(gaps) >= 5
    assert max(gaps) <= 8


def gaps_between(world: World, moment: str, *, on_store: str = "", on_publisher: str = "") -> list[float]:
    """Seconds between occurrences of `moment` in half an hour in which one call always fails."""
    seen: list[float] = []
    until = world.clock.now + 1800

    def interfere(error: Exception, failing: str) -> Interference:
        def act(now: str) -> None:
            if now == moment:
                seen.append(world.clock.now)
            if now == failing:
                raise error

        return act

    world.run(
        lambda: world.clock.now >= until,
        on_store=interfere(LOST, on_store),
        on_publisher=interfere(AWAY, on_publisher),
        within=2000,
    )
    return [later - earlier for earlier, later in itertools.pairwise(seen[10:])]


def test_a_database_that_only_refuses_the_settling_is_not_asked_at_full_speed() -> None:
    """Each attempt sends the batch again."""
    world = World()
    fill(world)
    gaps = gaps_between(world, "before settle", on_store="before settle")
    assert gaps
    assert min(gaps) >= 5


def test_a_broker_that_only_refuses_rows_is_not_asked_at_full_speed() -> None:
    world = World()
    fill(world)
    gaps = gaps_between(world, "before publish", on_publisher="before outcome")
    assert gaps
    assert min(gaps) >= 5


def test_the_brokers_state_is_known_while_the_database_is_down() -> None:
    world = World()
    world.table.down = LOST
    world.run(lambda: world.board.broker.ok, within=30)
    changed = False

    def topic_goes() -> bool:
        nonlocal changed
        if world.board.broker.ok and not changed:
            world.topic.down = PublisherError("TopicMissing", "there is no topic t")
            changed = True
        return world.board.broker.reason == "TopicMissing"

    world.run(topic_goes, within=30)


def test_a_faulty_row_holds_back_its_own_key_only() -> None:
    world = World()
    bad = world.table.insert(b"bad", None)
    written = fill(world, rows=25)
    behind = [world.table.insert(b"bad") for _ in range(3)]
    world.run(lambda: len(world.topic.messages) == 25)
    assert world.copies() == written
    assert sorted(world.table.rows) == [bad, *behind]
    report = world.board.report()
    assert report.parked_total == 1
    assert (report.parked[0].row_id, report.parked[0].key, report.parked[0].reason) == (
        str(bad),
        "bad",
        "PayloadIsNull",
    )
    assert report.last_error is not None
    assert report.last_error.row_id == str(bad)


def test_a_parked_row_is_tried_again_with_back_off_and_then_its_key_follows_in_order() -> None:
    world = World()
    refused = True
    tries: list[float] = []

    def refuses(row: Row) -> bool:
        if row.key != b"bad" or not refused:
            return False
        tries.append(world.clock.now)
        return True

    world.topic.refuses = refuses
    bad = [world.table.insert(b"bad") for _ in range(4)]
    good = fill(world, rows=20)

    def over() -> bool:
        nonlocal refused
        if len(tries) == 5 and refused:
            assert world.board.parked_total == 1
            refused = False
        return not world.table.rows

    world.run(over)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert all(low <= gap <= high + 1 for gap, low, high in zip(gaps, (5, 10, 20, 40), (7.5, 15, 30, 60), strict=True))
    assert world.board.row_faults == 5
    assert world.sent(b"bad") == bad
    assert world.copies() == [*good, *bad]
    assert world.board.parked_total == 0


def test_rc_07_more_faulty_rows_than_a_batch_block_nobody() -> None:
    """cases.md RC-07 (a)."""
    world = World()
    bad = [world.table.insert(b"bad %d" % number, None) for number in range(30)]
    good = fill(world, rows=10)
    world.run(lambda: len(world.topic.messages) == 10, within=2)
    assert world.copies() == good
    assert world.board.parked_total == len(bad)


def test_a_faulty_row_without_a_key_holds_back_itself_only() -> None:
    world = World()
    bad = world.table.insert(None, None)
    good = [world.table.insert(None) for _ in range(15)]
    world.run(lambda: len(world.topic.messages) == 15, within=2)
    assert world.copies() == good
    assert list(world.table.rows) == [bad]
    assert world.board.report().parked[0].key is None


def test_a_parked_row_that_somebody_deletes_frees_its_key() -> None:
    world = World()
    bad = world.table.insert(b"bad", None)
    world.run(lambda: world.board.parked_total == 1)
    behind = world.table.insert(b"bad")
    del world.table.rows[bad]
    world.run()
    assert world.copies() == [behind]


def test_a_deleted_parked_row_is_forgotten_in_the_status() -> None:
    world = World()
    bad = world.table.insert(b"bad", None)
    parked = False

    def forgotten() -> bool:
        nonlocal parked
        if world.board.parked_total == 1:
            parked = True
            world.table.rows.pop(bad, None)
        return parked and world.board.parked_total == 0

    world.run(forgotten)


def test_rc_07_good_rows_pass_any_number_of_faulty_ones() -> None:
    """cases.md RC-07 (a): more than one batch beyond those of which details are kept."""
    world = World(max_parked_keys=3)
    bad = [world.table.insert(b"bad %d" % number, None) for number in range(30)]
    bad += [world.table.insert(None, None) for _ in range(30)]
    behind = [world.table.insert(b"bad 5"), world.table.insert(b"bad 20")]
    good = fill(world, rows=20)
    world.run(lambda: len(world.topic.messages) == 20, within=2)
    assert world.copies() == good
    assert sorted(world.table.rows) == [*bad, *behind]
    assert world.board.parked_total == 60
    assert len(world.board.report().parked) == 3
    assert world.board.ready


def test_rows_beyond_those_shown_are_tried_again_and_their_keys_follow_in_order() -> None:
    world = World(max_parked_keys=3)
    bad = [world.table.insert(b"bad %d" % number, None) for number in range(30)]
    behind = [world.table.insert(b"bad %d" % number) for number in range(30)]
    world.run(lambda: world.board.parked_total == 30, within=2)
    world.topic.compacted = True
    world.run()
    assert sorted(world.copies()) == [*bad, *behind]
    for number in range(30):
        assert world.copies(b"bad %d" % number) == [bad[number], behind[number]]


def test_beyond_every_bound_good_rows_go_on_slowly_and_the_state_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "CROWD_ROWS", 2)
    world = World(max_parked_keys=1)
    bad = [world.table.insert(b"bad %d" % number, None) for number in range(6)]
    behind = [world.table.insert(b"bad 5") for _ in range(2)]
    good = fill(world, rows=20)
    world.run(lambda: len(world.topic.messages) == 20)
    assert world.copies() == good
    assert sorted(world.table.rows) == [*bad, *behind]
    assert world.board.parked_total == 3
    until = world.clock.now + 60
    world.run(lambda: world.clock.now >= until)
    assert world.board.database.reason == "DatabaseError"
    assert "more than 3 rows cannot be sent" in world.board.database.message
    for row_id in bad:
        del world.table.rows[row_id]
    world.run()
    assert world.copies() == [*good, *behind]


def test_rows_that_somebody_locks_are_settled_when_they_are_free_and_sent_once() -> None:
    world = World()
    written = fill(world, rows=10)
    locked_until = world.clock.now + 100
    seen: list[bool] = []

    def interfere(moment: str) -> None:
        if moment == "before settle" and world.clock.now < locked_until:
            seen.append(world.board.database.ok)
            raise SettleRefusedError("another session locks them")

    world.run(on_store=interfere)
    assert world.copies() == written
    assert seen[-1] is False
    assert world.board.cycles > 100
    assert world.board.store_failures == 0
    assert world.board.database.ok


def test_rows_that_cannot_be_settled_are_tried_soon_and_then_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """Each attempt changes the whole batch and undoes it. Every batch begins anew, and each cause is logged once."""
    world = World(reconnect_max_seconds=30.0)
    fill(world, rows=20)
    tries: list[float] = []
    batches: list[list[float]] = []

    def interfere(moment: str) -> None:
        if moment == "after settle":
            batches.append([now - tries[0] for now in tries])
            tries.clear()
        if moment == "before settle":
            tries.append(world.clock.now)
            if world.clock.now - tries[0] < 600:
                raise SettleRefusedError("a lock" if world.clock.now - tries[0] < 300 else "a trigger")

    world.run(on_store=interfere, within=3000)
    assert len(batches) == 2
    for times in batches:
        assert len([now for now in times if now < 2]) >= 3
        assert len(times) < 40
    assert world.board.cycles > 2000
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == ["a lock", "a trigger"] * 2


def test_a_session_that_ends_before_rows_can_be_settled_is_noticed_at_once() -> None:
    """Its lanes are another relay's by then."""
    world = World()
    fill(world, rows=10)
    ended: list[float] = []
    end_at = world.clock.now + 200

    def interfere(moment: str) -> None:
        if moment == "before settle" and not ended:
            raise SettleRefusedError("a trigger")

    def end() -> bool:
        if world.clock.now >= end_at and not ended:
            ended.append(world.clock.now)
            world.table.terminate(world.store)
        return bool(ended) and world.board.store_failures == 1

    world.run(end, on_store=interfere, within=300)
    assert world.clock.now - ended[0] < 1


def test_rows_that_somebody_locks_do_not_delay_the_end() -> None:
    world = World()
    fill(world, rows=10)
    end_at = world.clock.now + 30

    def interfere(moment: str) -> None:
        if moment == "before settle":
            raise SettleRefusedError("another session locks them")

    world.run(lambda: world.clock.now >= end_at, within=31, on_store=interfere)
    assert len(world.table.rows) == 10
    assert world.board.store_failures == world.board.publisher_failures == 0


def test_rows_that_can_be_settled_again_when_the_relay_is_to_end_are_not_sent_twice() -> None:
    """However long it would have waited for its next attempt."""
    world = World()
    fill(world, rows=10)
    end_at = world.clock.now + 100
    tries: list[float] = []

    def interfere(moment: str) -> None:
        if moment == "before settle":
            tries.append(world.clock.now)
            if world.clock.now < end_at:
                raise SettleRefusedError("another session locks them")

    world.run(lambda: world.clock.now >= end_at, within=101, on_store=interfere)
    assert world.table.rows == {}
    assert tries[-2] < end_at


def test_rows_parked_in_lanes_that_were_lost_are_forgotten() -> None:
    """Who has the lanes counts them."""
    world = World()
    bad = [world.table.insert(b"bad %d" % number, None) for number in range(8)]
    other = FakeStore(world.table)
    lost = False

    def interfere(moment: str) -> None:
        nonlocal lost
        if moment == "before read" and world.board.parked_total == len(bad) and not lost:
            lost = True
            world.table.terminate(world.store)
            other.open()
            other.rebalance()
            raise LOST

    world.run(lambda: lost and world.board.database.ok, on_store=interfere, within=20)
    assert world.board.lanes_owned == ()
    assert world.board.parked_total == 0


def test_rc_02_a_database_that_refuses_to_be_read_is_not_called_well_in_between() -> None:
    """cases.md RC-02: the table is locked; each new session can be opened, takes its lanes, and then waits again."""
    world = World()
    world.table.insert(b"k")
    seen: list[bool] = []

    def interfere(moment: str) -> None:
        if moment == "before read":
            if len(seen) < 5:
                seen.append(world.board.database.ok)
                raise StoreError("DatabaseError", "the table is locked")
            seen.append(world.board.database.ok)

    world.run(lambda: not world.table.rows and world.board.database.ok, on_store=interfere)
    assert seen[:6] == [True, False, False, False, False, False]


def test_an_idle_relay_polls_less_and_less_often() -> None:
    world = World(idle_poll_min_ms=2, idle_poll_max_ms=50)
    until = world.clock.now + 5
    sleeps = world.run(lambda: world.clock.now >= until).sleeps
    assert sleeps[0] <= 0.0025
    assert all(0.0375 <= sleep <= 0.0625 for sleep in sleeps[8:])
    assert world.board.cycles >= len(sleeps)


def test_a_row_resets_the_idle_back_off() -> None:
    world = World()
    until = world.clock.now + 2
    written = 0

    def over() -> bool:
        nonlocal written
        if world.clock.now > until - 1 and not written:
            written = world.table.insert(b"k")
        return world.clock.now >= until

    sleeps = world.run(over).sleeps
    assert sum(1 for sleep in sleeps if sleep <= 0.0025) == 2
    assert world.copies() == [written]


def test_an_idle_relay_notices_a_missing_topic() -> None:
    world = World()
    missing = PublisherError("TopicMissing", "there is no topic t")
    seen = False

    def missing_and_back() -> bool:
        nonlocal seen
        if not seen and world.board.ready:
            world.topic.down = missing
        if world.board.broker.reason == "TopicMissing":
            assert world.board.last_error is not None
            assert world.board.last_error.reason == "TopicMissing"
            seen = True
            world.topic.down = None
        return seen and world.board.ready

    world.run(missing_and_back, within=30)


def test_lanes_of_a_newcomer_are_given_up_between_batches_and_nothing_is_lost() -> None:
    world = World(rebalance_seconds=0.001)
    written = fill(world, rows=100)
    newcomer = FakeStore(world.table)

    def join(moment: str) -> None:
        if moment == "after settle" and not newcomer.session:
            newcomer.open()
            newcomer.rebalance()

    world.run(lambda: len(world.board.lanes_owned) == 2, on_store=join)
    mine = world.copies()
    rest = sorted(world.table.rows)
    assert sorted([*mine, *rest]) == written
    newcomer.close()
    world.run()
    assert world.copies() == [*mine, *rest]


def test_parked_rows_are_not_lost_when_their_lane_comes_and_goes() -> None:
    world = World(rebalance_seconds=0.001)
    world.topic.refuses = lambda row: row.key == b"bad"
    bad = [world.table.insert(b"bad") for _ in range(2)]
    guest = FakeStore(world.table)
    phase = 0

    def come_and_go() -> bool:
        nonlocal phase
        if phase == 0 and world.board.parked_total == 1:
            guest.open()
            guest.rebalance()
            phase = 1
        elif phase == 1 and len(world.board.lanes_owned) == 2:
            guest.close()
            world.topic.refuses = lambda _row: False
            phase = 2
        return not world.table.rows

    world.run(come_and_go)
    assert world.copies() == bad


def test_a_conflict_is_shown_and_waited_out() -> None:
    world = World()
    written = fill(world)
    other = FakeStore(world.table, owner="somebody/else")
    other.open()
    other.rebalance()
    world.run(lambda: world.board.store_failures >= 3)
    assert world.board.database.reason == "Conflict"
    assert not world.board.ready
    other.close()
    world.run()
    assert world.copies() == written


def test_the_stop_request_lets_the_batch_in_flight_finish() -> None:
    world = World()
    written = fill(world)
    world.run(lambda: len(world.topic.messages) >= 10)
    assert world.copies() == written[:10]
    assert sorted(world.table.rows) == written[10:]
    assert not world.store.session
    assert not world.table.holders


def test_rr_10_the_stop_request_does_not_wait_for_ever_for_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    """cases.md RR-10 with the broker down: the batch is dropped, and sent again by whoever comes next.

    It is told as what it is, not as a fault of the relay's own.
    """
    world = World()
    written = fill(world)
    world.topic.paused = True
    asked = world.clock.now + 30
    world.run(lambda: world.clock.now >= asked)
    assert world.clock.now - asked < 7
    assert sorted(world.table.rows) == written
    assert world.board.store_failures == world.board.publisher_failures == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "its rows will be sent again" in caplog.text
    world.topic.resume()
    world.run()
    assert world.copies() == written


def test_a_fault_of_the_relay_itself_does_not_end_the_loop() -> None:
    world = World()
    written = fill(world)
    world.run(on_store=Once("after read", ZeroDivisionError(), occurrence=1))
    assert world.copies() == written


LISTENING = Wake(ok=True, reason="Listening", message="")


def test_while_rows_are_announced_an_idle_relay_polls_far_less() -> None:
    world = World(announced_poll_ms=60_000)
    world.table.wake = LISTENING
    polls = 0

    def count(moment: str) -> None:
        nonlocal polls
        polls += moment == "before read"

    until = world.clock.now + 300
    world.run(lambda: world.clock.now >= until, on_store=count)
    assert 5 <= polls <= 20
    assert world.board.report().wake is not None
    assert world.board.wake is not None
    assert world.board.wake.ok


def test_an_announcement_ends_the_rest() -> None:
    world = World(announced_poll_ms=3_600_000)
    world.table.wake = LISTENING
    written: list[int] = []
    began = world.clock.now

    def over() -> bool:
        if world.clock.now > began + 100 * (len(written) + 1):
            written.append(world.table.insert(b"k"))
        return len(written) == 5 and not world.table.rows

    world.run(over, within=600)
    assert world.copies() == written


def test_a_row_that_nobody_announced_is_found_by_the_net() -> None:
    world = World(announced_poll_ms=60_000)
    world.table.wake = LISTENING
    began = world.clock.now
    written: list[int] = []

    def over() -> bool:
        if not written and world.clock.now > began + 100:
            written.append(world.table.insert(b"k"))
            world.table.announcements = 0
        return bool(written) and not world.table.rows

    world.run(over, within=300)
    assert world.copies() == written


def test_news_that_are_none_for_this_relay_make_it_poll_no_more_than_it_would_without() -> None:
    """A table that others write to all day: before the relay rests there is news again, of their rows."""
    asked = []
    for wake in (None, LISTENING):
        world = World()
        world.table.wake = wake
        polls = 0

        def others_write(moment: str, world: World = world) -> None:
            nonlocal polls
            if moment == "after read":
                polls += 1
                world.table.announcements += 1

        def over(world: World = world, until: float = world.clock.now + 60) -> bool:
            return world.clock.now >= until

        world.run(over, on_store=others_write)
        asked.append(polls)
    assert asked[1] <= asked[0] * 1.1


@pytest.mark.parametrize("reason", ["TriggerMissing", "NotHeard", "Starting"])
def test_while_it_is_not_sure_that_rows_are_announced_it_polls_at_the_usual_pace(
    reason: WakeReason, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(announced_poll_ms=3_600_000)
    world.table.wake = Wake(ok=False, reason=reason, message="not announced, polling instead, do this")
    until = world.clock.now + 30
    sleeps = world.run(lambda: world.clock.now >= until).sleeps
    assert all(sleep <= 0.0625 for sleep in sleeps)
    assert world.board.wake is not None
    assert (world.board.wake.ok, world.board.wake.reason) == (False, reason)
    told = [each for each in caplog.records if "polling instead" in each.message]
    assert len(told) == (reason != "Starting")


def test_a_parked_row_is_tried_again_though_the_relay_rests() -> None:
    world = World(announced_poll_ms=3_600_000)
    world.table.wake = LISTENING
    row_id = world.table.insert(b"k")
    world.topic.refuses = lambda _row: True
    until = world.clock.now + 60

    def over() -> bool:
        if world.clock.now > until:
            world.topic.refuses = lambda _row: False
        return not world.table.rows

    world.run(over, within=300)
    assert world.copies() == [row_id]


def test_lanes_that_are_taken_over_are_looked_at_though_the_relay_rests() -> None:
    world = World(announced_poll_ms=3_600_000)
    world.table.wake = LISTENING
    other = FakeStore(world.table)
    other.open()
    other.rebalance()
    written = [world.table.insert(b"%d" % number) for number in range(20)]
    until = world.clock.now + 60

    def over() -> bool:
        if other.session and world.clock.now > until:
            world.table.terminate(other)
        elif other.session and len(world.table.inside) == 2:
            other.rebalance()
        return not world.table.rows

    world.run(over, within=300)
    assert sorted(world.copies()) == written
    assert world.copies() != written, "the relay had no lanes of its own before"
