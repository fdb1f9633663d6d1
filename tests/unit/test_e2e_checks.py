"""The end-to-end tests' own judgement: a check that sees nothing would pass everything."""

from __future__ import annotations

import json

from tests.e2e.stage import Message, insert, numbered, out_of_order, written


def _message(key: str, number: int, *, row: int | None = None) -> Message:
    row = number if row is None else row
    return Message(partition=0, key=key, value=json.dumps({"number": number}), headers={"outbox-id": f"{key}:{row}"})


def test_a_late_message_is_found() -> None:
    assert out_of_order([_message("a", 2), _message("b", 1), _message("a", 1), _message("a", 3)]) == [("a", 1)]


def test_order_between_keys_does_not_matter() -> None:
    assert out_of_order([_message("b", 9), _message("a", 1), _message("b", 10), _message("a", 2)]) == []


def test_a_repeat_is_not_late() -> None:
    assert out_of_order([_message("a", 1), _message("a", 2), _message("a", 1), _message("a", 2)]) == []


def test_the_same_number_of_another_row_is_judged_by_itself() -> None:
    """Only the id says that a message is a repeat; its content does not."""
    assert out_of_order([_message("a", 2), _message("a", 1, row=7), _message("a", 1, row=8)]) == [("a", 1), ("a", 1)]


def test_what_is_expected_is_what_is_written() -> None:
    assert written(rows=3, keys=2, first=5) == {("k1", 5), ("k0", 6), ("k1", 7)}
    assert "generate_series(5, 5 + 2)" in insert("t", rows=3, keys=2, first=5)
    assert "'k' || (i % 2)" in insert("t", rows=3, keys=2, first=5)
    assert numbered(_message("k1", 5)) == ("k1", 5)
