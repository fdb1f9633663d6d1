"""One owner at a time for the shared cluster and for the caches.

`make demo` and `make test` may run side by side; the kernel's file lock orders
them and is released by itself when its holder is killed. The lock file lies
beside what it guards, never inside, so that tear-down can delete the latter.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.console import say


@contextmanager
def exclusive(lock: Path, *, purpose: str) -> Iterator[None]:
    """Hold `lock` for the length of the block; say so when another process has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            say(f"  waiting for process {holder}, which is busy with {purpose} ...")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
