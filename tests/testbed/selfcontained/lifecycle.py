"""Bringing one self-contained cluster up and down, from any state that a killed run may have left.

A cluster is reused only if it once was healthy, its namespaces still live and
it was made by the same versions and configuration; parts of it that died are
started again. Everything else is cleared and made anew, which takes seconds.
"""

import base64
import hashlib
import ipaddress
import json
import shutil
from pathlib import Path

from tests.testbed import binaries, packages
from tests.testbed.commands import run
from tests.testbed.console import say, step
from tests.testbed.errors import ClusterError
from tests.testbed.images import pause
from tests.testbed.locking import exclusive
from tests.testbed.processes import ProcessId
from tests.testbed.selfcontained import components, config, node_images, pki, residue, sandbox
from tests.testbed.selfcontained.health import Probe
from tests.testbed.selfcontained.instance import (
    NODE_NAME,
    Instance,
    Network,
    Settings,
    free_network,
    load_settings,
)
from tests.testbed.waiting import wait_until

API_TIMEOUT = 60.0
HEALTH_TIMEOUT = 90.0


def up(instance: Instance) -> None:
    """Return with a healthy cluster: the running one, mended if need be, or a new one.

    Raises ClusterError naming the part that does not come up and its log.
    """
    with exclusive(instance.lock, purpose="bringing the cluster up or down"):
        built = binaries.ensure()
        packages.ensure(packages.NODE, purpose="the self-contained cluster")
        if _reuse(instance, built):
            return
        _clear(instance)
        _create(instance, built)


def down(instance: Instance) -> bool:
    """Remove the cluster and every trace of it; return whether there was any.

    Works in any state; raises ClusterError naming what could not be removed.
    """
    with exclusive(instance.lock, purpose="bringing the cluster up or down"):
        existed = instance.state.exists()
        _clear(instance)
        return existed


def load_archive(instance: Instance, *, image: str, archive: Path, key: str) -> None:
    """Bring an image to the node unless it already has this very content.

    Raises ClusterError if the cluster is down or containerd refuses the archive.
    """
    init = sandbox.init_process(instance)
    if init is None:
        raise ClusterError("the cluster is not running; run `make cluster-up` first")
    node_images.load(instance, init, image=image, archive=archive, key=key)


def stop(instance: Instance, name: str) -> None:
    """Kill one component of the running cluster; `up` mends that.

    Raises ClusterError if the cluster or the component does not run.
    """
    init = sandbox.init_process(instance)
    if init is None:
        raise ClusterError("the cluster is not running; run `make cluster-up` first")
    components.stop(instance, init, name)


def status(instance: Instance) -> str:
    """Return one line about the cluster's state."""
    init = sandbox.init_process(instance)
    settings = _settings(instance)
    if init is None or settings is None:
        return "down"
    failing = Probe(instance, settings.network).failing()
    return f"not healthy: {', '.join(failing)}; logs in {instance.logs}" if failing else "healthy"


def _settings(instance: Instance) -> Settings | None:
    try:
        return load_settings(instance.settings_file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None


def _version(instance: Instance, network: Network, built: binaries.Binaries) -> str:
    """Return a key of everything that the running processes were started from."""
    rendered = config.files(instance, network, pause_image=pause.image_name())
    parts = [built.key, json.dumps(config.arguments(instance, network), sort_keys=True)]
    parts += [f"{path}\0{text}" for path, text in sorted(rendered.items())]
    parts.append(sandbox.SCRIPT.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _reuse(instance: Instance, built: binaries.Binaries) -> bool:
    init, settings = sandbox.init_process(instance), _settings(instance)
    if not instance.state.exists():
        return False
    if init is None or settings is None or not instance.complete_mark.exists():
        say("  an earlier run left an unfinished or dead cluster; removing it")
        return False
    if settings.version != _version(instance, settings.network, built):
        say("  the running cluster was made by another version of the testbed; replacing it")
        return False
    commands = _commands(instance, settings.network, built)
    dead = [name for name in commands if not components.running(instance, init, name)]
    if not dead and not Probe(instance, settings.network).failing():
        return True
    try:
        with step(f"mending the running cluster, dead: {', '.join(dead) or 'nothing'}", usually="10 s"):
            _start(instance, settings.network, built, init)
    except ClusterError as reason:
        if not dead:
            # Somebody may be using it, and it may only be slow: too little to throw it away for.
            raise ClusterError(f"{reason}\nIf this machine is not merely busy, run `make cluster-down` first") from None
        say(f"  the running cluster does not recover, making a new one: {reason}")
        return False
    return True


def _clear(instance: Instance) -> None:
    sandbox.destroy(instance)
    residue.remove_cgroups(instance)
    residue.restore_sysctls(instance)
    if instance.state.exists():
        shutil.rmtree(instance.state)


def _commands(instance: Instance, network: Network, built: binaries.Binaries) -> dict[str, list[str]]:
    # containerd is Debian's; everything else was built.
    return {
        name: [name if name == "containerd" else str(built.path(name)), *arguments]
        for name, arguments in config.arguments(instance, network).items()
    }


def _host_networks() -> list[ipaddress.IPv4Network]:
    answer = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"], doing="reading the host's routes"))
    found = [str(route["dst"]) for route in answer if route.get("dst", "default") != "default"]
    return [ipaddress.IPv4Network(target, strict=False) for target in found]


def _create(instance: Instance, built: binaries.Binaries) -> None:
    with step("starting a Kubernetes cluster", usually="15 s"):
        sandbox.open_directories(instance)
        network = free_network(_host_networks())
        settings = Settings(network=network, version=_version(instance, network, built))
        instance.settings_file.write_text(settings.dump(), encoding="ascii")
        _write_configuration(instance, network)
        residue.save_sysctls(instance)
        residue.create_cgroups(instance)
        init = sandbox.create(instance, network, pause=pause.binary())
        _start(instance, network, built, init)
        instance.complete_mark.touch()


def _write_configuration(instance: Instance, network: Network) -> None:
    tokens = pki.new_tokens()
    pki.create(instance.pki, network, tokens=tokens)
    for path, text in config.files(instance, network, pause_image=pause.image_name()).items():
        path.write_text(text, encoding="utf-8")
    authority = base64.b64encode((instance.pki / "ca.crt").read_bytes()).decode("ascii")
    logins = {
        instance.kubeconfig: "admin",
        instance.config / "kube-controller-manager.kubeconfig": "system:kube-controller-manager",
        instance.config / "kube-scheduler.kubeconfig": "system:kube-scheduler",
        instance.config / "kubelet.kubeconfig": f"system:node:{NODE_NAME}",
        instance.config / "kube-proxy.kubeconfig": "system:kube-proxy",
        instance.config / "coredns.kubeconfig": "outboxrelay-testbed:dns",
    }
    for path, user in logins.items():
        text = config.kubeconfig(network, user=user, token=tokens[user], authority_base64=authority)
        pki.write_secret(path, text.encode())


def _start(instance: Instance, network: Network, built: binaries.Binaries, init: ProcessId) -> None:
    """Start what does not run yet, in the order of their needs, and wait until all is healthy."""
    probe = Probe(instance, network)
    commands = _commands(instance, network, built)

    def start(*names: str) -> None:
        for name in names:
            if not components.running(instance, init, name):
                components.start(instance, init, name, argv=commands[name])

    start("etcd", "kube-apiserver", "containerd")
    # The kubelet ends if containerd does not answer, and asks for the sandbox image at once.
    wait_until(
        lambda: components.containerd_answers(init),
        what="the start of containerd",
        timeout=API_TIMEOUT,
        hint=f"see {instance.logs / 'containerd.log'}",
    )
    image = pause.archive()
    node_images.load(instance, init, image=image.image, archive=image.archive, key=image.key)
    wait_until(
        probe.api_server,
        what="the start of the API server",
        timeout=API_TIMEOUT,
        hint=f"see {instance.logs / 'kube-apiserver.log'} and etcd.log beside it",
    )
    run(
        [built.path("kubectl"), "apply", "-f", instance.config / "dns-access.json"],
        doing="giving CoreDNS its permissions",
        environment={"KUBECONFIG": str(instance.kubeconfig), **sandbox.environment()},
    )
    start(*commands)
    _await_health(instance, probe, timeout=HEALTH_TIMEOUT)


def _await_health(instance: Instance, probe: Probe, *, timeout: float) -> None:
    failing: list[str] = []

    def healthy() -> bool:
        failing[:] = probe.failing()
        return not failing

    try:
        wait_until(healthy, what="a healthy cluster", timeout=timeout, hint="")
    except ClusterError:
        tails = "\n".join(f"--- {name}\n{components.log_tail(instance, name)}" for name in failing)
        raise ClusterError(
            f"these parts of the cluster are not healthy after {timeout:.0f} s: {', '.join(failing)}; "
            f"logs in {instance.logs}\n{tails}"
        ) from None
