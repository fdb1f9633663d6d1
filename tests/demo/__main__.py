"""The demo's two commands: `python -m tests.demo up` and `python -m tests.demo down`."""

from __future__ import annotations

import argparse
import sys
import time

from tests import testbed
from tests.demo import install, verdict
from tests.demo.hints import hints
from tests.demo.kubectl import CommandError, Tools
from tests.demo.manifests import NAMESPACE
from tests.demo.scenario import Scenario
from tests.demo.screen import Screen
from tests.demo.verdict import Check
from tests.testbed import ClusterError
from tests.testbed.images.catalog import RECIPES

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, or 1 if anything failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description="OutboxRelay, shown on a real cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="install everything, play the demo, and leave it running")
    commands.add_parser("down", help="remove what the demo installed; the cluster stays")
    screen = Screen()
    try:
        return _up(screen) if parser.parse_args(arguments).command == "up" else _down(screen)
    except (ClusterError, CommandError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; `make demo` begins anew, `make demo-down` removes what is there", file=sys.stderr)
        return INTERRUPTED


def _up(screen: Screen) -> int:
    began = time.monotonic()
    screen.title("A cluster, PostgreSQL, Kafka and the operator")
    screen.say(
        "The very first run builds Kubernetes and images, about 15 minutes on two cores; a later one takes about 4."
    )
    cluster = testbed.up()
    tools = Tools(cluster.tool("kubectl"), cluster.tool("helm"), cluster.kubeconfig)
    for recipe in RECIPES:
        cluster.load(recipe.build())
    if install.present(tools):
        with screen.step("Removing an earlier demo", usually="15 s"):
            install.remove(tools)
    with screen.step("Installing the operator for namespace shop, beside two databases and a broker", usually="25 s"):
        install.install_services(tools)
        command = install.install_operator(tools)
        install.wait_for_deployments(tools, install.OPERATOR_NAMESPACE, install.RELEASE)
        install.wait_for_deployments(tools, NAMESPACE, "orders-db", "payments-db", "kafka", "delivery")
    screen.command(command, "")
    screen.title("An OutboxRelay")
    screen.output(install.RESOURCE.read_text())
    scenario = Scenario(tools, screen)
    with screen.step("Applying it, and waiting until it is Ready", usually="10 s"):
        applied = tools.kubectl("apply", "-f", str(install.RESOURCE))
        scenario.await_ready(seconds=90)
    screen.command("kubectl apply -f tests/demo/outboxrelay.yaml", applied)
    checks = scenario.run()
    return _conclude(screen, tools, checks, seconds=time.monotonic() - began)


def _conclude(screen: Screen, tools: Tools, checks: list[Check], *, seconds: float) -> int:
    screen.title("The count")
    screen.verdict(checks)
    screen.say(f"\n{seconds:.0f} s in all.")
    screen.title("Everything is still running. Six things to try")
    screen.say(hints(kubectl=tools.kubectl_program, kubeconfig=tools.kubeconfig))
    failed = [check.name for check in checks if check.ok is False]
    if failed:
        print(f"error: the demo failed: {', '.join(failed)}", file=sys.stderr)
    return 0 if verdict.passed(checks) else 1


def _down(screen: Screen) -> int:
    # Found, never started: a demo that has no cluster needs no removal.
    cluster = testbed.backend()
    if not cluster.kubeconfig().exists():
        screen.say("there is no cluster, and so no demo to remove")
        return 0
    tools = Tools(cluster.tool("kubectl"), cluster.tool("helm"), cluster.kubeconfig())
    if not install.present(tools):
        screen.say("there was no demo to remove")
        return 0
    with screen.step("Removing the demo: the operator's release and both namespaces", usually="15 to 45 s"):
        install.remove(tools)
    screen.say("The CRD, the cluster and what you made elsewhere stay; `make cluster-down` removes the cluster.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
