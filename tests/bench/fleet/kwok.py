"""kwok, compiled from its Go module: it plays the kubelet of a node whose pods do not run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.errors import ClusterError
from tests.testbed.locking import exclusive
from tests.testbed.paths import cache_dir

VERSION: Final = "v0.7.0"


def ensure() -> Path:
    """The program, built first if this machine has not yet done so.

    Raises:
        ClusterError: there is no Go tool chain, or the build fails.
    """
    program = cache_dir() / "kwok" / VERSION / "kwok"
    with exclusive(cache_dir() / "kwok.lock", purpose="building kwok"):
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    if shutil.which("go") is None:
        raise ClusterError("building kwok from its Go module needs Go on PATH; install it first")
    unfinished = program.parent.with_name(f"{VERSION}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with step("building kwok from source, once per version", usually="5 to 15 min on 2 cores"):
        run(
            ["go", "install", "-trimpath", "-ldflags", "-s -w", f"sigs.k8s.io/kwok/cmd/kwok@{VERSION}"],
            doing="building kwok",
            environment={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(unfinished)},
            cwd=unfinished,
            end_with_caller=True,
        )
    unfinished.rename(program.parent)
