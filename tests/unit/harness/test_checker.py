"""The checker must see every kind of fault it exists for: a checker that misses one proves nothing."""

from __future__ import annotations

import pytest

from tests.integration.harness.checker import Committed, Delivered, Reordered, check


def row(row_id: int, key: str | None = "a", version: int | None = None) -> Committed:
    return Committed(row_id=row_id, key=key, version=version or row_id, payload=f"p{row_id}".encode())


def message(
    row_id: int, *, offset: int, key: str | None = "a", partition: int = 0, identity: str | None = None
) -> Delivered:
    return Delivered(
        partition=partition,
        offset=offset,
        key=key.encode() if key is not None else None,
        payload=f"p{row_id}".encode(),
        headers={"outbox-id": (identity or f"id-{row_id}").encode()},
    )


def test_everything_once_and_in_order_has_no_problem() -> None:
    verdict = check(
        committed=[row(1), row(2), row(3, "b", 1)],
        delivered=[message(1, offset=0), message(3, offset=0, key="b", partition=1), message(2, offset=1)],
    )
    assert verdict.problems() == []
    assert str(verdict) == "committed 3, delivered 3, lost 0, reordered 0, repeated 0, foreign 0"


def test_a_row_that_never_arrives_is_lost() -> None:
    verdict = check(committed=[row(1), row(2)], delivered=[message(1, offset=0)])
    assert verdict.lost == (2,)
    assert "1 rows lost: 2" in verdict.problems()


def test_first_deliveries_in_the_wrong_order_are_reordered() -> None:
    verdict = check(committed=[row(1), row(2)], delivered=[message(2, offset=0), message(1, offset=1)])
    assert verdict.reordered == (Reordered(key="a", first=2, then=1),)


def test_the_order_is_that_of_the_offsets_not_of_the_reading() -> None:
    verdict = check(committed=[row(1), row(2)], delivered=[message(2, offset=1), message(1, offset=0)])
    assert verdict.problems() == []


def test_different_keys_have_no_order() -> None:
    verdict = check(committed=[row(1), row(2, "b", 1)], delivered=[message(2, offset=0, key="b"), message(1, offset=1)])
    assert verdict.problems() == []


def test_a_batch_sent_again_after_a_crash_is_a_repeat_and_no_reordering() -> None:
    verdict = check(
        committed=[row(1), row(2), row(3)],
        delivered=[message(n, offset=offset) for offset, n in enumerate((1, 2, 1, 2, 3))],
    )
    assert verdict.reordered == ()
    assert verdict.repeated == {1: 1, 2: 1}
    assert verdict.problems(repeatable={1, 2}, most_repeats=2) == []


def test_repeats_beyond_what_was_in_flight_are_a_problem() -> None:
    verdict = check(committed=[row(1)], delivered=[message(1, offset=offset) for offset in range(3)])
    assert verdict.problems(repeatable={1}, most_repeats=1) == [
        "2 repeats where at most 1 rows were in flight at a crash"
    ]
    assert verdict.problems(repeatable={9}, most_repeats=2) == ["1 rows repeated that were settled before any crash: 1"]


def test_an_old_row_after_the_newest_would_win_in_a_compacted_topic() -> None:
    verdict = check(
        committed=[row(1), row(2)], delivered=[message(n, offset=offset) for offset, n in enumerate((1, 2, 1))]
    )
    assert verdict.reordered == ()
    assert verdict.outdated == ("a",)


@pytest.mark.parametrize("payload", [b"p1 ", b"", None])
def test_changed_bytes_are_foreign_and_the_row_is_lost(payload: bytes | None) -> None:
    changed = Delivered(partition=0, offset=0, key=b"a", payload=payload, headers={"outbox-id": b"id-1"})
    verdict = check(committed=[row(1)], delivered=[changed])
    assert verdict.foreign == (changed,)
    assert verdict.lost == (1,)


def test_a_message_under_another_key_is_foreign() -> None:
    verdict = check(committed=[row(1)], delivered=[message(1, offset=0, key="b")])
    assert len(verdict.foreign) == 1


def test_one_key_in_two_partitions_has_no_order_any_more() -> None:
    verdict = check(committed=[row(1), row(2)], delivered=[message(1, offset=0), message(2, offset=0, partition=1)])
    assert verdict.scattered == ("a",)


def test_rows_without_key_may_come_in_any_order_from_anywhere() -> None:
    verdict = check(
        committed=[row(1, None), row(2, None)],
        delivered=[message(2, offset=0, key=None), message(1, offset=0, key=None, partition=1)],
    )
    assert verdict.problems() == []


def test_the_identity_must_be_there_stable_and_unique() -> None:
    verdict = check(
        committed=[row(1), row(2), row(3)],
        delivered=[
            message(1, offset=0),
            message(1, offset=1, identity="other"),
            message(2, offset=2, identity="other"),
            Delivered(partition=0, offset=3, key=b"a", payload=b"p3", headers={}),
        ],
    )
    assert verdict.identity == (
        "row 1 with 2 different outbox-ids",
        "rows 1 and 2 with the same outbox-id b'other'",
        "row 3 without outbox-id",
    )


def test_rows_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="rows 1 and 2 have the same key and payload"):
        check(committed=[row(1), Committed(row_id=2, key="a", version=2, payload=b"p1")], delivered=[])
