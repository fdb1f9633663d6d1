"""Processes of the local services: known by pid and start time, and ended whatever becomes of the session.

Three nets, since a leaked broker spoils every later run: the context managers end their process; the kernel ends
it when the session dies (parent-death signal); and the next session ends what a killed one left behind, which it
knows from the names in one directory. No process is ever looked up by its command line.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.services.eventually import eventually
from tests.testbed.services.packages import program


class ServiceError(RuntimeError):
    """A local service did not start or does not answer; the message ends with the end of its log."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process as such: a pid alone may have been given to another process since."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now, if any."""
        fields = _stat(pid)
        return cls(pid=pid, started=int(fields[19])) if fields is not None else None

    def runs(self) -> bool:
        """Whether this very process is still there (a zombie is not)."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started and fields[0] != "Z"

    def stands_still(self) -> bool:
        """Whether every thread is stopped; also true of a process that has ended."""
        return not self.runs() or all(
            fields is None or fields[0] in "TtZX" for fields in map(_stat_of, Path(f"/proc/{self.pid}/task").glob("*"))
        )

    def send(self, number: signal.Signals) -> None:
        """Signal the process if it is still there."""
        if self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _stat(pid: int) -> list[str] | None:
    return _stat_of(Path(f"/proc/{pid}"))


def _stat_of(task: Path) -> list[str] | None:
    """Fields of proc(5) stat of a process or thread from the third (state) on."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def family(pid: int) -> list[ProcessId]:
    """The process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    order = [pid]
    for parent in order:
        order.extend(children.get(parent, ()))
    return [found for found in map(ProcessId.of, order) if found is not None]


def peak_resident_bytes(pid: int) -> int:
    """The largest resident set that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status says nothing of VmHWM")


def end_family(root: ProcessId, *, seconds: float = 20) -> None:
    """SIGKILL a process and its descendants and wait until they are gone."""
    if not root.runs():
        return
    members = family(root.pid)
    for member in members:
        member.send(signal.SIGKILL)
    eventually(
        lambda: not any(member.runs() for member in members),
        seconds=seconds,
        what=f"end of process {root.pid} and children",
    )


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on.

    From below the ephemeral range, so that an outgoing connection cannot take it while a service restarts.
    """
    for _ in range(200):
        port = random.randint(20_000, 29_999)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServiceError("no free port between 20000 and 29999 on 127.0.0.1")


def _sessions_root() -> Path:
    return Path(tempfile.gettempdir()) / f"outboxrelay-services-{os.getuid()}"


def service_directory(kind: str) -> Path:
    """A new directory for one service, whose name tells which session owns it."""
    sweep()
    me = ProcessId.of(os.getpid())
    if me is None:
        raise ServiceError("cannot read /proc/self/stat: the local services need Linux")
    root = _sessions_root()
    root.mkdir(mode=0o755, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{me.pid}-{me.started}-{kind}-", dir=root))


def sweep() -> None:
    """End the processes and remove the directories of sessions that no longer run."""
    root = _sessions_root()
    if not root.is_dir():
        return
    for directory in root.iterdir():
        pid, started, *_ = directory.name.split("-")
        if not ProcessId(pid=int(pid), started=int(started)).runs():
            remove(directory)


def live_sessions(kind: str = "") -> set[ProcessId]:
    """Sessions that run services now; with `kind`, only those that own a directory of that kind."""
    found = set()
    for directory in _sessions_root().glob(f"*-*-{kind}*"):
        pid, started, *_ = directory.name.split("-")
        owner = ProcessId(pid=int(pid), started=int(started))
        if owner.runs():
            found.add(owner)
    return found


def remove(directory: Path) -> None:
    """End every process recorded in a service's directory, then remove the directory."""
    record = directory / "processes"
    if record.exists():
        for line in record.read_text().splitlines():
            pid, started = line.split()
            end_family(ProcessId(pid=int(pid), started=int(started)))
    shutil.rmtree(directory, ignore_errors=True)


@dataclass
class ServiceProcess:
    """One process of a service, with its log; start it again after it ended.

    The parent-death signal follows the thread that called `start`: call it from one that lives as long as the
    session, as pytest's main thread does.
    """

    name: str
    directory: Path
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    death_signal: str = "KILL"
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Standard output and error of all runs."""
        return self.directory / f"{self.name}.log"

    @property
    def id(self) -> ProcessId:
        """The running process; raises `ServiceError` when it does not run."""
        found = ProcessId.of(self._process.pid) if self._process is not None and self._process.poll() is None else None
        if found is None:
            raise ServiceError(f"{self.name} does not run; end of {self.log}:\n{self.log_tail()}")
        return found

    def start(self) -> None:
        """Start it; the caller awaits readiness."""
        prefix = [str(program("setpriv")), "--pdeathsig", self.death_signal]
        if self.user is not None:
            prefix += ["--reuid", self.user, "--regid", self.user, "--init-groups"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*prefix, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **self.environment},
                # Ctrl-C at the terminal must reach the session first: it stops its services in order.
                start_new_session=True,
            )
        started = ProcessId.of(self._process.pid)
        if started is not None:
            with (self.directory / "processes").open("a") as record:
                record.write(f"{started.pid} {started.started}\n")

    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def stop(self, number: signal.Signals, *, seconds: float) -> None:
        """End it by `number`, or by SIGKILL when that takes longer than `seconds`."""
        if self._process is None or self._process.poll() is not None:
            return
        self.resume()
        self._process.send_signal(number)
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9, children included, as when a node is lost."""
        if self._process is not None and self._process.poll() is None:
            members = family(self._process.pid)
            for member in members:
                member.send(signal.SIGKILL)
            self._process.wait(timeout=20)
            eventually(lambda: not any(member.runs() for member in members), seconds=20, what=f"end of {self.name}")

    def pause(self) -> None:
        """SIGSTOP, children included: peers see a host that accepts connections but never answers.

        Returns when all threads of all of them have stopped: on a busy machine some of them answer for a while yet.
        """
        members = family(self.id.pid)
        for member in members:
            member.send(signal.SIGSTOP)
        eventually(
            lambda: all(member.stands_still() for member in members), seconds=20, what=f"standstill of {self.name}"
        )

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        for member in family(self.id.pid):
            member.send(signal.SIGCONT)

    def log_tail(self, *, characters: int = 3000) -> str:
        """The end of the log, for messages."""
        if not self.log.exists():
            return "(no log)"
        return self.log.read_text(errors="replace")[-characters:]

    def await_ready(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait until `ready()` is true; fail at once when the process ended.

        Raises:
            ServiceError: when it ended. DeadlineExceededError: when the time is up. Both with the end of the log.
        """

        def ended_or_ready() -> bool:
            return not self.running() or ready()

        eventually(ended_or_ready, seconds=seconds, what=f"{self.name} to be ready", detail=self.log_tail)
        if not self.running():
            raise ServiceError(f"{self.name} ended while starting; end of {self.log}:\n{self.log_tail()}")
