"""What the policies make of rows that cannot be sent as they are, over fakes.

Covered: when a row is given up, what a letter says, order of its key, what the dead-letter topic's own trouble does and
does not do, lanes that are halted and go on, and that outages use up nobody's attempts. Parking itself is covered with
the engine.
"""

from __future__ import annotations

import itertools
import zlib
from typing import Literal

import pytest

from outboxrelay.config import OnError
from outboxrelay.ports import PublisherError, StoreError
from outboxrelay.report import RowFaultReason
from tests.contract.relay.fakes import Delivered, FakeStore
from tests.unit.relay.world import World

AWAY = PublisherError("BrokerUnreachable", "the broker went away")
LOST = StoreError("DatabaseUnreachable", "the session was ended")


def world(*, attempts: int = 3, **tuning: float) -> World:
    made = World(**tuning)
    made.on_error = OnError(policy="DeadLetter", topic="dead", attempts=attempts)
    return made


def text(message: Delivered, name: str) -> str:
    value = dict(message.headers)[name]
    assert isinstance(value, bytes)
    return value.decode()


def test_a_row_goes_to_the_dead_letter_topic_after_its_last_attempt_and_its_key_follows_in_order() -> None:
    there = world(attempts=3)
    bad = there.table.insert(b"bad", None, headers=b'{"trace": "1"}')
    behind = [there.table.insert(b"bad") for _ in range(3)]
    good = [there.table.insert(b"good") for _ in range(20)]
    started = there.clock.now
    there.run()
    assert 15 <= there.clock.now - started <= 25
    assert there.copies(b"good") == good
    assert there.copies(b"bad") == behind
    (letter,) = there.letters.messages
    assert (letter.key, letter.value) == (b"bad", None)
    assert letter.headers[:3] == (
        ("outbox-id", b"db.public.outbox:%d" % bad),
        ("outbox-type", b"created"),
        ("trace", b"1"),
    )
    assert text(letter, "outbox-error-reason") == "PayloadIsNull"
    assert text(letter, "outbox-error-attempts") == "3"
    assert text(letter, "outbox-error-topic") == "t"
    assert text(letter, "outbox-error-source") == "db.public.outbox"
    assert text(letter, "outbox-error-row") == str(bad)
    assert text(letter, "outbox-error-time") == "1970-01-01T00:00:00.000Z"
    assert str(bad) in text(letter, "outbox-error-message")
    report = there.board.report()
    assert report.dead_lettered == {"PayloadIsNull": 1}
    assert (report.parked_total, report.row_faults, report.sent_rows) == (0, 3, 23)


def test_malformed_headers_are_in_the_letter_as_they_are() -> None:
    there = world(attempts=1)
    there.table.insert(b"bad", headers=b'{"a": [1]}')
    there.run()
    (letter,) = there.letters.messages
    assert text(letter, "outbox-error-headers") == '{"a": [1]}'
    assert text(letter, "outbox-error-reason") == "HeadersInvalid"


def test_a_reason_that_cannot_be_written_beside_the_row_is_told_once_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = World()
    there.table.note_refusal = "a trigger forbids it"
    bad = there.table.insert(b"bad", None)
    behind = there.table.insert(b"bad")
    good = [there.table.insert(b"good") for _ in range(5)]
    there.run(lambda: there.board.row_faults >= 3, within=4000)
    assert there.sent() == good
    assert there.board.parked_total == 1
    assert there.board.report().database.ok
    assert caplog.text.count("a trigger forbids it") == 1
    assert there.table.notes == {}
    there.table.note_refusal = None
    tried = there.board.row_faults
    there.run(lambda: there.board.row_faults > tried, within=4000)
    assert there.table.notes == {bad: "PayloadIsNull"}
    assert behind in there.table.rows


@pytest.mark.parametrize("attempts", [1, 2])
def test_rc_07_more_poison_rows_than_anything_holds_leave_the_table(attempts: int) -> None:
    there = world(attempts=attempts, max_parked_keys=5)
    bad = [there.table.insert(b"bad %d" % number, None) for number in range(40)]
    bad += [there.table.insert(None, None) for _ in range(40)]
    behind = [there.table.insert(b"bad %d" % number) for number in range(40)]
    good = [there.table.insert(b"good %d" % number) for number in range(10)]
    there.run(within=5000)
    assert sorted(there.sent()) == sorted(behind + good)
    assert sorted(int(text(letter, "outbox-error-row")) for letter in there.letters.messages) == bad
    assert there.board.report().dead_lettered == {"PayloadIsNull": 80}
    assert there.board.parked_total == 0


def test_rc_07_an_outage_uses_up_nobodys_attempts() -> None:
    there = world(attempts=3)
    written = [there.table.insert(b"k") for _ in range(5)]
    there.topic.down = AWAY
    until = there.clock.now + 3600
    there.run(lambda: there.clock.now >= until, within=4000)
    there.topic.down = None
    there.run()
    assert there.copies() == written
    assert there.letters.messages == []


@pytest.mark.parametrize("outage", ["silent", "down"])
def test_the_connection_for_letters_ends_with_an_outage(outage: str) -> None:
    """A client that nobody asks keeps all that it complains of, for as long as its brokers are away."""
    there = world(attempts=1)
    there.table.insert(b"bad", None)
    open_then: list[bool] = []

    def over() -> bool:
        if not there.letters.messages:
            return False
        if not open_then:
            open_then.append(there.letters.clients[-1]._open)
            there.table.insert(b"good")
            there.topic.paused = outage == "silent"
            there.topic.down = None if outage == "silent" else AWAY
        if there.board.broker.ok:
            return False
        open_then.append(there.letters.clients[-1]._open)
        return True

    there.table.insert(b"bad", None)
    there.run(over)
    assert open_then[:2] == [True, False]


@pytest.mark.parametrize("reason", ["TopicMissing", "TopicAuthorizationFailed"])
@pytest.mark.parametrize("policy", ["DeadLetter", "Halt"])
@pytest.mark.parametrize("details", [100, 1])
def test_rc_07_a_topic_that_is_not_there_for_a_while_gives_no_row_up(
    reason: RowFaultReason, policy: Literal["DeadLetter", "Halt"], details: int
) -> None:
    """Brokers that just start say so of topics that are there; the relay has no way to tell."""
    there = World(max_parked_keys=details)
    there.on_error = OnError(policy=policy, topic="dead" if policy == "DeadLetter" else None, attempts=1)
    written = [there.table.insert(b"key %d" % (number % 3)) for number in range(9)]
    there.topic.refusal = reason
    there.topic.refuses = lambda _row: True
    until = there.clock.now + 600
    there.run(lambda: there.clock.now >= until, within=700)
    assert there.board.halted_lanes == ()
    assert there.board.row_faults >= 9
    there.topic.refuses = lambda _row: False
    there.run()
    assert sorted(there.copies()) == written
    assert there.letters.messages == []


def test_rc_07_attempts_for_a_missing_topic_do_not_count_with_others() -> None:
    there = world(attempts=2)
    there.table.insert(b"k")
    there.topic.refusal = "TopicMissing"
    there.topic.refuses = lambda _row: True

    def over() -> bool:
        if there.board.row_faults == 3:
            there.topic.refusal = "RowRejected"
        return not there.table.rows

    there.run(over)
    assert there.board.row_faults == 5
    assert there.board.report().dead_lettered == {"RowRejected": 1}


def test_a_dead_letter_topic_that_is_missing_keeps_the_row_and_no_other() -> None:
    there = world(attempts=1)
    there.letters.down = PublisherError("TopicMissing", "there is no topic dead")
    bad = there.table.insert(b"bad", None)
    behind = there.table.insert(b"bad")
    good = [there.table.insert(b"good") for _ in range(25)]
    there.run(lambda: len(there.topic.messages) == 25, within=5)
    assert there.copies() == good
    assert sorted(there.table.rows) == [bad, behind]
    report = there.board.report()
    assert report.broker.ok
    assert "there is no topic dead" in report.parked[0].message
    there.letters.down = None
    there.run()
    assert there.copies() == [*good, behind]
    assert len(there.letters.messages) == 1


def test_a_dead_letter_topic_that_is_missing_is_not_asked_for_each_row() -> None:
    there = world(attempts=1)
    there.letters.down = PublisherError("TopicMissing", "there is no topic dead")
    asked: list[float] = []
    there.on_letters = lambda moment: asked.append(there.clock.now) if moment == "before open" else None
    written: list[int] = []

    def over() -> bool:
        if there.board.parked_total == len(written):
            written.append(there.table.insert(b"bad %d" % len(written), None))
        return len(written) > 20

    there.run(over, within=5)
    assert len(asked) == 1


def test_a_dead_letter_topic_that_falls_silent_delays_the_others_for_a_while_only() -> None:
    there = world(attempts=1)
    there.letters.paused = True
    bad = there.table.insert(b"bad", None)
    good = [there.table.insert(b"good") for _ in range(25)]
    there.run(lambda: len(there.topic.messages) == 25, within=12)
    assert there.copies() == good
    assert list(there.table.rows) == [bad]
    there.letters.resume()
    there.run()
    assert there.board.report().dead_lettered == {"PayloadIsNull": 1}


def test_a_row_that_the_dead_letter_topic_refuses_stays_parked() -> None:
    there = world(attempts=1)
    there.letters.refuses = lambda row: row.key == b"worse"
    worse = there.table.insert(b"worse", None)
    bad = there.table.insert(b"bad", None)
    there.run(lambda: there.board.dead_lettered == {"PayloadIsNull": 1})
    assert list(there.table.rows) == [worse]
    assert [text(letter, "outbox-error-row") for letter in there.letters.messages] == [str(bad)]
    assert "the dead-letter topic does not take it" in there.board.report().parked[0].message


def test_a_row_is_only_removed_after_its_letter_was_acknowledged() -> None:
    there = world(attempts=1)
    bad = there.table.insert(b"bad", None)
    there.letters.paused = True
    settled: list[int] = []

    def interfere(moment: str) -> None:
        if moment == "before settle":
            settled.append(len(there.letters.messages))

    until = there.clock.now + 60
    there.run(lambda: there.clock.now >= until, within=100, on_store=interfere)
    assert settled == []
    assert list(there.table.rows) == [bad]


@pytest.mark.parametrize("moment", ["before settle", "after settle"])
def test_a_session_lost_while_a_dead_letter_is_settled_repeats_the_letter_at_most(moment: str) -> None:
    there = world(attempts=1)
    bad = there.table.insert(b"bad", None)
    behind = there.table.insert(b"bad")
    failed = False

    def interfere(now: str) -> None:
        nonlocal failed
        if now == moment and not failed:
            failed = True
            raise LOST

    there.run(on_store=interfere)
    assert there.copies() == [behind]
    assert {text(letter, "outbox-error-row") for letter in there.letters.messages} == {str(bad)}
    assert len(there.letters.messages) == (2 if moment == "before settle" else 1)


def test_a_session_lost_while_a_dead_letter_is_in_flight_removes_nothing() -> None:
    there = world(attempts=1)
    there.letters.paused = True
    bad = there.table.insert(b"bad", None)

    def lose(moment: str) -> None:
        if moment == "before wait":
            there.table.terminate(there.store)

    there.on_letters = lose
    there.run(lambda: there.board.store_failures == 1, within=20)
    assert list(there.table.rows) == [bad]


def test_a_row_that_is_mended_before_its_last_attempt_goes_where_it_belongs() -> None:
    there = world(attempts=3)
    refused = True
    there.topic.refuses = lambda _row: refused
    written: list[int] = [there.table.insert(b"k") for _ in range(3)]

    def over() -> bool:
        nonlocal refused
        refused = there.board.row_faults < 2
        return not there.table.rows

    there.run(over)
    assert there.copies() == written
    assert there.letters.messages == []


def test_a_row_without_its_payload_is_no_letter() -> None:
    """What was not read for its size cannot be sent whole."""
    there = world(attempts=1)
    there.table.insert(b"huge", b"x" * (1 << 20) + b"y")
    there.run(lambda: there.board.row_faults == 3, within=60)
    assert there.letters.messages == []
    assert len(there.table.rows) == 1


# -- Halt


def halting(*, attempts: int = 1, **tuning: float) -> World:
    made = World(**tuning)
    made.on_error = OnError(policy="Halt", attempts=attempts)
    return made


def in_lane(there: World, lane: int, *, count: int = 1, start: int = 0) -> list[bytes]:
    """Keys of a lane of the fake table."""
    keys = (b"key %d" % number for number in itertools.count(start))
    return list(itertools.islice((key for key in keys if zlib.crc32(key) % there.table.lanes == lane), count))


def test_a_halted_lane_stands_still_and_the_others_go_on() -> None:
    there = halting()
    bad_key, neighbour = in_lane(there, 2, count=2)
    (elsewhere,) = in_lane(there, 1)
    bad = there.table.insert(bad_key, None)
    behind: list[int] = []
    passing: list[int] = []
    until = there.clock.now + 300

    def over() -> bool:
        if there.board.halted_lanes == (2,) and not behind:
            behind.extend(there.table.insert(key) for key in (neighbour, bad_key, neighbour))
            passing.extend(there.table.insert(elsewhere) for _ in range(25))
        return there.clock.now >= until

    there.run(over, within=400)
    assert there.copies() == passing
    assert sorted(there.table.rows) == [bad, *behind]
    report = there.board.report()
    assert report.halted_lanes == (2,)
    assert report.parked[0].row_id == str(bad)
    assert report.parked[0].attempts > 3
    assert report.database.ok
    assert report.broker.ok


@pytest.mark.parametrize("how", ["mended", "deleted"])
def test_a_halted_lane_goes_on_in_order_when_its_row_is_mended_or_gone(how: str) -> None:
    there = halting()
    bad_key, neighbour = in_lane(there, 2, count=2)
    bad = there.table.insert(bad_key, None)
    written: list[int] = []

    def over() -> bool:
        if there.board.halted_lanes == (2,) and not written:
            written.extend(there.table.insert(key) for key in (neighbour, bad_key, neighbour, bad_key))
            if how == "deleted":
                del there.table.rows[bad]
            else:
                there.table.rows[bad] = there.table.rows[bad]._replace(payload=b"{}")
        return bool(written) and not there.table.rows

    there.run(over)
    assert there.copies() == (written if how == "deleted" else [bad, *written])
    assert there.board.halted_lanes == ()
    assert there.board.parked_total == 0


def test_a_trial_sends_nothing_that_lies_behind_the_row() -> None:
    there = halting()
    bad_key, neighbour = in_lane(there, 2, count=2)
    bad = there.table.insert(bad_key, None)
    behind: list[int] = []

    def over() -> bool:
        if there.board.halted_lanes == (2,) and not behind:
            behind.extend(there.table.insert(neighbour) for _ in range(5))
        return there.board.row_faults >= 6

    there.run(over, within=1000)
    assert there.copies() == []
    assert sorted(there.table.rows) == [bad, *behind]


def test_all_lanes_halted_is_no_reason_to_ask_the_database_for_nothing() -> None:
    there = halting()
    for lane in range(there.table.lanes):
        there.table.insert(in_lane(there, lane)[0], None)
    reads = 0

    def count(moment: str) -> None:
        nonlocal reads
        reads += moment == "before read"

    until = there.clock.now + 600
    there.run(lambda: there.clock.now >= until, within=700, on_store=count)
    assert there.board.halted_lanes == tuple(range(there.table.lanes))
    assert reads < 200


def test_a_lane_is_halted_after_so_many_attempts_and_only_the_key_is_held_before() -> None:
    there = halting(attempts=3)
    bad_key, neighbour = in_lane(there, 2, count=2)
    there.table.insert(bad_key, None)
    written: list[int] = []

    def over() -> bool:
        if there.board.row_faults == 2 and not written:
            assert there.board.halted_lanes == ()
            written.append(there.table.insert(neighbour))
        return there.board.halted_lanes == (2,)

    there.run(over)
    assert there.copies() == written
    assert there.board.row_faults == 3


def test_rc_07_an_outage_halts_nothing() -> None:
    there = halting()
    written = [there.table.insert(b"k") for _ in range(5)]
    there.topic.down = AWAY
    until = there.clock.now + 600
    there.run(lambda: there.clock.now >= until, within=700)
    assert there.board.halted_lanes == ()
    there.topic.down = None
    there.run()
    assert there.copies() == written


def test_a_lost_session_halts_the_lane_again_and_loses_nothing() -> None:
    there = halting()
    bad_key, neighbour = in_lane(there, 2, count=2)
    bad = there.table.insert(bad_key, None)
    failures = 0

    def interfere(moment: str) -> None:
        nonlocal failures
        if moment == "before read" and there.board.halted_lanes and failures < 3 and there.clock.now > 1010 + failures:
            failures += 1
            raise LOST

    behind: list[int] = []

    def over() -> bool:
        if failures == 3 and not behind:
            behind.append(there.table.insert(neighbour))
            there.table.rows[bad] = there.table.rows[bad]._replace(payload=b"{}")
        return bool(behind) and not there.table.rows

    there.run(over, on_store=interfere, within=2000)
    assert there.copies() == [bad, *behind]


def test_a_lane_that_two_rows_halt_stays_halted_when_one_of_them_is_deleted() -> None:
    there = halting()
    first, second, neighbour = in_lane(there, 2, count=3)
    bad, deleted = there.table.insert(first, None), there.table.insert(second, None)
    behind: list[int] = []
    until = there.clock.now + 400

    def over() -> bool:
        if there.board.halted_lanes == (2,) and not behind:
            behind.extend(there.table.insert(neighbour) for _ in range(5))
            del there.table.rows[deleted]
        return there.clock.now >= until

    there.run(over, within=500)
    assert there.copies() == []
    assert sorted(there.table.rows) == [bad, *behind]
    del there.table.rows[bad]
    there.store = FakeStore(there.table)
    there.run()
    assert there.copies() == behind


def test_the_lowest_of_two_rows_that_halt_a_lane_is_deleted() -> None:
    there = halting()
    first, second, neighbour = in_lane(there, 2, count=3)
    deleted, bad = there.table.insert(first, None), there.table.insert(second, None)
    behind: list[int] = []

    def over() -> bool:
        if there.board.halted_lanes == (2,) and not behind:
            behind.extend(there.table.insert(neighbour) for _ in range(5))
            del there.table.rows[deleted]
        return there.board.row_faults >= 6

    there.run(over, within=500)
    assert there.copies() == []
    assert sorted(there.table.rows) == [bad, *behind]


@pytest.mark.parametrize("attempts", [1, 3])
def test_lanes_that_stay_are_halted_still_when_others_are_taken_away(attempts: int) -> None:
    there = halting(attempts=attempts)
    bad_key, neighbour = in_lane(there, 0, count=2)
    bad = there.table.insert(bad_key, None)
    behind: list[int] = []
    other = FakeStore(there.table)
    joined_at = 0.0

    def over() -> bool:
        nonlocal joined_at
        if there.board.halted_lanes == (0,) and not behind:
            behind.extend(there.table.insert(neighbour) for _ in range(50))
            other.open()
            other.rebalance()
            joined_at = there.clock.now
        return bool(joined_at) and there.clock.now > joined_at + 40

    there.run(over, within=900)
    assert there.board.lanes_owned == (0, 1)
    assert there.board.halted_lanes == (0,)
    assert there.copies() == []
    assert sorted(there.table.rows) == [bad, *behind]


def test_what_is_parked_in_lanes_that_are_taken_away_is_forgotten() -> None:
    there = halting()
    keys = [in_lane(there, lane)[0] for lane in range(4)]
    bad = [there.table.insert(key, None) for key in keys]
    other = FakeStore(there.table)

    def over() -> bool:
        if there.board.halted_lanes == (0, 1, 2, 3) and not other.session:
            other.open()
            other.rebalance()
        return there.board.halted_lanes == (0, 1)

    there.run(over, within=900)
    assert there.board.parked_total == 2
    assert sorted(there.table.rows) == bad


def test_a_lane_halted_beyond_the_rows_that_details_are_kept_of_lets_nothing_pass() -> None:
    there = halting(max_parked_keys=1)
    (elsewhere,) = in_lane(there, 1)
    bad_key, second_key, neighbour = in_lane(there, 2, count=3)
    for key in (elsewhere, bad_key, second_key):
        there.table.insert(key, None)
    behind: list[int] = []
    until = there.clock.now + 300

    def over() -> bool:
        if 2 in there.board.halted_lanes and not behind:
            behind.extend(there.table.insert(neighbour) for _ in range(30))
        return there.clock.now >= until

    there.run(over, within=900)
    assert there.board.halted_lanes == (1, 2)
    assert there.copies() == []
    there.table.rows = {row_id: row._replace(payload=b"{}") for row_id, row in there.table.rows.items()}
    there.store = FakeStore(there.table)
    there.run()
    assert there.copies(neighbour) == behind


def test_a_session_lost_between_parking_and_halting_lets_nothing_pass() -> None:
    there = halting()
    bad_key, neighbour = in_lane(there, 2, count=2)
    bad = there.table.insert(bad_key, None)
    behind: list[int] = []

    def interfere(moment: str) -> None:
        if moment == "before lanes_of" and not behind:
            behind.extend(there.table.insert(neighbour) for _ in range(30))
            raise LOST

    until = there.clock.now + 60
    there.run(lambda: there.clock.now >= until, within=100, on_store=interfere)
    assert there.board.store_failures == 1
    assert there.board.halted_lanes == (2,)
    assert there.copies() == []
    assert sorted(there.table.rows) == [bad, *behind]
