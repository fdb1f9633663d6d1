"""`outboxrelay` with an account of its CPU time: `python -m tests.bench.profiled_relay run --config FILE`.

The steps are the calls of the engine's two ports, so that measuring costs next to nothing; a sampler is charged to the
steps that it interrupts most. Only headers are made for each row: they are timed apart, from rows that came by. When
the relay ends it leaves microseconds a row, by step, in FILE with the suffix `.profile`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from outboxrelay import cli
from outboxrelay.ports import Batch, Row
from outboxrelay.publishers.choice import kafka_publisher
from outboxrelay.publishers.formats.choice import header_source
from outboxrelay.stop import StopSignal
from outboxrelay.stores.postgres import PostgresStore

COMMAND: Final = (sys.executable, "-m", "tests.bench.profiled_relay", "run")

ENGINE: Final = "the loop itself"
HEADERS: Final = "headers"
PRODUCE: Final = "handing messages over to librdkafka"
CLIENT: Final = "librdkafka's own threads: batches, compression, the protocol"
OTHERS: Final = "other threads"
STEPS: Final = {
    "ask": "asking for rows",
    "fetch": "receiving them",
    "read": "making rows of them",
    "publish": PRODUCE,
    "wait": "waiting for the broker, delivery reports",
    "outcome": "waiting for the broker, delivery reports",
    "start_settling": "removing rows",
    "settle": "removing rows",
}
"""Of methods of the ports; all others count as the loop's."""

ORDER: Final = (*dict.fromkeys(STEPS.values()), HEADERS, ENGINE, CLIENT, OTHERS)


class Account:
    """CPU time of the main thread by step; a step within a step is not counted twice."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.sample: list[Row] = []
        self.rows = 0
        self._steps = [ENGINE]
        self._since = time.thread_time()
        self._threads: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def enter(self, step: str) -> None:
        """From now on, until `leave`."""
        self._charge()
        self._steps.append(step)

    def leave(self) -> None:
        """Back to the step before."""
        self._charge()
        self._steps.pop()

    def _charge(self) -> None:
        now = time.thread_time()
        self.spent[self._steps[-1]] += now - self._since
        self._since = now

    def came(self, rows: list[Row]) -> None:
        """Rows were read; what was before the first of them does not count."""
        if not self.rows:
            self.sample = rows
            self.spent.clear()
            self._before = _threads()
        self.rows += len(rows)

    def look(self) -> None:
        """To be called while all threads are there; the first time counts."""
        self._threads = self._threads or _threads()

    def close(self, seconds_of_headers: float) -> dict[str, float]:
        """Microseconds a row of each step; headers took so many seconds a row."""
        self._charge()
        if not self.rows:
            return {}
        headers = seconds_of_headers * self.rows
        threads = {step: seconds - self._before[step] for step, seconds in self._threads.items()}
        spent = {**self.spent, **threads, HEADERS: headers, PRODUCE: self.spent[PRODUCE] - headers}
        return {step: spent.get(step, 0.0) / self.rows * 1e6 for step in ORDER}


class Timed:
    """A port whose calls are charged to an account."""

    def __init__(self, port: Any, account: Account) -> None:
        self._port = port
        self._account = account

    def close(self) -> None:
        """Its threads end with it."""
        self._account.look()
        self._port.close()

    def __getattr__(self, name: str) -> Any:
        method, account = getattr(self._port, name), self._account
        if name not in STEPS:
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            account.enter(STEPS[name])
            try:
                result = method(*arguments, **named)
            finally:
                account.leave()
            if isinstance(result, Batch) and result.rows:
                account.came(result.rows)
            return result

        return call


def _threads() -> dict[str, float]:
    """CPU seconds of all threads but the main one so far, librdkafka's apart; see proc(5)."""
    found = {CLIENT: 0.0, OTHERS: 0.0}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, fields = (task / "comm").read_text(), (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(task.name) != os.getpid():
            ticks = int(fields[11]) + int(fields[12])
            found[CLIENT if name.startswith("rdk:") else OTHERS] += ticks / os.sysconf("SC_CLK_TCK")
    return found


def run(config: Path, arguments: Sequence[str]) -> int:
    """`outboxrelay` with an account; returns the exit status."""
    stop, account = StopSignal(), Account()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.set())
    vars(cli).update(
        PostgresStore=lambda *given, **named: Timed(PostgresStore(*given, **named), account),
        kafka_publisher=lambda *given, **named: Timed(kafka_publisher(*given, **named), account),
    )
    build = header_source(cli.read_config(config).config).build
    status = cli.main(arguments, stop=stop)
    began = time.thread_time()
    for row in account.sample:
        build(row)
    each = (time.thread_time() - began) / max(1, len(account.sample))
    config.with_suffix(".profile").write_text(json.dumps(account.close(each)))
    return status


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[-1]), sys.argv[1:]))
