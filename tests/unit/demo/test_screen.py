"""What reaches the terminal: text of programs unchanged, watched columns in place, failures to be seen."""

from __future__ import annotations

import io

from rich.console import Console

from tests.demo.screen import Columns, Screen
from tests.demo.verdict import Check

HEAD = "NAME   READY   RATE   AGE"


def _screen() -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, highlight=False, soft_wrap=True)), out


def test_columns_stay_in_place_while_widths_change() -> None:
    columns = Columns(HEAD)
    lines = [
        columns.head,
        columns.line("shop   True    0/s    9s"),
        columns.line("shop   False   1003/s   2m10s"),
        columns.line("shop   True    0/s    2m11s"),
    ]
    assert [line.index(cell) for line, cell in zip(lines, ("AGE", "9s", "2m10s", "2m11s"), strict=True)] == [27] * 4


def test_a_line_with_an_empty_cell_is_left_alone() -> None:
    assert Columns(HEAD).line("shop   True           9s") == "shop   True           9s"


def test_text_of_programs_is_no_markup() -> None:
    screen, out = _screen()
    screen.command("kubectl get x -o jsonpath={.a[0]}", "[bold]kept[/bold]\n")
    assert out.getvalue() == "$ kubectl get x -o jsonpath={.a[0]}\n[bold]kept[/bold]\n"


def test_a_step_tells_how_long_it_usually_takes_and_how_long_it_took() -> None:
    screen, out = _screen()
    with screen.step("Waiting", usually="10 s"):
        assert out.getvalue() == "-- Waiting (usually 10 s)\n"
    assert "done in 0.0 s" in out.getvalue()


def test_the_verdict_marks_each_claim() -> None:
    screen, out = _screen()
    screen.verdict([Check("lost", "0", ok=True), Check("reordered", "3", ok=False), Check("repeated", "1")])
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["lost", "0", "ok"],
        ["reordered", "3", "FAILED"],
        ["repeated", "1"],
    ]
