"""Which process is ours: a PID together with the moment it started.

A PID alone is reused, after a reboot at once, so no signal is ever sent on the
strength of a number in a file. All reads go through a /proc directory that is
handed in, because the cluster's processes live in a PID namespace of their own.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.errors import ClusterError

HOST_PROC = Path("/proc")
_STATE_FIELD = 0
_START_FIELD = 19
_DEAD = frozenset("ZX")


@dataclass(frozen=True)
class ProcessId:
    """A process of one boot: its PID and its start in clock ticks since that boot."""

    pid: int
    started: int
    boot: str


def boot_id(proc: Path = HOST_PROC) -> str:
    """Return the kernel's identifier of the present boot."""
    return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def parse_stat(line: str) -> tuple[int, str, int]:
    """Return PID, state letter and start time of a /proc/PID/stat line (see proc(5)).

    The command name stands in parentheses and may itself contain both, so the
    fields are counted from the last one. Raises ValueError if it is no such line.
    """
    head, closed, tail = line.rpartition(")")
    pid, opened, _ = head.partition("(")
    fields = tail.split()
    if not closed or not opened or len(fields) <= _START_FIELD:
        raise ValueError("not a line of /proc/PID/stat")
    return int(pid), fields[_STATE_FIELD], int(fields[_START_FIELD])


def read_record(path: Path) -> ProcessId | None:
    """Return the process recorded in `path`: a boot id, a space, a stat line; None if it is absent or torn."""
    try:
        boot, _, stat = path.read_text(encoding="utf-8", errors="replace").partition(" ")
        pid, _, started = parse_stat(stat)
    except (FileNotFoundError, ValueError):
        return None
    return ProcessId(pid=pid, started=started, boot=boot)


def identify(pid: int) -> ProcessId | None:
    """Return the process that has this PID now; None if there is none."""
    try:
        _, _, started = parse_stat((HOST_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessId(pid=pid, started=started, boot=boot_id())


def alive(process: ProcessId, *, proc: Path = HOST_PROC) -> bool:
    """Return whether this very process still runs; a zombie does not."""
    try:
        if boot_id(proc) != process.boot:
            return False
        _, state, started = parse_stat((proc / str(process.pid) / "stat").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    return started == process.started and state not in _DEAD


def kill(process: ProcessId, *, timeout: float) -> None:
    """End the process with SIGKILL and wait until it is gone.

    Raises ClusterError if it is still there after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while alive(process):
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"process {process.pid} did not end {timeout:.0f} s after SIGKILL; look at its state in ps"
            )
        time.sleep(0.02)
