"""Which cluster to use. Pure: what this machine has is handed in.

A cluster that the testbed did not make is used only if both it and its context
were named: a developer's current context may be production.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tests.testbed.errors import ClusterError

KIND_OF_CLUSTER = "OUTBOXRELAY_CLUSTER"
CONTEXT = "OUTBOXRELAY_CONTEXT"


class Backend(enum.StrEnum):
    """The three ways to a cluster; the values are those of OUTBOXRELAY_CLUSTER."""

    EXISTING = "existing"
    KIND = "kind"
    SELF_CONTAINED = "selfcontained"


@dataclass(frozen=True)
class Machine:
    """What matters here about the machine and the user."""

    linux: bool
    root: bool
    docker: bool
    """A docker daemon answers."""
    kind: bool
    """The program kind is installed."""


@dataclass(frozen=True)
class Choice:
    """A backend and the reason for it."""

    backend: Backend
    why: str


def choose(environ: Mapping[str, str], machine: Machine) -> Choice:
    """Return which backend to use.

    Raises ClusterError saying what is missing if the one that was asked for, or
    every one, cannot work here.
    """
    asked = environ.get(KIND_OF_CLUSTER, "")
    if asked:
        return _asked_for(asked, environ, machine)
    if machine.docker and machine.kind:
        return Choice(Backend.KIND, "docker answers and kind is installed")
    lacks_kind = "no docker daemon answers" if not machine.docker else "kind is not installed"
    if machine.linux and machine.root:
        return Choice(Backend.SELF_CONTAINED, f"this is Linux, you are root, and {lacks_kind}")
    raise ClusterError(
        f"no way to a cluster here: for kind, {lacks_kind}; the self-contained one needs Linux and root. "
        f"Install docker and kind, or name a cluster with KUBECONFIG, {KIND_OF_CLUSTER}=existing and {CONTEXT}"
    )


def _asked_for(asked: str, environ: Mapping[str, str], machine: Machine) -> Choice:
    why = f"{KIND_OF_CLUSTER}={asked}"
    match asked:
        case Backend.EXISTING:
            absent = [name for name in ("KUBECONFIG", CONTEXT) if not environ.get(name)]
            if absent:
                raise ClusterError(
                    f"{why} also needs {' and '.join(absent)}: the testbed never uses a context that was not named, "
                    "since it creates and deletes namespaces there"
                )
            return Choice(Backend.EXISTING, f"{why}, context {environ[CONTEXT]}")
        case Backend.KIND:
            if not (machine.docker and machine.kind):
                raise ClusterError(f"{why} needs a running docker daemon and the program kind")
            return Choice(Backend.KIND, why)
        case Backend.SELF_CONTAINED:
            if not (machine.linux and machine.root):
                raise ClusterError(f"{why} needs Linux and root")
            return Choice(Backend.SELF_CONTAINED, why)
    known = ", ".join(Backend)
    raise ClusterError(f"{why} is not known; use one of: {known}")
