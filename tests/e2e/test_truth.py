"""What the status tells beside Ready: limits, rows that no topic takes, who blocks, pods that cannot run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.stage import REACT_SECONDS, START_SECONDS, Stage, condition, pair_status, uids, written
from tests.testbed.api import Object
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

RELAY = "truth"


@pytest.fixture(scope="module")
def running(stage: Stage) -> Stage:
    """An OutboxRelay that takes one of the routes of its table."""
    stage.create_table(RELAY)
    stage.create_topic(RELAY)
    # Else the server hides from the relay since when another user's transaction is open.
    stage.sql("grant pg_monitor to relay")
    stage.api.create(
        stage.relay(
            RELAY,
            databases=[stage.database(RELAY)],
            topics=[topic(RELAY, topic=RELAY, match=["order"])],
            slo={"maxBacklog": 50, "maxLagSeconds": 3600},
        )
    )
    stage.wait_ready(RELAY)
    return stage


def _change(stage: Stage, **spec: object) -> None:
    stage.api.merge("OutboxRelay", RELAY, {"spec": spec}, namespace=stage.namespace)


def _events(stage: Stage) -> list[str]:
    events = stage.api.list("Event", namespace=stage.namespace)
    return [event["reason"] for event in events if event["involvedObject"]["name"] == RELAY]


def test_an_slo_that_is_missed_and_met_again(running: Stage) -> None:
    running.wait_told(RELAY, SloMet=("True", "WithinLimits"))
    _change(running, suspend=True)
    eventually(lambda: not running.all_relay_pods(RELAY), seconds=START_SECONDS, what="the relay to be gone")
    running.write(RELAY, rows=51)
    status = running.wait_told(RELAY, SloMet=("False", "BacklogTooHigh"))
    assert "51 rows wait, maxBacklog is 50" in condition(status, "SloMet")["message"]
    _change(running, suspend=False)
    running.wait_told(RELAY, SloMet=("True", "WithinLimits"), seconds=START_SECONDS)
    eventually(lambda: {"SloMissed", "SloMet"} <= set(_events(running)), seconds=REACT_SECONDS, what="both Events")


def test_rows_that_no_topic_takes(running: Stage) -> None:
    running.wait_told(RELAY, UnroutedRows=("False", "AllRouted"))
    running.write(RELAY, rows=7, first=1001, route="refund")
    status = running.wait_told(RELAY, UnroutedRows=("True", "RowsUnrouted"))
    message = condition(status, "UnroutedRows")["message"]
    assert "no topic takes 7 rows" in message
    assert "'refund'" in message
    assert status["unrouted"] == 7
    assert status["backlog"] == 0
    _change(running, topics=[topic(RELAY, topic=RELAY, match=["order", "refund"])])
    running.wait_delivered(RELAY, written(rows=7, first=1001), seconds=START_SECONDS)
    status = running.wait_told(RELAY, UnroutedRows=("False", "AllRouted"))
    assert status["unrouted"] == 0


def test_who_holds_vacuum_back(running: Stage) -> None:
    """The transaction of somebody else, with its pid, for as long as it lasts."""
    holding = running.start_sql("begin; select txid_current(); select pg_sleep(600)")
    try:
        pid = eventually(
            lambda: running.sql(
                "select pid from pg_stat_activity where query like '%pg_sleep(600)' and pid <> pg_backend_pid()"
            ),
            seconds=REACT_SECONDS,
            what="the transaction to be open",
        )
        status = running.wait_status(
            RELAY,
            lambda status: "blockedBy" in pair_status(status, database=RELAY, topic=RELAY),
            what="who holds vacuum back",
            # It counts after half a minute.
            seconds=30 + REACT_SECONDS,
        )
        blocked = pair_status(status, database=RELAY, topic=RELAY)["blockedBy"]
        assert (blocked["what"], blocked["pid"], blocked["database"]) == ("session", int(pid), "shop")
        assert blocked["ageSeconds"] >= 30
        running.sql(f"select pg_terminate_backend({pid})")
        running.wait_status(
            RELAY,
            lambda status: "blockedBy" not in pair_status(status, database=RELAY, topic=RELAY),
            what="nobody holds vacuum back",
            seconds=2 * REACT_SECONDS,
        )
    finally:
        holding.kill()
        holding.communicate()


def _no_more_pods(stage: Stage) -> Callable[[], None]:
    """A quota that is full already; returns what takes it away."""
    count = len(stage.api.list("Pod", namespace=stage.namespace))
    metadata = {"name": "full", "namespace": stage.namespace}
    spec = {"hard": {"pods": str(count)}}
    stage.api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    return lambda: stage.api.delete("ResourceQuota", "full", namespace=stage.namespace)


def test_a_pod_that_cannot_be_created_is_told_while_rows_flow(running: Stage) -> None:
    """Ready stays True: of two wanted pods one runs."""
    running.wait_ready(RELAY)
    lift = _no_more_pods(running)
    try:
        _change(running, replicas=2)
        status = running.wait_told(RELAY, PodsHealthy=("False", "FailedCreate"), seconds=2 * REACT_SECONDS)
    finally:
        lift()
    assert "exceeded quota: full" in condition(status, "PodsHealthy")["message"]
    assert condition(status, "Ready")["status"] == "True"
    running.wait_told(RELAY, PodsHealthy=("True", "NoTrouble"), seconds=START_SECONDS)
    running.wait_status(
        RELAY, lambda status: status["readyReplicas"] == 2, what="two ready pods", seconds=START_SECONDS
    )
    _change(running, replicas=1)
    eventually(lambda: len(running.relay_pods(RELAY)) == 1, seconds=START_SECONDS, what="one pod to be left")


PROBLEMS: tuple[tuple[Object, str, str], ...] = (
    # An image whose program is not a relay: it ends at once, and says why in its last line.
    ({"image": "outboxrelay/operator:dev"}, "PodsFailing", "kubeconfig"),
    ({"resources": {"requests": {"cpu": "900"}}}, "Unschedulable", "Insufficient cpu"),
)


@pytest.mark.parametrize(("pod", "reason", "words"), PROBLEMS, ids=[reason for _, reason, _ in PROBLEMS])
def test_a_pod_that_cannot_run(pod: Object, reason: str, words: str, running: Stage) -> None:
    """With its own last words, and no longer than it lasts; the pods of before go on."""
    running.wait_ready(RELAY)
    before = uids(running.relay_pods(RELAY))
    _change(running, pod=pod)
    status = running.wait_told(RELAY, PodsHealthy=("False", reason), seconds=2 * REACT_SECONDS)
    assert words in condition(status, "PodsHealthy")["message"]
    first = 2001 + 100 * [word for _, word, _ in PROBLEMS].index(reason)
    running.write(RELAY, rows=5, first=first)
    running.wait_delivered(RELAY, written(rows=5, first=first))
    assert before <= uids(running.relay_pods(RELAY))
    _change(running, pod=dict.fromkeys(pod))
    running.wait_told(RELAY, PodsHealthy=("True", "NoTrouble"), seconds=START_SECONDS)
    running.wait_ready(RELAY)


def test_a_relay_that_polls_in_spite_of_notify(stage: Stage) -> None:
    """Rows flow, so DatabaseReachable stays True; its reason is there until what `outboxrelay sql` prints was run."""
    name = "announced"
    stage.create_table(name)
    stage.create_topic(name)
    table = {"name": name, "wake": "Notify"}
    databases = [stage.database(name, table=table)]
    stage.api.create(stage.relay(name, databases=databases, topics=[topic(name, topic=name)]))
    status = stage.wait_told(
        name, Ready=("True", "Flowing"), DatabaseReachable=("True", "TriggerMissing"), seconds=START_SECONDS
    )
    assert f"no trigger announces new rows of public.{name}" in condition(status, "DatabaseReachable")["message"]
    (pair,) = status["pairs"]
    command = ("outboxrelay", "sql", "--config", "/etc/outboxrelay/config/config.json")
    stage.sql(stage.cluster.kubectl("exec", "-n", stage.namespace, f"deploy/{pair['name']}", "--", *command))
    stage.wait_told(name, Ready=("True", "Flowing"), DatabaseReachable=("True", "Connected"))
