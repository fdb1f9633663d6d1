"""A run of tests ends, and all its tests are run once, whatever becomes of its processes.

Each test is a run of pytest with processes of its own, over a few small files.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.paths import REPOSITORY

WITHIN_SECONDS = 120
"""A run that waits for ever is what the tests are about; these take a few seconds."""

CONFTEST = """
from tests.scheduling import TierScheduling

def pytest_xdist_make_scheduler(config, log):
    return TierScheduling(config, log)
"""
PASSES = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_passes(number):
    pass
"""
DIES = """
import os, signal

def test_before():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""
WAITS = """
import threading

def test_waits():
    threading.Event().wait()

def test_after():
    pass
"""


def run(directory: Path, *arguments: str, files: dict[str, str]) -> tuple[dict[str, int], str]:
    """Outcomes of a run over these files, and what it printed."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (directory / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "-q", *arguments]
    ended = subprocess.run(
        [*command, str(directory)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WITHIN_SECONDS,
        check=False,
    )
    outcomes = re.findall(r"(\d+) (passed|failed|errors?)", ended.stdout.splitlines()[-1])
    return {outcome: int(number) for number, outcome in outcomes}, ended.stdout + ended.stderr


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("files", [1, 2, 12])
def test_a_process_that_dies(tmp_path: Path, processes: int, files: int) -> None:
    """Before it had finished many files, or it is the only one, or it dies in the last file."""
    passing = {f"a{number:02}": PASSES.format(tests=2 * files - number) for number in range(files)}
    outcomes, output = run(tmp_path, "-n", str(processes), files=passing | {"dies": DIES})
    assert outcomes == {"failed": 1, "passed": 2 + sum(2 * files - number for number in range(files))}, output
    assert re.search(r"worker 'gw\d' crashed while running '.*test_dies.py::test_dies'", output), output


@pytest.mark.parametrize("processes", [2, 3])
def test_several_that_die(tmp_path: Path, processes: int) -> None:
    """At once, and one after the other: what takes the place of one dies as well."""
    files = {f"a{number}": PASSES.format(tests=5) for number in range(3)} | {
        f"dies{number}": DIES for number in "12345"
    }
    outcomes, output = run(tmp_path, "-n", str(processes), files=files)
    assert outcomes == {"failed": 5, "passed": 15 + 10}, output


def test_one_that_waits_for_ever(tmp_path: Path) -> None:
    """It is ended with a stack of each thread, as one that died; this is what the tiers' own settings do."""
    limit = ("-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true")
    outcomes, output = run(tmp_path, "-n", "2", *limit, files={"a": PASSES.format(tests=5), "waits": WAITS})
    assert outcomes == {"failed": 1, "passed": 6}, output
    assert "in test_waits" in output
