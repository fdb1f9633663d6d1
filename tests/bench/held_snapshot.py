"""`python -m tests.bench.held_snapshot [--write]`: whether a relay stays fast while a session holds an old snapshot.

Such a session keeps every row that is deleted, marked or moved from being cleared away. Two databases of one server
are filled and emptied in turns: in one of them a snapshot is held from the beginning, the other is as free as ever.
Only ratios say anything: of the end to the beginning, and of the held database to the free one. The CPU time of store
and server process together, and the pages that a poll looks at, tell of needless work also on a machine that is busy
with something else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from outboxrelay.stores.postgres import PostgresStore
from tests.bench import page, plot
from tests.bench.cpu import cpu_seconds
from tests.bench.policies import create, drain, insert
from tests.contract.relay.settings import POLICIES, relay_config
from tests.testbed.services.postgres import Database, LocalPostgres

ROUND_ROWS = 20_000
SHARE = 0.2
"""Of the rounds: so many are the beginning, and so many the end."""
STEADY_RATE = 3000
"""Rows a second of a busy service, for comparison."""

TITLE = "A session that holds an old snapshot"
PLOT = "bench-held-snapshot.svg"
_MIB = 2**20
_POLLS = (
    "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::int8, coalesce(sum(calls), 0)::int8"
    " from pg_stat_statements join pg_database on pg_database.oid = dbid"
    " where datname = %s and query like 'SELECT pg_snapshot_xmin%%UNION ALL%%'"
)
"""Pages that the store's reads looked at so far, and how many reads these were."""


@dataclass
class Side:
    """One of the two databases, and how long the store took for each round."""

    database: Database
    store: PostgresStore
    server_pid: int
    """Of the process that serves the store's session."""

    superuser: Database
    began: float = field(default_factory=time.monotonic)
    rounds: list[Round] = field(default_factory=list)

    def round(self, *, rows: int) -> None:
        """Rows come, and go again; only the store's work is measured."""
        insert(self.database, rows=rows)
        cpu, (pages, polls) = self._cpu(), self._polls()
        sample = drain(self.store, rows=rows)
        cpu_then, (pages_then, polls_then) = self._cpu(), self._polls()
        ((table, indexes),) = self.database.execute("select pg_table_size('outbox'), pg_indexes_size('outbox')")
        self.rounds.append(
            Round(
                at=time.monotonic() - self.began,
                seconds=sample.reading + sample.settling,
                cpu_seconds=cpu_then - cpu,
                pages_per_poll=(pages_then - pages) / (polls_then - polls),
                table_bytes=table,
                index_bytes=indexes,
            )
        )

    def _cpu(self) -> float:
        return time.process_time() + cpu_seconds(self.server_pid)

    def _polls(self) -> tuple[int, int]:
        ((pages, polls),) = self.superuser.execute(_POLLS, [self.database.dbname])
        return pages, polls


class Round(NamedTuple):
    """What it took to read and settle the rows of a round, or the mean of some rounds."""

    at: float
    """Seconds since the beginning."""

    seconds: float
    cpu_seconds: float
    pages_per_poll: float
    table_bytes: float
    index_bytes: float

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
    settings = {"shared_buffers": "1GB", "shared_preload_libraries": "pg_stat_statements"}
    with LocalPostgres(settings=settings) as server:
        server.superuser.execute("create extension pg_stat_statements")
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
            ((pid,),) = database.execute(
                "select pid from pg_stat_activity where datname = current_database() and application_name like %s",
                ("outboxrelay/%",),
            )
            sides.append(Side(database, store, pid, server.superuser))
        held, free = sides
        yield held, free


def kept(rounds: Sequence[Round]) -> float:
    """The rate at the end, as a share of that of the beginning."""
    first, last = first_and_last(rounds)
    return first.seconds / last.seconds


def table(results: dict[str, Result], *, rows: int = ROUND_ROWS) -> str:
    """Of the held database at the beginning and at the end, and the ratios of the free one beside it."""
    columns = (
        "policy",
        "rows/s, first",
        "last",
        "last : first",
        "free beside",
        "CPU a row, last : first",
        "free beside",
    )
    more = ("pages a poll, first", "last", "table, MiB", "indexes, MiB", "dead rows")
    return page.markdown((*columns, *more), [_line(policy, result, rows) for policy, result in results.items()])


def _line(policy: str, result: Result, rows: int) -> tuple[str, ...]:
    (first, last), (free_first, free_last) = first_and_last(result.held), first_and_last(result.free)
    return (
        policy,
        f"{rows / first.seconds:,.0f}",
        f"{rows / last.seconds:,.0f}",
        f"{kept(result.held):.2f}",
        f"{kept(result.free):.2f}",
        f"{last.cpu_seconds / first.cpu_seconds:.2f}",
        f"{free_last.cpu_seconds / free_first.cpu_seconds:.2f}",
        f"{first.pages_per_poll:,.0f}",
        f"{last.pages_per_poll:,.0f}",
        f"{last.table_bytes / _MIB:,.0f}",
        f"{last.index_bytes / _MIB:,.0f}",
        f"{result.dead_rows:,}",
    )


def write(results: dict[str, Result], *, seconds: float, machine: str) -> None:
    """Write the section of docs/benchmarks.md, and its plot."""
    page.draw(PLOT, drawing(results))
    page.put(TITLE, text(results, seconds=seconds, machine=machine))


def text(results: dict[str, Result], *, seconds: float, machine: str) -> str:
    """The text below the heading."""
    minutes = min(result.dead_rows for result in results.values()) / STEADY_RATE / 60
    return f"""\
`python -m tests.bench.held_snapshot --write --seconds {seconds:.0f}`, on {machine}.
A session holds a snapshot from before the first row, so that no dead row can be cleared away. {ROUND_ROWS:,} rows at a
time come and are read and settled, as fast as it goes, without a broker: every policy left at least as many dead rows
as {minutes:.0f} minutes at {STEADY_RATE:,} rows/s would. The first and the last {SHARE:.0%} of the rounds are compared.
"Free beside" is a second database in the same process where nothing is held: what both lose is the machine's doing.
Pages are those that a read of the table looks at, in memory or not.

{table(results)}

![Over time]({PLOT})
"""


def drawing(results: dict[str, Result]) -> str:
    """Rows a second, pages a poll and the size of the table, a line for each policy."""

    def panel(label: str, value: Callable[[Round], float]) -> plot.Panel:
        lines = [[(each.at, value(each)) for each in result.held] for result in results.values()]
        highest = max(height for line in lines for _, height in line)
        return plot.Panel(label, lines, highest=highest, show=lambda height: f"{height:,.0f}")

    end = max(result.held[-1].at for result in results.values())
    return plot.chart(
        "While a session holds an old snapshot",
        list(results),
        (
            panel("rows/s", lambda each: ROUND_ROWS / each.seconds),
            panel("pages a poll", lambda each: each.pages_per_poll),
            panel("table, MiB", lambda each: each.table_bytes / _MIB),
        ),
        end=end,
        ticks={end * part / 4: f"{end * part / 4:.0f} s" for part in range(5)},
    )


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.held_snapshot", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="length of each policy's run (default %(default)s)")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="one policy; may be given several times")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    machine = page.machine()
    results = measure(seconds=options.seconds, policies=options.policy or tuple(POLICIES))
    print(table(results))
    if options.write:
        write(results, seconds=options.seconds, machine=machine)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
