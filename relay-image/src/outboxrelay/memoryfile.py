"""Secrets as files that nobody else can read, for libpq, which takes certificates and keys from files alone.

A key that others may read is refused by libpq, and that is how a Secret is mounted into a pod that may run as any user.
So it is read from there and given on as a file in memory. Relay and operator both need that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_file(content: bytes) -> Iterator[Path]:
    """A file of this process alone with that content; it is gone at the end of the block."""
    descriptor = os.memfd_create("secret")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, content)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
