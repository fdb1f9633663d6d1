"""The testbed's dealings with its host.

Aspects: cgroup mounts of both versions; kernel settings are put back; missing packages; waiting; locks; commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed import packages
from tests.testbed.commands import run
from tests.testbed.errors import ClusterError
from tests.testbed.locking import exclusive
from tests.testbed.paths import REPOSITORY, cache_dir
from tests.testbed.selfcontained import residue
from tests.testbed.selfcontained.instance import Instance
from tests.testbed.waiting import wait_until

MOUNTINFO = """\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 25 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
40 31 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_cgroup_hierarchies_of_both_versions_are_found() -> None:
    assert residue.cgroup_mounts(MOUNTINFO) == [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/unified")]


def test_kernel_settings_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residue, "PROC_SYS", tmp_path / "sys")
    instance = Instance(tmp_path / "state")
    instance.state.mkdir()
    for folder in ("vm", "kernel/keys"):
        (tmp_path / "sys" / folder).mkdir(parents=True)
    panic, overcommit = tmp_path / "sys/kernel/panic", tmp_path / "sys/vm/overcommit_memory"
    panic.write_text("0\n")
    overcommit.write_text("2\n")
    residue.save_sysctls(instance)
    panic.write_text("10\n")
    residue.restore_sysctls(instance)
    assert (panic.read_text().strip(), overcommit.read_text().strip()) == ("0", "2")


def test_nothing_noted_means_nothing_put_back(tmp_path: Path) -> None:
    residue.restore_sysctls(Instance(tmp_path))
    (tmp_path / "sysctls.json").write_text("{torn")
    residue.restore_sysctls(Instance(tmp_path))


def test_each_missing_package_is_named_once() -> None:
    absent = {"containerd", "ctr", "nft"}
    assert packages.missing(packages.NODE, has=lambda proof: proof not in absent) == ("containerd", "nftables")


def test_whoever_is_not_root_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        ClusterError, match=r"^a test needs these Debian packages .*: no-such-package; install them first$"
    ):
        packages.ensure({"/no/such/file": "no-such-package"}, purpose="a test")


@pytest.mark.parametrize(
    ("text", "debian"),
    [("ID=debian\n", True), ('ID=ubuntu\nID_LIKE="debian"\n', True), ("ID=fedora\n", False), ("", False)],
)
def test_debian_is_recognised(tmp_path: Path, text: str, debian: bool) -> None:
    (tmp_path / "os-release").write_text(text)
    assert packages.is_debian(tmp_path / "os-release") is debian
    assert not packages.is_debian(tmp_path / "absent")


def test_waiting_ends_with_the_reason() -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(ClusterError, match="the flood did not happen within 5 s; ask Noah"):
        wait_until(lambda: False, what="the flood", timeout=5, hint="ask Noah", clock=lambda: now[0], pause=pause)
    wait_until(lambda: now[0] > 7, what="more", timeout=5, hint="", clock=lambda: now[0], pause=pause)


HOLD = """
import pathlib, sys
from tests.testbed.locking import exclusive
with exclusive(pathlib.Path(sys.argv[1]), purpose="a test"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_waited_for_and_freed_by_a_killed_holder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "x.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    waiter = None
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        waiter = subprocess.Popen(
            [sys.executable, "-c", HOLD, lock],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with waiter:
            assert waiter.stderr is not None
            assert f"waiting for process {holder.pid}, which is busy with a test" in waiter.stderr.readline().decode()
            holder.kill()
            assert waiter.wait(timeout=30) == 0
    with exclusive(lock, purpose="a test"):
        assert capfd.readouterr().err == "", "nobody has it, so nobody is waited for"


def test_a_failed_command_is_told_with_its_last_words() -> None:
    with pytest.raises(ClusterError, match=r"(?s)making tea: .* ended with status 3:\nno water$"):
        run([sys.executable, "-c", "import sys; print('no water', file=sys.stderr); sys.exit(3)"], doing="making tea")
    with pytest.raises(ClusterError, match="making tea: the program no-such-kettle is not installed"):
        run(["no-such-kettle"], doing="making tea")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OUTBOXRELAY_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/outboxrelay")),
        ({}, Path.home() / ".cache/outboxrelay"),
    ],
)
def test_the_cache_lies_where_the_user_says(environ: dict[str, str], expected: Path) -> None:
    assert cache_dir(environ) == expected.resolve()
