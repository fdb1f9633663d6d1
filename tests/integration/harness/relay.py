"""Real relay processes: `outboxrelay run` with a configuration file, watched over HTTP and hurt by signals."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outboxrelay.config import RelayConfig, Tuning, dump
from outboxrelay.report import RelayReport
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import Topic
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database
from tests.testbed.services.processes import free_port, peak_resident_bytes

REPOSITORY = Path(__file__).parents[3]
OUTBOXRELAY = Path(sys.executable).with_name("outboxrelay")

PATIENCE_SECONDS = 90
"""For what should come at once, on a busy machine. What is promised within a time has that time in its test."""

_numbers = itertools.count(1)


def relay_config(
    *,
    database: Database,
    bootstrap_servers: str,
    topic: str,
    directory: Path,
    table: Mapping[str, Any] | None = None,
    tls: Mapping[str, Any] | None = None,
    match: Mapping[str, Any] | None = None,
    tuning: Mapping[str, Any] | None = None,
    **others: Any,
) -> RelayConfig:
    """A configuration for one pair, with the secret files it names written to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "username").write_text(database.user)
    (directory / "password").write_text(database.password)
    return RelayConfig.model_validate(
        {
            "pair": {"namespace": "shop", "relay": "shop", "name": "shop-db-topic", "database": "db", "topic": "topic"},
            "database": {
                "host": database.host,
                "port": database.port,
                "dbname": database.dbname,
                "credentials": {"username_file": directory / "username", "password_file": directory / "password"},
                "tls": tls if tls is not None else {"mode": "verify-full", "ca_file": database.ca_file},
                "connect_timeout_seconds": 2,
            },
            "table": table if table is not None else {"columns": {"headers": "headers", "created_at": "created_at"}},
            "match": match or {},
            "kafka": {"bootstrap_servers": tuple(bootstrap_servers.split(",")), "topic": topic},
            "tuning": tuning or {},
            "listen_host": "127.0.0.1",
            **others,
        }
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer of the relay."""

    status: int
    body: str


class RelayProcess:
    """One `outboxrelay run`; ended with SIGKILL at the end of the `with` block if it still runs.

    Args:
        config: the port in it is replaced by a free one.
        command: what to run instead, for relays with a wrong store.
    """

    def __init__(
        self,
        config: RelayConfig,
        *,
        directory: Path,
        name: str | None = None,
        command: Sequence[str] = (str(OUTBOXRELAY), "run"),
    ) -> None:
        self.name = name or f"relay-{next(_numbers)}"
        self.config = config.model_copy(update={"listen_port": free_port()})
        self.log = directory / f"{self.name}.log"
        self._config_file = directory / f"{self.name}.json"
        self._config_file.write_text(dump(self.config))
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting; it ends with the thread that called this, and so with a killed session."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program("setpriv"), "--pdeathsig", "KILL", *self._command, "--config", str(self._config_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**os.environ, "POD_NAME": self.name},
            )

    @property
    def pid(self) -> int:
        """The running process."""
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"{self.name} does not run:\n{self.log_tail()}")
        return self._process.pid

    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9 and reap."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=20)

    def pause(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """SIGTERM; returns the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds=seconds)

    def wait(self, *, seconds: float) -> int:
        """Wait for the end of the process; returns its exit status."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {seconds:g} s:\n{self.log_tail()}") from None

    def get(self, path: str, *, timeout: float = 5) -> Answer:
        """GET from the relay's HTTP server. Raises `OSError` when nobody answers."""
        url = f"http://127.0.0.1:{self.config.listen_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=timeout) as answer:
                return Answer(status=answer.status, body=answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(status=error.code, body=error.read().decode())

    def report(self) -> RelayReport:
        """What /status says now."""
        return RelayReport.model_validate_json(self.get("/status").body)

    def await_report(self, condition: Any, *, what: str, seconds: float = PATIENCE_SECONDS) -> RelayReport:
        """Wait until `condition(report)` is true, and return that report."""

        def fitting() -> RelayReport | None:
            report = self.report()
            return report if condition(report) else None

        found = eventually(
            fitting, seconds=seconds, what=f"{self.name}: {what}", tolerate=(OSError,), detail=self.log_tail
        )
        assert found is not None
        return found

    def await_ready(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for /readyz to be 200."""
        eventually(
            lambda: self.get("/readyz").status == 200,
            seconds=seconds,
            what=f"{self.name} to be ready",
            tolerate=(OSError,),
            detail=self.log_tail,
        )

    def catches_sigterm(self) -> bool:
        """Whether the process has a handler for SIGTERM by now, see proc(5)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
        raise AssertionError("no SigCgt in /proc")

    def log_text(self) -> str:
        """All that the process printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self, *, characters: int = 3000) -> str:
        """The end of the log, for messages."""
        return f"--- end of {self.log}:\n{self.log_text()[-characters:]}"

    def resident_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_resident_bytes(self) -> int:
        """The most resident memory so far."""
        return peak_resident_bytes(self.pid)

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def backends(self, database: Database) -> list[int]:
        """The server's pids of this process's connections, found by the ports they come from."""
        ports = _local_ports(self.pid)
        rows = database.execute("select pid, client_port from pg_stat_activity where client_port > 0")
        return [pid for pid, port in rows if port in ports]


def _local_ports(pid: int) -> set[int]:
    """Local TCP ports of a process's sockets, see proc(5)."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return {int(fields[1].rpartition(":")[2], 16) for fields in map(str.split, lines) if fields[9] in inodes}


class Pair:
    """One table and one topic, and the relays that work on them."""

    def __init__(
        self, *, database: Database, topic: Topic, config: RelayConfig, directory: Path, unsent: str = "true"
    ) -> None:
        """`unsent` is the SQL condition for rows that were not sent."""
        self.database = database
        self.unsent = unsent
        self.topic = topic
        self.config = config
        self.directory = directory
        self.relays: list[RelayProcess] = []

    def relay(self, *, start: bool = True, **options: Any) -> RelayProcess:
        """One more relay process of this pair."""
        made = RelayProcess(options.pop("config", self.config), directory=self.directory, **options)
        self.relays.append(made)
        if start:
            made.start()
        return made

    def insert(self, *rows: tuple[str | None, str | None], event_type: str = "T") -> list[int]:
        """Insert (key, payload) rows in one transaction; returns their ids."""
        with self.database.connect(autocommit=False) as connection:
            ids = []
            for key, payload in rows:
                cursor = connection.execute(
                    "insert into outbox (aggregatetype, aggregateid, type, payload)"
                    " values ('order', %s, %s, %s) returning id",
                    [key, event_type, payload],
                )
                found = cursor.fetchone()
                assert found is not None
                ids.append(int(found[0]))
        return ids

    def configured(self, **tuning: Any) -> RelayConfig:
        """The pair's configuration with other bounds of the loop."""
        return self.config.model_copy(update={"tuning": Tuning(**tuning)})

    def pending(self) -> int:
        """Rows in the table that were not sent."""
        return int(self.database.execute(f"select count(*) from outbox where {self.unsent}")[0][0])

    def await_empty(self, *, seconds: float = 60) -> None:
        """Wait until no row is left to be sent."""
        eventually(
            lambda: self.pending() == 0,
            seconds=seconds,
            what=f"empty outbox in {self.database.dbname}",
            detail=lambda: f"{self.pending()} rows left\n" + "\n".join(relay.log_tail() for relay in self.relays),
        )

    def unsettled_after_death(self, relay: RelayProcess) -> set[int]:
        """kill -9 a relay, and wait until the server has noticed its death; the rows that it had not settled."""
        # Looked at while it stands still: once it is dead another relay may send and settle them at once.
        relay.pause()
        backends = relay.backends(self.database)
        unsettled = self.unsettled()
        relay.kill()
        eventually(
            lambda: not self.database.execute("select 1 from pg_stat_activity where pid = any(%s)", [backends]),
            seconds=60,
            what=f"end of the database sessions of {relay.name}",
        )
        return unsettled

    def unsettled(self) -> set[int]:
        """The rows that were not sent, as far as the table knows."""
        return {row_id for (row_id,) in self.database.execute(f"select id from outbox where {self.unsent}")}

    def end(self) -> None:
        """kill -9 every relay that still runs."""
        for relay in self.relays:
            relay.kill()


@contextmanager
def relaying(pair: Pair) -> Iterator[Pair]:
    """End the pair's relays at the end of the block, whatever happened."""
    try:
        yield pair
    finally:
        pair.end()
