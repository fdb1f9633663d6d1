"""Log lines: JSON on one line, and repeats of one outcome left out but counted."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from outboxrelay.logs import JsonFormatter, RepeatFilter, TextFormatter
from tests.unit.relay.world import Clock


def record(
    message: str, *, at: float = 0.0, level: int = logging.WARNING, line: int = 1, **extra: object
) -> logging.LogRecord:
    made = logging.LogRecord("outboxrelay.engine", level, "engine.py", line, "%s", (message,), None)
    made.created = at
    made.__dict__.update(extra)
    return made


def test_a_json_line_holds_what_matters() -> None:
    line = JsonFormatter(pair="shop-db-orders").format(record('two\nlines "quoted"', reason="RowTooLarge", row_id=7))
    assert "\n" not in line
    document = json.loads(line)
    assert document["time"] == "1970-01-01T00:00:00.000Z" or document["time"].startswith("1970-01-01T00:00:00.")
    del document["time"]
    assert document == {
        "level": "warning",
        "logger": "outboxrelay.engine",
        "pair": "shop-db-orders",
        "message": 'two\nlines "quoted"',
        "reason": "RowTooLarge",
        "row_id": 7,
    }


@pytest.mark.parametrize("formatter", [JsonFormatter(pair="p"), TextFormatter()], ids=["json", "text"])
def test_an_exception_is_part_of_the_line_without_what_it_says(formatter: logging.Formatter) -> None:
    """An error that nobody has thought of may quote a row, as that of a value which cannot be decoded does."""
    made = record("failed")
    try:
        int("PAYLOAD".lower())
    except ValueError:
        made.exc_info = sys.exc_info()
    line = formatter.format(made)
    assert ("ValueError" in line, "test_logs.py" in line, "payload" in line) == (True, True, False)


def test_rr_02_an_outage_does_not_flood_the_log() -> None:
    """cases.md RR-02."""
    clock = Clock()
    repeats = RepeatFilter(clock=clock)
    passed = 0
    for _ in range(3600):
        passed += repeats.filter(record("down"))
        clock.sleep(1.0)
    assert passed == 120


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    clock = Clock()
    repeats = RepeatFilter(clock=clock)
    assert repeats.filter(record("down", at=7200.0))
    clock.sleep(60.0)
    assert repeats.filter(record("down", at=3660.0))


def test_what_was_left_out_is_counted() -> None:
    clock = Clock()
    repeats = RepeatFilter(clock=clock)
    assert repeats.filter(record("down"))
    clock.sleep(1.0)
    assert not repeats.filter(record("down"))
    clock.sleep(1.0)
    assert not repeats.filter(record("down"))
    clock.sleep(38.0)
    late = record("down")
    assert repeats.filter(late)
    assert late.getMessage() == "down (2 more like this were left out)"


def test_other_places_and_outcomes_are_told() -> None:
    repeats = RepeatFilter()
    assert repeats.filter(record("a", reason="ReadOnly"))
    assert repeats.filter(record("b", reason="TableMissing"))
    assert repeats.filter(record("c", line=2, reason="ReadOnly"))


def test_information_is_not_limited() -> None:
    repeats = RepeatFilter()
    assert all(repeats.filter(record("owning lanes", level=logging.INFO)) for _ in range(5))
