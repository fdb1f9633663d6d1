"""`python -m tests.bench.held_snapshot`: whether a relay stays fast while a session holds an old snapshot.

Such a session keeps every row that is deleted, marked or moved from being cleared away. Two databases of one server
are filled and emptied in turns: in one of them a snapshot is held from the beginning, the other is as free as ever.
Only ratios say anything: of the end to the beginning, and of the held database to the free one. The CPU time of store
and server process together tells of needless work also on a machine that is busy with something else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from outboxrelay.stores.postgres import PostgresStore
from tests.bench.cpu import cpu_seconds
from tests.bench.policies import create, drain, insert
from tests.contract.relay.settings import POLICIES, relay_config
from tests.testbed.services.postgres import Database, LocalPostgres

ROUND_ROWS = 20_000
SHARE = 0.2
"""Of the rounds: so many are the beginning, and so many the end."""


@dataclass
class Side:
    """One of the two databases, and how long the store took for each round."""

    database: Database
    store: PostgresStore
    server_pid: int
    """Of the process that serves the store's session."""

    rounds: list[Round] = field(default_factory=list)

    def round(self, *, rows: int) -> None:
        """Rows come, and go again; only the store's work is measured."""
        insert(self.database, rows=rows)
        before = self._cpu()
        sample = drain(self.store, rows=rows)
        self.rounds.append(Round(seconds=sample.reading + sample.settling, cpu_seconds=self._cpu() - before))

    def _cpu(self) -> float:
        return time.process_time() + cpu_seconds(self.server_pid)


class Round(NamedTuple):
    """What it took to read and settle the rows of a round, or the mean of some rounds."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def mean(cls, rounds: Sequence[Round]) -> Round:
        """A mean and no median: a slow round counts."""
        return cls(*(sum(values) / len(rounds) for values in zip(*rounds, strict=True)))


class Result(NamedTuple):
    """The rounds of a policy."""

    held: Sequence[Round]
    free: Sequence[Round]
    dead_rows: int
    """That the outbox table of the held database had in the end."""


def first_and_last(rounds: Sequence[Round]) -> tuple[Round, Round]:
    """The beginning and the end."""
    share = max(1, round(len(rounds) * SHARE))
    return Round.mean(rounds[:share]), Round.mean(rounds[-share:])


def measure(*, seconds: float, rows: int = ROUND_ROWS, policies: Sequence[str] = tuple(POLICIES)) -> dict[str, Result]:
    """Each policy for so many seconds, on one server with fsync."""
    results: dict[str, Result] = {}
    with LocalPostgres(settings={"shared_buffers": "1GB"}) as server:
        for policy in policies:
            with _sides(server, policy) as (held, free), held.database.connect(autocommit=False) as reader:
                reader.execute("set transaction isolation level repeatable read")
                reader.execute("select count(*) from outbox")
                end = time.monotonic() + seconds
                while time.monotonic() < end or not held.rounds:
                    held.round(rows=rows)
                    free.round(rows=rows)
                results[policy] = Result(held.rounds, free.rounds, len(held.rounds) * rows)
    return results


@contextmanager
def _sides(server: LocalPostgres, policy: str) -> Iterator[tuple[Side, Side]]:
    """A database and a store that owns all its lanes, twice."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: list[Side] = []
        for name in ("held", "free"):
            database = server.create_database()
            stack.callback(server.drop_database, database)
            create(database, policy=policy)
            (directory / name).mkdir()
            store = PostgresStore(relay_config(directory / name, database=database, retention=POLICIES[policy]))
            store.open()
            stack.callback(store.close)
            store.rebalance()
            (pid,) = database.execute(
                "select pid from pg_stat_activity where datname = current_database() and application_name like %s",
                ("outboxrelay/%",),
            )
            sides.append(Side(database, store, *pid))
        held, free = sides
        yield held, free


def table(results: dict[str, Result], *, rows: int = ROUND_ROWS) -> str:
    """Rows a second of the held database, and the ratios: 1 is as fast, and as dear, as at the beginning."""
    names = ("rows/s", "free beside", "CPU a row", "free beside")
    heading = "".join(f" {name:>12}" for name in names)
    lines = [f"{'policy':<12} {'dead rows':>10} {'first/s':>9} {'last/s':>9}{heading}  (last : first)"]
    for policy, result in results.items():
        (first, last), (free_first, free_last) = first_and_last(result.held), first_and_last(result.free)
        ratios = (
            first.seconds / last.seconds,
            free_first.seconds / free_last.seconds,
            last.cpu_seconds / first.cpu_seconds,
            free_last.cpu_seconds / free_first.cpu_seconds,
        )
        lines.append(
            f"{policy:<12} {result.dead_rows:>10,} {rows / first.seconds:>9,.0f} {rows / last.seconds:>9,.0f}"
            + "".join(f" {ratio:>10.2f} x" for ratio in ratios)
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.held_snapshot", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="length of each policy's run (default %(default)s)")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="one policy; may be given several times")
    options = parser.parse_args(arguments)
    print(table(measure(seconds=options.seconds, policies=options.policy or tuple(POLICIES))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
