"""Entry point: takes care of signals before anything large is imported.

The first process of a container has no default action for SIGTERM: one that came during the imports, which take
seconds on a busy node, would be lost, and the pod would live on for its whole grace period.
"""

import os
import signal
import sys
from types import FrameType


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


_USAGE = """\
usage: outboxrelay-operator

Runs the operator of OutboxRelay until it is told to end. It takes no arguments: its settings are the environment
variables OUTBOXRELAY_..., which the chart sets from its values.
"""


def main() -> None:
    """Entry point of `outboxrelay-operator`."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    from outboxrelay_operator.process import start

    start()


if __name__ == "__main__":
    main()
