"""Where the testbed keeps what outlives one run.

Everything lies outside the checkout, so that several clones on one machine
share the built binaries, the images and the running cluster. Nothing here
creates a directory: whoever writes a file makes its parent.
"""

import os
from collections.abc import Mapping
from pathlib import Path

TESTBED = Path(__file__).resolve().parent
REPOSITORY = TESTBED.parent.parent


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory: OUTBOXRELAY_CACHE, else a folder in the user's XDG cache."""
    named = environ.get("OUTBOXRELAY_CACHE")
    if named:
        return Path(named).resolve()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").resolve() / "outboxrelay"
