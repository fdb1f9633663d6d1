"""Building images with a docker daemon, where there is one; used beside kind and for existing clusters."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.testbed.commands import run

BASE_IMAGE = "python:3.13-slim-bookworm"
ANSWER_SECONDS = 10.0


def answers() -> bool:
    """Return whether a docker daemon answers; the client alone builds nothing."""
    if shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(["docker", "info"], check=False, capture_output=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def build(*, dockerfile: Path, context: Path, image: str, arguments: Mapping[str, str], target: Path) -> None:
    """Build `image` and write it to `target`.

    Raises ClusterError with the build's last lines if it fails.
    """
    given = [f"--build-arg={name}={value}" for name, value in sorted(arguments.items())]
    run(["docker", "build", "--tag", image, "--file", dockerfile, *given, context], doing=f"building {image}")
    run(["docker", "save", "--output", target, image], doing=f"writing {image}")
