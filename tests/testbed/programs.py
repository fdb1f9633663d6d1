"""The user's own programs, for clusters that bring none."""

import shutil
from pathlib import Path

from tests.testbed.errors import ClusterError


def on_path(name: str) -> Path:
    """Return the program `name`; raises ClusterError if it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise ClusterError(f"{name} is needed for this cluster and is not on PATH; install it first")
    return Path(found)
