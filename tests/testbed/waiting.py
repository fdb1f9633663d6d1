"""Waiting for a condition, with an end and a reason.

Nothing in the testbed sleeps for a fixed time and hopes.
"""

import time
from collections.abc import Callable

from tests.testbed.errors import ClusterError

POLL_SECONDS = 0.1


def wait_until(
    holds: Callable[[], bool],
    *,
    what: str,
    timeout: float,
    hint: str,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return as soon as `holds()` is true.

    Raises ClusterError naming `what` and giving `hint` if it is not within `timeout` seconds.
    """
    deadline = clock() + timeout
    while not holds():
        if clock() >= deadline:
            raise ClusterError(f"{what} did not happen within {timeout:.0f} s; {hint}")
        pause(POLL_SECONDS)
