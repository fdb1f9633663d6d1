"""Runs the tiers that this machine can run: `python -m tests [pytest arguments]`, behind `make test`.

Everything slow is prepared first, with signs of life, so that pytest's own output stays readable: programs, Kafka,
images, the cluster. A tier that cannot run is left out with its reason in one line; in CI that is a failure. The
cluster is left as it was found: a running one goes on, one that was started here is stopped before the summary.

Three processes share the tests: those that need the shared cluster stay together in one, which waits most of the time,
and two work on the rest meanwhile. Give `-n 0` for one process, whose output can be followed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Final

import pytest

from tests import testbed
from tests.conftest import ABSENT_VARIABLE, StopCluster
from tests.testbed.__main__ import prepare as prepare_cluster
from tests.testbed.console import say
from tests.testbed.errors import ClusterError
from tests.testbed.services.__main__ import prepare as prepare_services
from tests.testbed.services.packages import MissingProgramError
from tests.testbed.services.processes import ServiceError

_SHARED: Final = ("-n", "3")


def main(arguments: list[str]) -> int:
    """Prepare, run, and return pytest's exit status."""
    absent: dict[str, str] = {}
    say("preparing PostgreSQL and Kafka on loopback")
    try:
        prepare_services()
    except (MissingProgramError, ServiceError) as error:
        absent["services"] = str(error)
    found_running = False
    try:
        found_running = testbed.backend(quiet=True).status() not in ("down", "not in use")
        prepare_cluster()
    except ClusterError as error:
        absent["cluster"] = str(error)
    for need, reason in absent.items():
        say(f"cannot run the tests that need {need}: {reason}")
    os.environ[ABSENT_VARIABLE] = json.dumps(absent)
    plugins: list[object] = [] if found_running else [StopCluster()]
    if absent and os.environ.get("CI") == "true":
        say("in CI every tier must run")
        if not found_running:
            testbed.down()
        return 1
    return int(pytest.main([*_SHARED, *arguments], plugins=plugins))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
