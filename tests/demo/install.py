"""Brings up everything that the demo needs, from nothing or from whatever an earlier demo left behind.

Each run begins with a removal, so that an interrupted run, at whatever moment, is no special case.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.demo import manifests
from tests.demo.kubectl import CommandError, Tools
from tests.demo.manifests import NAMESPACE

OPERATOR_NAMESPACE = "outboxrelay-system"
RELEASE = "outboxrelay"
READY_TIMEOUT_SECONDS = 180

_HERE = Path(__file__).parent
REPOSITORY = _HERE.parent.parent
RESOURCE = _HERE / "outboxrelay.yaml"
CRD = REPOSITORY / "crds" / "outboxrelays.yaml"
CHART = REPOSITORY / "charts" / "outboxrelay"


def remove(tools: Tools) -> None:
    """Delete the release and both namespaces, and wait until they are gone. The CRD stays: others may use it.

    Raises:
        CommandError: if something does not go away.
    """
    tools.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait")
    tools.kubectl(
        *("delete", "namespace", NAMESPACE, OPERATOR_NAMESPACE, "--ignore-not-found", "--wait", "--timeout=150s"),
        timeout=160,
    )


def present(tools: Tools) -> bool:
    """Whether an earlier demo left anything."""
    found = tools.kubectl("get", "namespace", NAMESPACE, OPERATOR_NAMESPACE, "--ignore-not-found", "-o", "name")
    return bool(found.strip())


def install_services(tools: Tools) -> None:
    """The namespace with databases, broker, and the shop's pods, all started but not yet ready."""
    tools.apply([manifests.namespace()])
    tools.apply([*manifests.services(), *manifests.shop()])


def install_operator(tools: Tools) -> str:
    """The CRD of this checkout, and the operator by its chart for this namespace only; returns the command."""
    # Helm installs a CRD once and never changes it again; an older one may be there.
    tools.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    tools.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRD))
    command = (
        *("install", RELEASE, str(CHART.relative_to(Path.cwd()) if CHART.is_relative_to(Path.cwd()) else CHART)),
        *("--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--skip-crds"),
        *("--set", f"watchNamespaces={{{NAMESPACE}}}", "--set", "image.tag=dev", "--set", "relayImage.tag=dev"),
    )
    tools.helm(*command)
    return f"helm {' '.join(command)}"


def wait_for_deployments(tools: Tools, namespace: str, *names: str) -> None:
    """Wait until the Deployments are available.

    Raises:
        CommandError: with the state of the namespace's pods, if one is not available in time.
    """
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    for name in names:
        remaining = max(1, int(deadline - time.monotonic()))
        try:
            tools.kubectl(
                *("rollout", "status", f"deployment/{name}", "-n", namespace, f"--timeout={remaining}s"),
                timeout=remaining + 10,
            )
        except CommandError as error:
            pods = tools.kubectl("get", "pods", "-n", namespace)
            events = tools.kubectl("get", "events", "-n", namespace, "--field-selector=type=Warning")
            raise CommandError(f"{error}\n{pods}\n{events}") from None
