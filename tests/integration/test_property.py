"""Random schedules with real processes, a few that are the same each time; the command runs new ones for hours.

Writers, relays that are killed, stopped, rolled and scaled, sessions that the server ends, a broker that hangs, rows at
fault or that cannot be settled, late commits: 0 lost, 0 reordered per key, repeats only of the batches in flight, or
being removed, at a crash.
`python -m tests.integration.property --minutes 30 --seed 1` looks further.
"""

from __future__ import annotations

import sys

import pytest

from tests.integration.property.course import OBSTACLES, Services, run
from tests.integration.property.schedule import Schedule, Step, draw
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import LocalPostgres


@pytest.mark.parametrize("seed", [4, 12])
def test_nothing_is_lost_reordered_or_repeated_without_a_reason(
    postgres: LocalPostgres, kafka: LocalKafka, seed: int
) -> None:
    schedule = draw(seed)
    result = run(schedule, Services(postgres, kafka))
    assert not result.problems, f"{schedule.again()}: {result.problems}"


@pytest.mark.parametrize("way", range(len(OBSTACLES)), ids=OBSTACLES)
def test_rows_whose_settling_is_refused_are_repeated_only_for_what_ends_a_relay(
    postgres: LocalPostgres, kafka: LocalKafka, way: int
) -> None:
    schedule = Schedule(
        seed=11,
        policy="keep",
        on_error="DeadLetter",
        batch_rows=10,
        rebalance_seconds=0.2,
        backlog=200,
        steps=(
            Step(kind="fault"),
            Step(kind="refuse", number=way),
            Step(kind="scale", number=2),
            Step(kind="kill", after_rows=20),
            Step(kind="allow", after_rows=20),
            Step(kind="refuse", number=way),
            Step(kind="roll"),
            Step(kind="end-sessions"),
        ),
    )
    result = run(schedule, Services(postgres, kafka))
    assert not result.problems, f"{schedule.again()}: {result.problems}"


def test_a_naive_cursor_is_found_out(postgres: LocalPostgres, kafka: LocalKafka) -> None:
    """The proof of the test above: a relay that reads "id > last" loses what commits late (cases.md RC-01)."""
    schedule = Schedule(
        seed=7,
        relays=1,
        steps=(Step(kind="open", after_rows=20), Step(kind="end-sessions"), Step(kind="commit", after_rows=150)),
    )
    wrong = (sys.executable, "-m", "tests.integration.wrong_stores", "naive-cursor")
    result = run(schedule, Services(postgres, kafka), command=wrong, within_seconds=5)
    assert result.lost
    assert any("lost" in problem for problem in result.problems)
    assert not result.reordered


def test_a_schedule_is_the_same_each_time_and_as_printed() -> None:
    schedule = draw(4)
    assert draw(4) == schedule
    assert draw(5) != schedule
    assert Schedule.model_validate_json(schedule.line()) == schedule
