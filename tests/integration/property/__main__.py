"""Runs random schedules for a while: `python -m tests.integration.property --minutes 30 --seed 1`.

One line for each seed, a summary at the end. A schedule that breaks the contract is printed as it can be run again, and
ends the run with status 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator

from tests.integration.property.course import Result, Services, run
from tests.integration.property.schedule import Schedule, draw
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import LocalPostgres


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.property", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no schedule after so many minutes")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each schedule takes the next")
    parser.add_argument("--schedule", help="run this schedule, as it was printed, instead of drawing any")
    parser.add_argument("--times", type=int, help="end after so many schedules")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    end = time.monotonic() + options.minutes * 60
    with LocalPostgres(fsync=False) as postgres, LocalKafka() as kafka:
        for name, schedule in itertools.islice(_schedules(options), options.times):
            if time.monotonic() >= end:
                break
            result = run(schedule, Services(postgres, kafka))
            results.append(result)
            print(f"{name}: {_words(result)}, {', '.join(step.kind for step in schedule.steps)}", flush=True)
            if result.problems:
                print("\n".join(result.problems))
                print(f"again: {schedule.again()}")
                break
    print(f"{len(results)} schedules: {_words(_sum(results))}")
    return int(any(result.problems for result in results))


def _schedules(options: argparse.Namespace) -> Iterator[tuple[str, Schedule]]:
    if options.schedule is not None:
        given = Schedule.model_validate_json(options.schedule)
        return (("given", given) for _ in itertools.count())
    return ((f"seed {number}", draw(number)) for number in itertools.count(options.seed))


def _sum(results: list[Result]) -> Result:
    return Result(
        rows=sum(result.rows for result in results),
        kills=sum(result.kills for result in results),
        lost=sum(result.lost for result in results),
        reordered=sum(result.reordered for result in results),
        repeats=sum(result.repeats for result in results),
    )


def _words(result: Result) -> str:
    return (
        f"{result.rows} rows, {result.kills} kills, {result.repeats} repeats, {result.lost} lost,"
        f" {result.reordered} reordered"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
