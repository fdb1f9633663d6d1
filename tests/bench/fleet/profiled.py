"""`python -m tests.bench.fleet.profiled FILE`: the operator under cProfile, the profile of its event loop to FILE."""

from __future__ import annotations

import asyncio
import cProfile
import os
import sys

from outboxrelay_operator import logs, process, settings


def main(path: str) -> None:
    """Run until a signal comes. Threads, such as the informer's, are not in the profile."""
    chosen = settings.read(os.environ)
    logs.configure(form=chosen.log_format, level=chosen.log_level)
    profile = cProfile.Profile()
    code = profile.runcall(asyncio.run, process.run(chosen))
    profile.dump_stats(path)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
