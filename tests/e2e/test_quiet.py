"""OL-08: a steady resource is not written, and a busy one seldom."""

from __future__ import annotations

import time

import pytest

from outboxrelay_operator.names import pair_name, shared_name
from outboxrelay_operator.significance import FAR_INTERVAL_SECONDS
from tests.e2e.stage import REACT_SECONDS, Stage, pair_status, written
from tests.testbed.api import Object
from tests.testbed.services.eventually import eventually

RELAY = "quiet"
PASSES = 2
"""Regular passes over every resource during which nothing may be written."""

BUSY_SECONDS = 25


@pytest.fixture(scope="module")
def steady(stage: Stage) -> Stage:
    """An OutboxRelay with nothing left to do, and a status that says so."""
    stage.serve(RELAY)
    stage.write(RELAY, rows=20)
    stage.wait_delivered(RELAY, written(rows=20))

    def moved(status: Object) -> bool:
        return bool(pair_status(status, database=RELAY, topic=RELAY).get("arrivalPerSecond"))

    def idle(status: Object) -> bool:
        pair = pair_status(status, database=RELAY, topic=RELAY)
        numbers = ("backlog", "ratePerSecond", "arrivalPerSecond", "lagSeconds")
        return all(pair.get(name) == 0 for name in numbers)

    # A status of before the rows tells of nothing that moves, too.
    stage.wait_status(RELAY, moved, what="rows move", seconds=2 * REACT_SECONDS)
    stage.wait_status(RELAY, idle, what="nothing moves", seconds=4 * REACT_SECONDS)
    return stage


def _versions(stage: Stage) -> dict[str, str]:
    names = {
        "OutboxRelay": RELAY,
        "ConfigMap": shared_name(RELAY),
        "Deployment": pair_name(relay=RELAY, database=RELAY, topic=RELAY),
    }
    return {
        kind: stage.api.get(kind, name, namespace=stage.namespace)["metadata"]["resourceVersion"]
        for kind, name in names.items()
    }


def test_ol_08_a_steady_resource_is_not_written(steady: Stage) -> None:
    """cases.md OL-08."""
    before, status, begun = _versions(steady), steady.status(RELAY), steady.passes()
    enough = begun + PASSES * len(steady.api.list("OutboxRelay", namespace=steady.namespace))
    eventually(
        lambda: steady.passes() >= enough,
        seconds=3 * REACT_SECONDS,
        what=f"{PASSES} passes over every OutboxRelay",
        interval_seconds=0.5,
    )
    assert steady.status(RELAY) == status
    assert _versions(steady) == before


def test_ol_08_a_busy_resource_is_written_seldom(steady: Stage) -> None:
    """cases.md OL-08: its numbers change all the time, and each write would wake whoever watches the resource."""
    writer = steady.start_writing(RELAY, batches=BUSY_SECONDS * 20, rows=10, keys=5, first=21)
    began, seen = time.monotonic(), [_versions(steady)["OutboxRelay"]]

    def ended() -> bool:
        version = _versions(steady)["OutboxRelay"]
        if version not in seen:
            seen.append(version)
        return writer.poll() is not None

    eventually(ended, seconds=4 * BUSY_SECONDS, what="the writer to end", interval_seconds=0.2)
    output, _ = writer.communicate()
    assert writer.returncode == 0, output
    writes = len(seen) - 1
    assert 1 <= writes <= 1 + (time.monotonic() - began) / FAR_INTERVAL_SECONDS
