"""The control plane fails under the operator: rows go on flowing, and afterwards the operator converges by itself.

Only the self-contained cluster lets its own programs be stopped.
"""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from tests.e2e.stage import START_SECONDS, Stage, numbered, uids
from tests.testbed import backend
from tests.testbed.selfcontained.backend import SelfContainedCluster
from tests.testbed.services.eventually import eventually

RELAY = "enduring"


@pytest.fixture(scope="module")
def own_cluster() -> SelfContainedCluster:
    """The cluster, if it is ours to break."""
    found = backend(quiet=True)
    if not isinstance(found, SelfContainedCluster):
        pytest.skip("only the self-contained cluster lets its programs be stopped")
    return found


@pytest.fixture(scope="module")
def enduring(stage: Stage) -> Stage:
    """An OutboxRelay that goes on through whatever happens to the control plane."""
    stage.serve(RELAY)
    return stage


def _ready(address: str) -> bool:
    """Whether an operator's pod says so; asked directly, since there is no API server to ask through."""
    try:
        with urllib.request.urlopen(f"http://{address}:8080/readyz", timeout=3):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.parametrize(("component", "first"), [("kube-apiserver", 1), ("etcd", 10_001)])
def test_the_operator_comes_back_with_the_control_plane(
    component: str, first: int, own_cluster: SelfContainedCluster, enduring: Stage
) -> None:
    stage = enduring
    before = uids(stage.relay_pods(RELAY))
    (operator,) = stage.operator_pods()
    address = operator["status"]["podIP"]
    assert _ready(address)
    # The server runs this to its end, whatever becomes of the connection by which it was told to.
    writer = stage.start_writing(RELAY, batches=400, rows=10, keys=10, first=first)
    eventually(lambda: not _written_out(stage), seconds=START_SECONDS, what="the writer to begin")
    own_cluster.stop(component)
    try:
        eventually(lambda: not _ready(address), seconds=START_SECONDS, what="the operator to notice")
    finally:
        own_cluster.up()
    writer.communicate(timeout=START_SECONDS)
    eventually(lambda: _ready(address), seconds=START_SECONDS, what="the operator to be back")
    stage.wait_reconciled(RELAY, 2)
    pods = stage.relay_pods(RELAY)
    assert before <= uids(pods)
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods] == [0, 0]
    stage.wait_reconciled(RELAY, 1)
    stage.wait_ready(RELAY)
    eventually(lambda: _written_out(stage) and stage.count(RELAY) == 0, seconds=START_SECONDS, what="all rows to go")
    numbers = {number for _, number in map(numbered, stage.consume(RELAY)) if number >= first}
    assert numbers == set(range(first, first + len(numbers)))
    assert numbers


def _written_out(stage: Stage) -> bool:
    """Whether nobody writes any more."""
    return stage.sql("select count(*) from pg_stat_activity where query like 'do %' and state = 'active'") == "0"
