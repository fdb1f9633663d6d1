"""The namespaces that hold the whole node, and their one link to the host.

Creating them starts `sandbox.sh`, which becomes their PID 1. Destroying them is
to kill that process: the kernel ends the rest. What the kernel does not remove
(cgroups, files, a few host-wide settings) is the business of residue.py.
"""

import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.commands import run
from tests.testbed.errors import ClusterError
from tests.testbed.packages import SEARCH_PATH
from tests.testbed.processes import ProcessId, alive, kill, read_record
from tests.testbed.selfcontained.instance import Instance, Network
from tests.testbed.waiting import wait_until

SCRIPT = Path(__file__).with_name("sandbox.sh")
KILL_TIMEOUT = 30.0
ARRANGE_TIMEOUT = 15.0
# These are replaced inside the namespaces, so the state must not lie below them.
REPLACED = (Path("/run"), Path("/var"))


def init_process(instance: Instance) -> ProcessId | None:
    """Return the running PID 1 of the namespaces, as the host numbers it; None if there is none."""
    recorded = read_record(instance.init_record)
    return recorded if recorded is not None and alive(recorded) else None


def inside(init: ProcessId, argv: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs `argv` inside the namespaces."""
    return ["nsenter", "--target", str(init.pid), "--mount", "--net", "--pid", "--", *(str(part) for part in argv)]


def environment() -> dict[str, str]:
    """Return what the node's programs may know of the caller's environment: nothing but the search path."""
    return {"PATH": SEARCH_PATH, "HOME": "/"}


def create(instance: Instance, network: Network, *, pause: Path) -> ProcessId:
    """Start the namespaces and link them to the host; return their PID 1.

    Raises ClusterError if this kernel or this user may not do so.
    """
    resolved = instance.state.resolve()
    if any(resolved.is_relative_to(directory) for directory in REPLACED):
        raise ClusterError(
            f"the cluster's state cannot lie in {resolved}; set OUTBOXRELAY_CACHE to a folder outside /run and /var"
        )
    generation = secrets.token_hex(8)
    (instance.state / "generation").write_text(generation, encoding="ascii")
    log = instance.logs / "sandbox.log"
    with log.open("ab") as output:
        starter = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--mount", "--net", "/bin/sh", SCRIPT, instance.state, generation, pause],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=environment(),
        )
    hint = f"see {log}"
    wait_until(
        lambda: (instance.state / "arranged").exists() or starter.poll() is not None,
        what="the arrangement of the cluster's namespaces",
        timeout=ARRANGE_TIMEOUT,
        hint=hint,
    )
    init = init_process(instance)
    # `unshare` only waits for its child, which lives on without it.
    starter.kill()
    starter.wait()
    if init is None:
        raise ClusterError(f"this host does not let us create PID, mount and network namespaces; {hint}")
    _link(instance, network, init)
    return init


def _link(instance: Instance, network: Network, init: ProcessId) -> None:
    link, doing = instance.host_link, "linking the cluster's network to the host"
    length = network.link.prefixlen

    def host(*words: str) -> None:
        run(["ip", *words], doing=doing)

    def node(*words: str) -> None:
        run(inside(init, ["ip", *words]), doing=doing, environment=environment())

    host("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(init.pid))
    host("address", "add", f"{network.host_address}/{length}", "dev", link)
    host("link", "set", link, "up")
    node("address", "add", f"{network.node_address}/{length}", "dev", "eth0")
    node("link", "set", "eth0", "up")
    # What is not the cluster's is silently lost, as behind a firewall: the same every time, unlike
    # error messages of the kernel, whose rate is limited.
    node("route", "add", "blackhole", "default")
    for target in (network.pods, network.services):
        host("route", "add", str(target), "via", str(network.node_address), "dev", link)


def destroy(instance: Instance) -> None:
    """End every process in the namespaces and wait until their network interface is gone too.

    Does nothing if there are none. Raises ClusterError if something survives.
    """
    recorded = read_record(instance.init_record)
    if recorded is not None:
        kill(recorded, timeout=KILL_TIMEOUT)
    wait_until(
        lambda: not _link_exists(instance),
        what=f"the end of the network interface {instance.host_link}",
        timeout=KILL_TIMEOUT,
        hint=f"remove it with `ip link delete {instance.host_link}`",
    )


def _link_exists(instance: Instance) -> bool:
    return Path("/sys/class/net", instance.host_link).exists()


def open_directories(instance: Instance) -> None:
    """Create the state directory anew; whoever is root owns it and nobody else looks in."""
    if instance.state.exists():
        shutil.rmtree(instance.state)
    instance.state.mkdir(parents=True, mode=0o700)
    for directory in (instance.logs, instance.records, instance.config / "cni", instance.pki, instance.loaded_images):
        directory.mkdir(parents=True)
    instance.pki.chmod(0o700)
