"""How many rows to read with care, and for how long."""

from __future__ import annotations

from outboxrelay.stores.care import FIRST_ROWS, Care


def test_nothing_is_read_with_care_as_long_as_nothing_failed() -> None:
    assert Care(rows=5000).limit(5000, start=0) is None


def test_after_a_failure_as_many_rows_are_read_with_care_as_failed_together() -> None:
    care = Care(rows=5000)
    care.failed(200, careful=False)
    limits: list[int] = []
    while (limit := care.limit(5000, start=sum(limits))) is not None:
        care.passed(limit, too_large=None, complete=False)
        limits.append(limit)
    assert limits == [64, 128, 256]


def test_the_end_of_the_table_ends_the_care() -> None:
    care = Care(rows=5000)
    care.failed(5000, careful=False)
    assert care.limit(5000, start=0) == FIRST_ROWS
    care.passed(3, too_large=None, complete=True)
    assert care.limit(5000, start=0) is None


def test_a_row_that_is_too_large_is_read_with_care_again_but_not_what_is_above_it() -> None:
    care = Care(rows=5000)
    care.failed(5000, careful=False)
    care.passed(3, too_large=17, complete=True)
    assert care.limit(5000, start=17) is not None
    assert care.limit(5000, start=18) is None
    care.passed(3, too_large=4, complete=True)
    assert care.limit(5000, start=17) is not None


def test_where_one_was_found_more_are_expected() -> None:
    care = Care(rows=100)
    care.failed(10, careful=False)
    care.passed(10, too_large=3, complete=False)
    assert care.limit(100, start=11) is not None


def test_what_fails_with_care_is_narrowed_down_to_one_row_without_its_content() -> None:
    care = Care(rows=5000)
    care.failed(5000, careful=False)
    limits: list[int] = []
    while (limit := care.limit(5000, start=0) or 0) > 1:
        limits.append(limit)
        care.failed(limit, careful=True)
    assert limits == [64, 8]
    blind = [care.blind]
    care.failed(1, careful=True)
    care.refused()
    blind.append(care.blind)
    assert care.limit(5000, start=0) == 1
    care.passed(1, too_large=9, complete=False)
    assert [*blind, care.blind] == [False, True, False]


def test_a_failure_of_a_row_without_its_content_is_no_fault_of_the_row() -> None:
    care = Care(rows=5000)
    care.refused()
    care.failed(1, careful=True)
    assert not care.blind


def test_never_more_rows_than_are_wanted_or_fit_into_a_batch() -> None:
    care = Care(rows=10)
    care.failed(10, careful=False)
    assert care.limit(1, start=0) == 1
    for _ in range(5):
        care.passed(0, too_large=None, complete=False)
    assert care.limit(5000, start=0) == 10
