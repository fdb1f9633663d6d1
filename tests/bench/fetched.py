"""What a bench fetches once, outside the checkout, and keeps from run to run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.testbed.services.processes import ServiceError


def fetched(target: Path, fill: Callable[[Path], None]) -> Path:
    """`target`, filled by `fill` if it is not there yet; all of it or nothing.

    Raises:
        ServiceError: by `fill`.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=target.parent))
    try:
        fill(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def run(command: Sequence[str], *, what: str) -> None:
    """Run a program that fetches.

    Raises:
        ServiceError: it failed; the message ends with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise ServiceError(f"cannot fetch {what}: {(done.stdout + done.stderr)[-2000:]}")
