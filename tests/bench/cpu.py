"""CPU time that a process and all its descendants have used, also those that have ended."""

from __future__ import annotations

import os
from pathlib import Path

from tests.testbed.services.processes import family

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree."""
    ticks = 0
    for position, member in enumerate(family(pid)):
        try:
            fields = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # utime and stime; of the root also cutime and cstime, what its ended children had used.
        ticks += sum(int(field) for field in fields[11 : 15 if position == 0 else 13])
    return ticks / _TICKS_PER_SECOND
