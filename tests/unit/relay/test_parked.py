"""Parked rows: holding, releasing, attempts, the bound, and forgetting what was sent or deleted."""

from __future__ import annotations

import random

from outboxrelay.parked import Crowd, ParkedRows
from outboxrelay.ports import Batch, Row, RowFault, WideRow


def fault(row_id: int, key: bytes | None = b"k") -> RowFault:
    return RowFault(Row(row_id, key, None, None, None, None, 0), "PayloadIsNull", "no payload")


def parked(*, limit: int = 10) -> ParkedRows:
    return ParkedRows(minimum=4.0, maximum=16.0, limit=limit, rng=random.Random(1))


def batch(*row_ids: int, complete: bool = True) -> Batch:
    return Batch(rows=[Row(row_id, b"k", b"", None, None, None, 0) for row_id in row_ids], complete=complete)


def test_a_parked_row_holds_its_key_until_its_attempt_is_due() -> None:
    rows = parked()
    assert rows.park(fault(7), now=100.0)
    assert rows.held_keys() == [b"k"]
    assert rows.release_due(103.9) is None
    assert rows.release_due(106.0) == 7
    assert rows.held_keys() == []
    assert len(rows) == 1


def test_a_row_without_a_key_holds_itself() -> None:
    rows = parked()
    rows.park(fault(7, None), now=0.0)
    rows.park(fault(9, None), now=0.0)
    assert rows.held_keys() == []
    assert rows.held_ids() == [7, 9]
    assert rows.release_due(100.0) == 7
    assert rows.held_ids() == []


def test_a_release_hands_back_the_lowest_row_and_only_once() -> None:
    rows = parked()
    rows.park(fault(30, b"c"), now=0.0)
    rows.park(fault(10, b"a"), now=0.0)
    assert rows.release_due(100.0) == 10
    assert rows.release_due(100.0) is None


def test_each_further_failure_waits_longer() -> None:
    rows = parked()
    waits = []
    now = 0.0
    for _ in range(5):
        rows.park(fault(7), now=now)
        (entry,) = rows.oldest(1)
        waits.append(entry.next_attempt_at - now)
        now = entry.next_attempt_at
        assert rows.release_due(now) == 7
    assert entry.attempts == 5
    assert entry.first_failed_at == 0.0
    least = (4, 8, 16, 16, 16)
    assert all(low <= wait <= low * 1.5 for wait, low in zip(waits, least, strict=True))


def test_another_row_of_the_key_starts_its_own_count() -> None:
    rows = parked()
    rows.park(fault(7), now=0.0)
    rows.release_due(100.0)
    rows.park(fault(8), now=100.0)
    (entry,) = rows.oldest(5)
    assert (entry.fault.row.id, entry.attempts, entry.first_failed_at) == (8, 1, 100.0)


def test_beyond_the_limit_rows_are_held_without_details() -> None:
    rows = parked(limit=2)
    for row_id, key in ((1, b"a"), (2, None), (3, b"c"), (4, None)):
        assert rows.park(fault(row_id, key), now=0.0)
    assert rows.park(fault(1, b"a"), now=1.0)
    assert rows.held_keys() == [b"a", b"c"]
    assert rows.held_ids() == [2, 4]
    assert len(rows) == 4
    assert [entry.fault.row.id for entry in rows.oldest(9)] == [1, 2]


def crowd(*, rows: int = 9, key_bytes: int = 99) -> Crowd:
    return Crowd(minimum=4.0, maximum=16.0, rng=random.Random(1), rows=rows, key_bytes=key_bytes)


def test_the_crowd_is_let_go_at_once_and_less_and_less_often() -> None:
    rows = crowd()
    now, waits = 0.0, []
    for _ in range(4):
        assert rows.join(fault(8).row, now)
        assert rows.join(fault(7, None).row, now + 1)
        start = now
        while (lowest := rows.release_due(now)) is None:
            now += 0.1
        waits.append(now - start)
        assert lowest == 7
        assert len(rows) == 0
    least = (4, 8, 16, 16)
    assert all(low <= wait <= low * 1.5 + 0.2 for wait, low in zip(waits, least, strict=True))
    rows.join(fault(8).row, now + 60)
    assert rows.release_due(now + 60 + 6.1) == 8, "after a quiet time the waits are short again"


def test_the_crowd_is_bounded_by_rows_and_by_bytes_of_keys() -> None:
    few, small = crowd(rows=2), crowd(key_bytes=3)
    assert [few.join(fault(number, None).row, 0.0) for number in range(3)] == [True, True, False]
    assert [small.join(fault(1, key).row, 0.0) for key in (b"ab", b"cd", b"c")] == [True, False, True]
    small.clear()
    assert small.join(fault(1, b"abc").row, 0.0)


def test_the_held_keys_are_the_same_list_until_they_change() -> None:
    """The store makes its parameter once for each list."""
    rows = parked()
    rows.park(fault(7), now=0.0)
    held = rows.held_keys()
    rows.seen(batch())
    rows.release_due(1.0)
    rows.settled([1])
    assert rows.held_keys() is held
    rows.park(fault(8, b"l"), now=0.0)
    assert rows.held_keys() == [b"k", b"l"]


def test_rr_09_a_parked_row_keeps_no_payload() -> None:
    """cases.md RR-09: the rows that are parked for their size are the largest there are."""
    rows = parked()
    large = Row(7, b"k", b"x" * 100, None, b"{}", None, 100)
    rows.park(RowFault(large, "RowTooLarge", "too large"), now=0.0)
    (entry,) = rows.oldest(1)
    assert (entry.fault.row.payload, entry.fault.row.headers) == (None, None)


def test_rr_09_a_parked_row_keeps_no_further_columns() -> None:
    """cases.md RR-09: a header from a column of its own may be what makes the row so large."""
    rows = parked()
    large = tuple.__new__(WideRow, (7, b"k", None, None, None, None, 100, b"x" * 100))
    rows.park(RowFault(large, "RowTooLarge", "too large"), now=0.0)
    (entry,) = rows.oldest(1)
    assert tuple(entry.fault.row) == (7, b"k", None, None, None, None, 100)


def test_a_row_that_was_sent_is_forgotten() -> None:
    rows = parked()
    rows.park(fault(7), now=0.0)
    rows.settled([7])
    assert len(rows) == 1, "held rows cannot have been sent"
    rows.release_due(100.0)
    rows.settled([5, 6])
    assert len(rows) == 1
    rows.settled([6, 7, 8])
    assert len(rows) == 0


def test_a_released_row_that_a_read_should_have_returned_is_forgotten() -> None:
    rows = parked()
    rows.park(fault(7), now=0.0)
    rows.seen(batch(1, 20))
    assert len(rows) == 1, "held rows are not read"
    rows.release_due(100.0)
    rows.seen(batch(5, 6, complete=False))
    rows.seen(batch(6, 7, 8, complete=False))
    assert len(rows) == 1
    rows.seen(batch(6, 8, complete=False))
    assert len(rows) == 0


def test_a_complete_read_without_the_row_is_proof_enough() -> None:
    rows = parked()
    rows.park(fault(7), now=0.0)
    rows.release_due(100.0)
    rows.seen(batch())
    assert len(rows) == 0


def test_forgetting_what_others_have_tells_where_to_read_from() -> None:
    rows = parked(limit=3)
    assert rows.keep([]) is None
    rows.park(fault(9, b"a"), now=0.0)
    rows.park(fault(7, None), now=0.0)
    rows.park(fault(8, b"b"), now=0.0)
    rows.park(fault(5, b"crowd"), now=0.0)
    assert rows.ids() == [9, 8, 7]
    assert rows.keep([7, 8]) == 5
    assert rows.ids() == [8, 7]
    assert rows.held_keys() == [b"b"]
    assert rows.keep([8]) == 7
    assert rows.keep([]) == 8
    assert len(rows) == 0


def test_a_halted_lane_is_tried_by_its_lowest_row_alone() -> None:
    rows = parked(limit=1)
    for row_id in (3, 9, 5):
        rows.park(fault(row_id, b"%d" % row_id), now=0.0)
    rows.halt([(fault(9, b"9"), 2), (fault(5, b"5"), 2), (fault(3, b"3"), 1)], now=0.0)
    assert rows.halted() == {1, 2}
    assert rows.ids() == [3, 9, 5], "each was the lowest of its lane when it came"
    assert rows.on_trial() is None
    assert rows.release_due(100.0) == 3
    assert rows.held_keys() == [b"9"]
    rows.settled([3])
    assert rows.on_trial() == (2, 5)
    rows.settled([5])
    assert rows.on_trial() is None
    assert rows.stirs(100.0), "the next of the lane is due"
    rows.release_due(100.0)
    assert rows.on_trial() == (2, 9)


def test_only_parked_rows_halt_their_lanes() -> None:
    rows = parked()
    rows.halt([(fault(9, b"9"), 2)], now=0.0)
    assert rows.halted() == frozenset()


def test_the_longest_parked_come_first() -> None:
    rows = parked()
    for number, now in ((1, 30.0), (2, 10.0), (3, 20.0)):
        rows.park(fault(number, b"%d" % number), now=now)
    assert [entry.fault.row.id for entry in rows.oldest(2)] == [2, 3]
