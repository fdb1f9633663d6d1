"""Entry point. Takes over SIGTERM, SIGINT and SIGHUP before anything slow is imported.

As process 1 of a container a Python program without handlers ignores SIGTERM; a pod deleted in its first second would
otherwise wait for SIGKILL.
"""

from __future__ import annotations

import signal
import sys

from outboxrelay.stop import StopSignal


def main() -> int:
    """Run the command line; returns the exit code."""
    stop = StopSignal()

    def request_stop(_signal: int, _frame: object) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Whoever starts it with nohup wants it to outlive the terminal.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, request_stop)
    signal.set_wakeup_fd(stop.wakeup, warn_on_full_buffer=False)

    from outboxrelay import cli

    return cli.main(sys.argv[1:], stop=stop)


if __name__ == "__main__":
    sys.exit(main())
