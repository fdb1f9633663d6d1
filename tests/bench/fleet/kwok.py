"""kwok, compiled from its Go module: it plays the kubelet of a node whose pods do not run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench.fleet.compiled import compiled, go

VERSION: Final = "v0.7.0"


def ensure() -> Path:
    """The program, built first if this machine has not yet done so.

    Raises:
        ClusterError: there is no Go tool chain, or the build fails.
    """
    return compiled("kwok", VERSION, usually="5 to 15 min on 2 cores", fill=_build) / "kwok"


def _build(directory: Path) -> None:
    module = f"sigs.k8s.io/kwok/cmd/kwok@{VERSION}"
    go("install", module, name="kwok", cwd=directory, environment={"GOBIN": str(directory)})
