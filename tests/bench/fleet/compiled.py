"""Programs that the bench compiles from their Go modules, once per version and machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.bench.fetched import fetched
from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.errors import ClusterError
from tests.testbed.locking import exclusive
from tests.testbed.paths import cache_dir

_FLAGS: Final = ("-trimpath", "-ldflags", "-s -w")


def compiled(name: str, version: str, *, usually: str, fill: Callable[[Path], None]) -> Path:
    """The directory with a program, filled by `fill` if this machine has not yet done so.

    Raises:
        ClusterError: there is no Go tool chain, or the build fails.
    """

    def build(directory: Path) -> None:
        if shutil.which("go") is None:
            raise ClusterError(f"building {name} from its Go module needs Go on PATH; install it first")
        with step(f"building {name} from source, once per version", usually=usually):
            fill(directory)

    with exclusive(cache_dir() / f"{name}.lock", purpose=f"building {name}"):
        return fetched(cache_dir() / name / version, build)


def go(verb: str, *arguments: str | Path, name: str, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    """`go build` or `go install` of a program that stands alone.

    Raises:
        ClusterError: it fails.
    """
    command: Sequence[str | Path] = ["go", verb, *_FLAGS, *arguments]
    surroundings = {**os.environ, "CGO_ENABLED": "0", **(environment or {})}
    run(command, doing=f"building {name}", environment=surroundings, cwd=cwd, end_with_caller=True)
