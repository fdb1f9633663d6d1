"""What the kernel keeps after the cluster's last process ended, and how it goes.

The pods' cgroups are empty by then, and the kubelet has changed a few
host-wide kernel settings. Both are found from the state directory alone.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.testbed.selfcontained.instance import Instance
from tests.testbed.waiting import wait_until

PROC_SYS = Path("/proc/sys")
CGROUP_TIMEOUT = 20.0
# What the kubelet sets on start; see setupKernelTunables in its container manager.
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def save_sysctls(instance: Instance) -> None:
    """Note the settings that the kubelet is going to change."""
    values = {name: (PROC_SYS / name).read_text().strip() for name in SYSCTLS if (PROC_SYS / name).exists()}
    instance.sysctls_file.write_text(json.dumps(values), encoding="ascii")


def restore_sysctls(instance: Instance) -> None:
    """Set what was noted back to its old value; do nothing if nothing was noted."""
    try:
        values = json.loads(instance.sysctls_file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return
    for name, value in values.items():
        if name in SYSCTLS and (PROC_SYS / name).read_text().strip() != value:
            (PROC_SYS / name).write_text(value)


def cgroup_mounts(mountinfo: str) -> list[Path]:
    """Return where cgroup hierarchies are mounted, from the text of /proc/self/mountinfo (see proc(5))."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in {"cgroup", "cgroup2"}:
            mounts.append(Path(before.split()[4]))
    return mounts


def hierarchies() -> list[Path]:
    """Return the roots of this host's cgroup hierarchies."""
    return cgroup_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


def create_cgroups(instance: Instance) -> None:
    """Create the cgroup below which the kubelet puts its pods.

    Version 2 needs the controllers handed down explicitly; version 1 has one tree for each of them.
    """
    for root in hierarchies():
        available = root / "cgroup.controllers"
        if available.exists():
            wanted = " ".join(f"+{name}" for name in available.read_text().split())
            (root / "cgroup.subtree_control").write_text(wanted)
        (root / instance.cgroup).mkdir(exist_ok=True)
        if root.name == "cpuset":
            _inherit_cpuset(root, root / instance.cgroup)


def _inherit_cpuset(root: Path, child: Path) -> None:
    # A new version 1 cpuset has neither processors nor memory and can hold no process.
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (root / name).exists():
            (child / name).write_text((root / name).read_text())


def remove_cgroups(instance: Instance) -> None:
    """Remove the pods' cgroups, the deepest first; the last process's end may take a moment to show."""
    tops = [root / instance.cgroup for root in hierarchies()]

    def removed() -> bool:
        # Each hierarchy gets its try, also when another one is still busy.
        return not [top for top in tops if not _removed(top)]

    wait_until(
        removed,
        what=f"the removal of the cgroups named {instance.cgroup}",
        timeout=CGROUP_TIMEOUT,
        hint="a process still runs in one of them; its cgroup.procs names it",
    )


def _deepest_first(top: Path) -> Iterator[Path]:
    directories: Iterable[Path] = (entry for entry in top.iterdir() if entry.is_dir())
    for directory in directories:
        yield from _deepest_first(directory)
    yield top


def _removed(top: Path) -> bool:
    try:
        for directory in _deepest_first(top):
            directory.rmdir()
    except FileNotFoundError:
        return not top.exists()
    except OSError:
        return False
    return True
