"""What a cluster could leave behind on its host, taken as sets that can be compared.

Each set holds names a person can look for. The things of another, running
cluster come and go by themselves and are left out by its cgroup's name; its
processes, mounts and firewall rules are in namespaces of its own and do not
show in these sets.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.commands import run
from tests.testbed.processes import HOST_PROC
from tests.testbed.selfcontained.residue import PROC_SYS, SYSCTLS, hierarchies

# Where Kubernetes, containerd and the CNI keep things on an ordinary node.
FOLDERS = (
    "/etc/cni",
    "/opt/cni",
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)


@dataclass(frozen=True)
class Snapshot:
    """The state of the host in everything that a cluster touches."""

    mounts: frozenset[str]
    links: frozenset[str]
    routes: frozenset[str]
    nft_tables: frozenset[str]
    cgroups: frozenset[str]
    sysctls: frozenset[str]
    files: frozenset[str]


def _lines(*command: str) -> frozenset[str]:
    return frozenset(" ".join(line.split()) for line in run(command, doing=f"running {command[0]}").splitlines())


def _below(root: Path, *, without: frozenset[str]) -> Iterator[str]:
    try:
        entries = [entry for entry in root.iterdir() if entry.is_dir() and entry.name not in without]
    except FileNotFoundError:
        return
    for entry in entries:
        yield str(entry)
        yield from _below(entry, without=without)


def _cgroups(*, without: frozenset[str]) -> Iterator[str]:
    for root in hierarchies():
        for name in _below(root, without=without):
            _, *deeper = Path(name).relative_to(root).parts
            if not deeper or "kubepods" in deeper:
                yield name


def _files(folder: str) -> Iterator[str]:
    root = Path(folder)
    if root.exists():
        yield folder
        yield from (str(entry) for entry in root.rglob("*"))


def take(*, other_cgroups: frozenset[str]) -> Snapshot:
    """Return the host's present state; the cgroups named in `other_cgroups` are of no interest."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    values = {name: (PROC_SYS / name).read_text().strip() for name in SYSCTLS if (PROC_SYS / name).exists()}
    return Snapshot(
        mounts=frozenset(line.split()[4] for line in mountinfo.splitlines()),
        links=frozenset(entry.name for entry in Path("/sys/class/net").iterdir()),
        routes=_lines("ip", "route", "show", "table", "all") | _lines("ip", "-6", "route", "show", "table", "all"),
        nft_tables=_lines("nft", "list", "tables"),
        cgroups=frozenset(_cgroups(without=other_cgroups)),
        sysctls=frozenset(f"{name}={value}" for name, value in values.items()),
        files=frozenset(name for folder in FOLDERS for name in _files(folder)),
    )


def network_namespaces(pids: Iterable[int]) -> frozenset[str]:
    """Return the network namespaces that these processes are in, as the kernel names them: `net:[4026531840]`."""
    found = set()
    for pid in pids:
        try:
            found.add(str((HOST_PROC / str(pid) / "ns" / "net").readlink()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(found)


def _pids() -> list[int]:
    return [int(entry.name) for entry in HOST_PROC.iterdir() if entry.name.isdecimal()]


def descendants(ancestor: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        try:
            stat = (HOST_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def processes_naming(path: Path) -> list[int]:
    """Return the processes whose command line names `path`, this one left out."""
    found = []
    for pid in _pids():
        try:
            line = (HOST_PROC / str(pid) / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(path) in line and pid != os.getpid():
            found.append(pid)
    return found
