"""How many rows to ask for: small rows, one large row, large rows, and the way back."""

from __future__ import annotations

from outboxrelay.stores.sharing import EvenShare

KIB = 1024


def test_small_rows_are_always_read_with_an_even_share() -> None:
    share = EvenShare(rows=5000, size=8 * KIB * KIB)
    for _ in range(3):
        assert share.quick_limit(5000) == 5000
        assert share.bytes_of(5000) * 5000 <= 8 * KIB * KIB
        share.fitted([300] * 5000)
    assert share.quick_limit(10) == 10


def test_a_row_above_its_share_is_weighed_and_then_there_is_a_way_back() -> None:
    share = EvenShare(rows=5000, size=8 * KIB * KIB)
    share.exceeded()
    assert share.quick_limit(5000) is None
    assert share.exact_limit(5000) == 64
    share.weighed([300] * 2000 + [20 * KIB], within=False)
    limit = share.quick_limit(5000)
    assert limit is not None
    assert share.bytes_of(limit) >= 20 * KIB
    for _ in range(20):
        share.fitted([300] * 100)
    assert share.quick_limit(5000) == 5000


def test_large_rows_stay_weighed_and_few_are_asked_for() -> None:
    share = EvenShare(rows=5000, size=8 * KIB * KIB)
    share.exceeded()
    for _ in range(5):
        share.weighed([900 * KIB] * 9, within=False)
        assert share.quick_limit(5000) is None
    assert share.exact_limit(5000) == 26


def test_the_share_never_promises_more_than_the_bound() -> None:
    for rows in (1, 10, 63, 64, 65, 5000):
        share = EvenShare(rows=rows, size=64 * KIB)
        for largest in (0, 1, 100, 800, 1023, 1024, 5000, 64 * KIB, 10**9):
            share.weighed([largest], within=True)
            limit = share.quick_limit(rows)
            if limit is not None:
                assert limit * share.bytes_of(limit) <= 64 * KIB
                assert share.bytes_of(limit) >= largest


def test_no_rows_say_nothing_of_sizes() -> None:
    share = EvenShare(rows=500, size=64 * KIB)
    share.exceeded()
    share.weighed([], within=True)
    assert share.quick_limit(500) == 500
