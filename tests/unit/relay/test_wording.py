"""Messages with a number: one of something is not told of as several."""

from __future__ import annotations

import pytest

from outboxrelay.findings import Finding, Findings
from outboxrelay.stores.lag import Lag
from outboxrelay.wording import counted


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 rows wait"), (1, "1 row waits"), (2, "2 rows wait"), ("1", "1 row waits"), ("0.1", "0.1 rows wait")],
)
def test_the_words_agree_with_the_number(number: int | str, told: str) -> None:
    assert counted(number, "row waits", "rows wait") == told


def test_an_s_is_the_plural() -> None:
    assert [counted(number, "pair") for number in (1, 21)] == ["1 pair", "21 pairs"]


def test_one_row_and_one_error_are_not_several() -> None:
    lag = Lag(table="public.outbox", database="orders", waiting=1, exact=True, sees_all_sessions=True)
    assert "waiting  1 row\n" in lag.text()
    found = Findings.of([Finding(level="error", subject="table", message="TableMissing")])
    assert "(1 error, 0 warnings)" in found.text()
