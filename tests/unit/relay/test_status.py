"""The status board: counters, states that keep their beginning, the rate, and what a report shows of keys."""

from __future__ import annotations

import pytest

from outboxrelay.parked import Entry
from outboxrelay.ports import Row, RowFault
from outboxrelay.report import RelayReport
from outboxrelay.status import RateMeter, StatusBoard, show_key
from tests.unit.relay.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def board(world: World) -> StatusBoard:
    return world.board


def test_a_new_relay_is_starting_and_not_ready(board: StatusBoard) -> None:
    report = board.report()
    assert (report.database.reason, report.broker.reason) == ("Starting", "Starting")
    assert not board.ready
    assert report.parked == ()
    assert report.last_error is None


def test_ready_takes_both_sides(board: StatusBoard) -> None:
    seen = []
    for database, broker in ((True, False), (True, True), (False, True)):
        board.database_is(ok=database, reason="x")
        board.broker_is(ok=broker, reason="x")
        seen.append(board.ready)
    assert seen == [False, True, False]


def test_a_state_keeps_its_beginning_while_only_the_message_changes(world: World, board: StatusBoard) -> None:
    board.database_is(ok=False, reason="DatabaseUnreachable", message="refused")
    since = board.database.since
    world.clock.sleep(10)
    board.database_is(ok=False, reason="DatabaseUnreachable", message="timed out")
    assert (board.database.since, board.database.message) == (since, "timed out")
    board.database_is(ok=True, reason="Connected")
    assert board.database.since == since + 10


def test_the_age_of_the_last_cycle(world: World, board: StatusBoard) -> None:
    world.clock.sleep(30)
    assert board.seconds_since_tick() == 30
    board.tick()
    assert board.seconds_since_tick() == 0
    assert board.report().cycles == 1


def test_settled_rows_are_counted(world: World, board: StatusBoard) -> None:
    board.settled(rows=10, size=1000)
    world.clock.sleep(2)
    board.settled(rows=30, size=3000)
    report = board.report()
    assert (report.sent_rows, report.sent_bytes, board.batches) == (40, 4000, 2)
    assert report.rate_per_second == 20.0


def test_the_rate_forgets_what_is_older_than_its_window() -> None:
    meter = RateMeter(window=10)
    for second in range(100):
        meter.add(50, float(second))
    assert meter.rate(99.0) == pytest.approx(50, rel=0.15)
    assert meter.rate(104.5) == pytest.approx(25, rel=0.25)
    assert meter.rate(200.0) == 0


def test_no_events_are_no_rate() -> None:
    assert RateMeter().rate(5.0) == 0


def test_the_report_shows_parked_rows_by_the_wall_clock(world: World, board: StatusBoard) -> None:
    row = Row(7, b"caf\xc3\xa9\xff" + b"x" * 500, b"payload", None, None, None, 7)
    now = world.clock.now
    entry = Entry(
        RowFault(row, "RowTooLarge", "too large"), attempts=2, first_failed_at=now - 60, next_attempt_at=now + 5
    )
    board.parked_are(total=1, oldest=[entry])
    report = board.report()
    assert report.parked_total == 1
    (parked,) = report.parked
    assert (parked.row_id, parked.reason, parked.attempts) == ("7", "RowTooLarge", 2)
    assert parked.key is not None
    assert parked.key.startswith("caf\u00e9\\xffxxx")
    assert len(parked.key) == 200
    assert parked.first_failed_at == report.now - 60
    assert parked.next_attempt_at == report.now + 5


def test_no_payload_is_ever_shown(board: StatusBoard) -> None:
    row = Row(7, b"k", b"the secret payload", None, b"the secret headers", None, 7)
    board.parked_are(total=1, oldest=[Entry(RowFault(row, "RowTooLarge", "too large"), 1, 0.0, 0.0)])
    board.failed(reason="RowTooLarge", message="too large", row_id=7, key=b"k")
    assert "secret" not in board.report().model_dump_json()


def test_a_report_survives_the_wire(board: StatusBoard) -> None:
    report = board.report()
    assert RelayReport.model_validate_json(report.model_dump_json()) == report


def test_keys_for_people() -> None:
    assert show_key(None) is None
    assert show_key(b"") == ""
    assert show_key(b"\x00\xff") == "\x00\\xff"
