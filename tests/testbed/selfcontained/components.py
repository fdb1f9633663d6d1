"""The node's programs: started inside the namespaces, detached from whoever asked, logging to a file each.

A component is known by its PID inside the namespaces and its start time. It is
seen through the /proc of the namespaces' PID 1, so nothing outside them can be
mistaken for it.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.testbed.commands import run
from tests.testbed.errors import ClusterError
from tests.testbed.processes import ProcessId, alive, read_record
from tests.testbed.selfcontained.instance import Instance
from tests.testbed.selfcontained.sandbox import environment, inside
from tests.testbed.waiting import wait_until

# Leaves a session of its own behind: its PID and start time survive the exec
# that turns it into the component.
_LAUNCH = """
record=$1 log=$2
shift 2
setsid sh -c '
  record=$1; shift
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r stat < /proc/self/stat
  printf "%s %s\\n" "$boot" "$stat" > "$record.new"
  mv "$record.new" "$record"
  exec "$@"
' launch "$record" "$@" < /dev/null >> "$log" 2>&1 &
"""


def proc_of(init: ProcessId) -> Path:
    """Return the /proc of the namespaces, as seen from the host."""
    return Path("/proc", str(init.pid), "root", "proc")


def running(instance: Instance, init: ProcessId, name: str) -> bool:
    """Return whether the component that was last started under this name still runs."""
    recorded = read_record(instance.records / name)
    return recorded is not None and alive(recorded, proc=proc_of(init))


def start(instance: Instance, init: ProcessId, name: str, *, argv: Sequence[str | Path]) -> None:
    """Start the component `name`; its output is appended to its log."""
    run(
        inside(
            init,
            ["/bin/sh", "-c", _LAUNCH, "launch", instance.records / name, instance.logs / f"{name}.log", *argv],
        ),
        doing=f"starting {name}",
        environment=environment(),
    )


def stop(instance: Instance, init: ProcessId, name: str, *, timeout: float = 30.0) -> None:
    """Kill the component `name`, as a crash would, and wait until it is gone; `lifecycle.up` starts it again.

    Raises ClusterError if it does not run, or does not end.
    """
    recorded = read_record(instance.records / name)
    if recorded is None or not alive(recorded, proc=proc_of(init)):
        raise ClusterError(f"{name} does not run; see {instance.logs / name}.log")
    run_inside(init, ["kill", "-KILL", str(recorded.pid)], doing=f"killing {name}")
    wait_until(
        lambda: not alive(recorded, proc=proc_of(init)), what=f"the end of {name}", timeout=timeout, hint="see ps"
    )


def log_tail(instance: Instance, name: str, *, lines: int = 5) -> str:
    """Return the last lines of a component's log."""
    try:
        text = (instance.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def containerd_answers(init: ProcessId) -> bool:
    """Return whether containerd serves its socket; the file alone may be a killed predecessor's."""
    try:
        run_inside(init, ["ctr", "--connect-timeout", "1s", "version"], doing="asking containerd")
    except ClusterError:
        return False
    return True


def run_inside(init: ProcessId, argv: Sequence[str | Path], *, doing: str) -> str:
    """Run a program inside the namespaces to its end and return its output; see commands.run."""
    return run(inside(init, argv), doing=doing, environment=environment())
