"""What the testbed tells the person who waits for it.

Everything goes to standard error: standard output belongs to answers that a
script reads (`python -m tests.testbed kubeconfig`).
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_SECONDS = 30.0


def say(text: str) -> None:
    """Print one line at once, also when the output is a pipe."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(what: str, *, usually: str | None = None) -> Iterator[None]:
    """Announce a step with its usual duration, a sign of life while it runs, and how long it took."""
    say(f"  {what}{f' (usually {usually})' if usually else ''} ...")
    began = time.monotonic()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_SECONDS):
            say(f"    still at it after {time.monotonic() - began:.0f} s: {what}")

    pulse = threading.Thread(target=beat, name="testbed-heartbeat", daemon=True)
    pulse.start()
    try:
        yield
    finally:
        over.set()
        pulse.join()
    say(f"    done in {time.monotonic() - began:.1f} s")
