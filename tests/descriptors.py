"""File descriptors as a process has them that holds very many: numbers that `select` cannot take."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_BEYOND_SELECT = 1024


@contextmanager
def many_descriptors() -> Iterator[None]:
    """What is opened meanwhile has a number above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * _BEYOND_SELECT)), hard))
        while not taken or taken[-1] < _BEYOND_SELECT:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
