"""Gives every test the marker of its tier and runs the tiers from fast to slow.

The tier is the directory. What a test needs beyond Python it says by its fixtures: a test of any directory that asks
for a real PostgreSQL or Kafka is also marked `integration`, so that `-m "not integration"` leaves those that need
nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import testbed
from tests.isolation import own_logging

TIERS = ("unit", "contract", "wire", "integration", "bench", "apiserver", "e2e")
SERVICE_FIXTURES = frozenset({"postgres", "database", "kafka", "topic"})
CLUSTER_TIERS = frozenset({"apiserver", "e2e"})

ABSENT_VARIABLE = "OUTBOXRELAY_TESTS_ABSENT"
"""What this machine cannot give to tests, with the reason, as JSON; every process of a run reads it."""

_HERE = Path(__file__).parent


def tier_of(path: Path) -> str:
    """The tier a test file belongs to: the first directory below tests/."""
    tier = path.relative_to(_HERE).parts[0]
    if tier not in TIERS:
        raise pytest.UsageError(f"{path} is in no tier; tiers are the directories {', '.join(TIERS)}")
    return tier


def needs(item: pytest.Item) -> frozenset[str]:
    """What a test needs beyond Python: "services", "cluster", both or nothing."""
    tier = tier_of(item.path)
    wanted = set()
    if tier == "integration" or tier == "bench" or SERVICE_FIXTURES & set(getattr(item, "fixturenames", ())):
        wanted.add("services")
    if tier in CLUSTER_TIERS:
        wanted.add("cluster")
    return frozenset(wanted)


def pytest_configure() -> None:
    """How fast this machine makes up and tries out examples is no fault of what is tested."""
    # Imported sooner, pytest could not rewrite its assertions.
    from hypothesis import HealthCheck, settings

    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark, leave out and order; a stable sort keeps the order of files and tests inside a tier."""
    absent: dict[str, str] = json.loads(os.environ.get(ABSENT_VARIABLE, "{}"))
    for item in items:
        tier = tier_of(item.path)
        item.add_marker(getattr(pytest.mark, tier))
        if tier != "integration" and "services" in needs(item):
            item.add_marker(pytest.mark.integration)
        for need in sorted(needs(item) & absent.keys()):
            item.add_marker(pytest.mark.skip(reason=f"{need}: {absent[need]}"))
    items.sort(key=lambda item: TIERS.index(tier_of(item.path)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Asked by xdist, which nobody may import before pytest does."""
    from tests.scheduling import TierScheduling

    return TierScheduling(config, log)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    with own_logging():
        yield


class StopCluster:
    """A plug-in that stops the cluster before pytest prints its summary, which has to be the last line."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Take the cluster down, whatever the tests' outcome."""
        testbed.down()
