"""Processes are known by PID, start time and boot.

Aspects: odd command names in stat lines; torn and missing records; a reused PID; another boot; zombies; kill.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.errors import ClusterError
from tests.testbed.processes import ProcessId, alive, identify, kill, parse_stat, read_record

STAT = "4242 ({name}) S 1 4242 4242 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 100 200"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["etcd", "a b", "x) R 1 (y", "(", ")"])
def test_a_stat_line_is_read_whatever_the_command_is_called(name: str) -> None:
    assert parse_stat(STAT.format(name=name)) == (4242, "S", 987654)


@pytest.mark.parametrize("line", ["", "4242", "4242 (etcd) S 1 2", "etcd"])
def test_what_is_no_stat_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of"):
        parse_stat(line)


def test_a_record_names_boot_pid_and_start(tmp_path: Path) -> None:
    record = tmp_path / "etcd"
    record.write_text("some-boot " + STAT.format(name="sh") + "\n")
    assert read_record(record) == ProcessId(pid=4242, started=987654, boot="some-boot")


@pytest.mark.parametrize("text", ["", "some-boot", "some-boot 4242 (sh"])
def test_a_torn_record_names_nobody(tmp_path: Path, text: str) -> None:
    record = tmp_path / "etcd"
    record.write_text(text)
    assert read_record(record) is None
    assert read_record(tmp_path / "absent") is None


def test_only_the_very_same_process_is_alive() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert alive(me)
    assert not alive(dataclasses.replace(me, started=me.started + 1)), "its PID was reused"
    assert not alive(dataclasses.replace(me, boot="another boot"))


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    kill(known, timeout=10)
    assert sleeper.returncode is None, "nobody has waited for it, so the kernel keeps it as a zombie"
    assert not alive(known)


def test_kill_spares_a_process_that_merely_has_the_same_pid(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    kill(dataclasses.replace(known, started=known.started - 1), timeout=10)
    assert sleeper.poll() is None


def test_a_process_that_does_not_end_is_reported(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    monkeypatch.setattr(os, "kill", lambda *_: None)
    with pytest.raises(ClusterError, match=f"process {sleeper.pid} did not end"):
        kill(known, timeout=0)


def test_nobody_has_an_impossible_pid() -> None:
    assert identify(2**22 + 1) is None
