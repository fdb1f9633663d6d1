"""Reading the kubelet's memory summary, and finding the processes of a container."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.demo.killing import container_id, kill_container, processes_of
from tests.demo.memory import working_sets

ID = "0123456789abcdef" * 4


def _pod(name: str, *mib: float, namespace: str = "shop") -> dict[str, Any]:
    return {
        "podRef": {"name": name, "namespace": namespace},
        "containers": [{"memory": {"workingSetBytes": used * 1024 * 1024}} for used in mib],
    }


def test_working_sets_of_one_namespace() -> None:
    summary = {"pods": [_pod("relay-a", 40.0), _pod("relay-b", 30.0, 12.0), _pod("other", 5.0, namespace="else")]}
    assert working_sets(summary, namespace="shop") == {"relay-a": 40.0, "relay-b": 42.0}


def test_pods_without_a_measurement_are_left_out() -> None:
    starting = {"podRef": {"name": "new", "namespace": "shop"}, "containers": [{"memory": {}}]}
    assert working_sets({"pods": [starting, {"podRef": starting["podRef"]}]}, namespace="shop") == {}
    assert working_sets({}, namespace="shop") == {}


def _status(container: str, state: str = "running") -> dict[str, Any]:
    return {"status": {"containerStatuses": [{"containerID": container, "state": {state: {}}}]}}


def test_the_container_id_is_the_runtime_s() -> None:
    assert container_id(_status(f"containerd://{ID}")) == ID


@pytest.mark.parametrize(
    "pod",
    [
        {},
        _status(""),
        _status("containerd://short"),
        _status(f"containerd://{ID}", "terminated"),
    ],
)
def test_no_container_id_while_nothing_runs(pod: dict[str, Any]) -> None:
    assert container_id(pod) is None


def _process(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(f"5:memory:{cgroup}\n1:name=systemd:{cgroup}\n")


def test_processes_are_found_by_their_cgroup(tmp_path: Path) -> None:
    _process(tmp_path, 31, f"/kubepods/burstable/pod1/{ID}")
    _process(tmp_path, 7, f"/kubepods/burstable/pod1/{ID}")
    _process(tmp_path, 8, "/kubepods/burstable/pod1/" + "f" * 64)
    (tmp_path / "9").mkdir()
    (tmp_path / "sys").mkdir()
    assert processes_of(ID, proc=tmp_path) == [7, 31]


def test_a_found_process_is_killed_without_a_chance_to_clean_up(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        _process(tmp_path, victim.pid, f"/pod/{ID}")
        assert kill_container(ID, proc=tmp_path) == [victim.pid]
        assert victim.wait(timeout=10) == -signal.SIGKILL


def test_a_process_that_ended_meanwhile_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait(timeout=10)
    _process(tmp_path, gone.pid, f"/pod/{ID}")
    assert kill_container(ID, proc=tmp_path) == [gone.pid]


def test_nothing_is_killed_for_another_container(tmp_path: Path) -> None:
    _process(tmp_path, os.getpid(), f"/pod/{ID}")
    assert kill_container("e" * 64, proc=tmp_path) == []
