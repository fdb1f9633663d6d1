"""A network namespace of its own, where a bench may listen on every address and reaches nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from tests.bench.fleet import kwok
from tests.testbed import binaries
from tests.testbed.errors import ClusterError
from tests.testbed.services.packages import program

_INSIDE: Final = "OUTBOXRELAY_BENCH_NAMESPACE"


def enter(module: str, arguments: Sequence[str]) -> None:
    """Run the module anew inside one, unless it is; fetch first what a control plane needs, as nothing can be inside.

    Raises:
        ClusterError: not root.
    """
    if os.environ.get(_INSIDE):
        return
    if os.geteuid() != 0:
        raise ClusterError(f"{module} makes a network namespace: run it as root")
    binaries.ensure()
    kwok.ensure()
    program("postgres")
    again = 'ip link set lo up && exec "$@"'
    command = ["sh", "-c", again, "sh", sys.executable, "-m", module, *arguments]
    os.execve(  # noqa: S606
        str(program("unshare")), ["unshare", "--net", *command], {**os.environ, _INSIDE: "1"}
    )
