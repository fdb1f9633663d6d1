"""Rows flow from PostgreSQL to Kafka through an OutboxRelay, and its status tells how."""

from __future__ import annotations

import re

from outboxrelay.report import RelayReport
from tests.e2e.stage import (
    REACT_SECONDS,
    START_SECONDS,
    Stage,
    condition,
    insert,
    numbered,
    out_of_order,
    pair_status,
    uids,
    written,
)
from tests.testbed.api import Object
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually


def test_rows_arrive_and_leave_the_table(stage: Stage) -> None:
    stage.create_table("flow")
    stage.create_topic("flow.orders")
    stage.create_topic("flow.rest")
    topics = [topic("orders", topic="flow.orders", match=["order"]), topic("rest", topic="flow.rest")]
    stage.api.create(stage.relay("flow", databases=[stage.database("flow")], topics=topics))
    stage.wait_ready("flow")
    stage.sql(
        insert("flow", rows=300, keys=7, first=1)
        + ";"
        + insert("flow", rows=50, keys=7, first=301, route="refund")
        + """;insert into flow (aggregatetype, aggregateid, type, payload)
             values ('order', 'special', 'Changed', '{"number": 0, "name": "Zoë",   "amount": 1.50}')"""
    )

    orders = stage.wait_delivered("flow.orders", written(rows=300, keys=7) | {("special", 0)})
    rest = stage.wait_delivered("flow.rest", written(rows=50, keys=7, first=301))
    assert len(orders) == 301
    assert len(rest) == 50
    assert out_of_order(orders) == out_of_order(rest) == []
    special = next(message for message in orders if message.key == "special")
    assert special.value == r'{"name": "Zoë", "amount": 1.50, "number": 0}'
    assert special.headers["outbox-type"] == "Changed"
    assert re.fullmatch(r"flow[./:]public\.flow[./:]\d+", special.headers["outbox-id"] or "")
    assert len({message.headers["outbox-id"] for message in orders + rest}) == 351
    assert {message.partition for message in orders} == {0, 1, 2}

    assert stage.count("flow") == 0
    wanted = {
        "Ready": "True",
        "DatabaseReachable": "True",
        "BrokerReachable": "True",
        "Measured": "True",
        "PodsHealthy": "True",
        "Conflict": "False",
    }
    status = stage.wait_status(
        "flow",
        lambda status: (
            {item["type"]: item["status"] for item in status["conditions"]} == wanted and status.get("backlog") == 0
        ),
        what="all is well",
    )
    assert status["lagSeconds"] == 0
    assert (status["backlogExact"], status["lagExact"]) == (True, True)
    assert (status["replicas"], status["readyReplicas"], status["pairsReady"]) == (2, 2, "2/2")
    assert condition(status, "Ready")["reason"] == "Flowing"


def test_the_longest_names_work(stage: Stage) -> None:
    """253 characters for the resource and 63 for each part of a pair, where Deployments, labels and pods take 63."""
    name = ".".join(["n" * 63, "a" * 63, "m" * 63, "e" * 61])
    stage.create_table("t" * 63)
    stage.create_topic("longest" + "x" * 242)
    database = stage.database("d" * 63, table={"name": "t" * 63, "columns": {"createdAt": "created_at"}})
    topics = [topic("t" * 63, topic="longest" + "x" * 242)]
    stage.api.create(stage.relay(name, databases=[database], topics=topics))
    stage.wait_ready(name)
    stage.write("t" * 63, rows=10)
    stage.wait_delivered("longest" + "x" * 242, written(rows=10))
    stage.api.delete("OutboxRelay", name, namespace=stage.namespace)
    eventually(lambda: not stage.all_relay_pods(name), seconds=START_SECONDS, what="its relay to go")


def test_suspend_stops_and_backlog_and_lag_are_still_told(stage: Stage) -> None:
    stage.serve("pause")

    stage.api.merge("OutboxRelay", "pause", {"spec": {"suspend": True}}, namespace=stage.namespace)
    stage.wait_told("pause", Ready=("False", "Suspended"))
    # A pod that is still on its way out may send what is written meanwhile.
    eventually(lambda: not stage.all_relay_pods("pause"), seconds=START_SECONDS, what="the last relay to be gone")
    stage.write("pause", rows=250)

    def rising(status: Object) -> bool:
        pair = pair_status(status, database="pause", topic="pause")
        return pair.get("backlog") == 250 and pair.get("lagSeconds", 0) >= 3

    stage.wait_status("pause", rising, what="backlog and lag")
    assert stage.count("pause") == 250
    shown = stage.cluster.kubectl("-n", stage.namespace, "get", "obr", "pause")
    assert "250" in shown.splitlines()[1].split()

    stage.api.merge("OutboxRelay", "pause", {"spec": {"suspend": False}}, namespace=stage.namespace)
    stage.wait_ready("pause")
    messages = stage.wait_delivered("pause", written(rows=250))
    assert out_of_order(messages) == []
    stage.wait_status("pause", lambda status: status.get("backlog") == 0, what="no backlog")


def test_scaling_under_load_loses_and_reorders_nothing(stage: Stage) -> None:
    """`kubectl scale` to 3 and back while rows are written; in between the broker is away, and a pod is killed."""
    stage.serve("scale", partitions=6)

    # 40 keys take turns in transactions of 10 rows, for as long as the test needs.
    stage.sql("create table load (go boolean); insert into load values (true)")
    writer = stage.start_sql(
        """do $$ declare n int := 0; begin
             while (select go from load) loop
               insert into scale (aggregatetype, aggregateid, type, payload)
                 select 'order', 'k' || (i % 40), 'Changed', jsonb_build_object('number', i)
                 from generate_series(n + 1, n + 10) as i order by i;
               n := n + 10;
               commit;
               perform pg_sleep(0.02);
             end loop;
             raise notice 'wrote %', n;
           end $$"""
    )
    try:
        _scale(stage, 3)
        reports = eventually(lambda: _sharing(stage, 3), seconds=REACT_SECONDS, what="three pods to share the lanes")
        assert {lane for report in reports for lane in report.lanes_owned} == set(range(16))

        killed = stage.relay_pods("scale")[0]["metadata"]
        stage.api.delete("Pod", killed["name"], namespace=stage.namespace, grace_seconds=0)
        eventually(
            lambda: killed["uid"] not in uids(stage.relay_pods("scale")) and len(_reports(stage)) == 3,
            seconds=START_SECONDS,
            what="the killed pod to be replaced",
        )

        broker = ("exec", "-n", stage.namespace, "deploy/kafka", "--", "broker")
        stage.cluster.kubectl(*broker, "stop", timeout=180)
        status = stage.wait_status(
            "scale",
            lambda status: pair_status(status, database="scale", topic="scale")["reason"] == "BrokerUnreachable",
            what="the broker's outage",
        )
        assert pair_status(status, database="scale", topic="scale")["ready"] is False
        stage.cluster.kubectl(*broker, "start", timeout=180)
        stage.wait_ready("scale", seconds=REACT_SECONDS)
        _scale(stage, 1)
    finally:
        stage.sql("update load set go = false")
    output, _ = writer.communicate(timeout=60)
    match = re.search(r"wrote (\d+)", output)
    assert match is not None, output

    messages = stage.wait_delivered("scale", written(rows=int(match[1]), keys=40), seconds=START_SECONDS)
    assert {numbered(message) for message in messages} == written(rows=int(match[1]), keys=40)
    assert out_of_order(messages) == []
    assert stage.count("scale") == 0


def _scale(stage: Stage, replicas: int) -> None:
    stage.cluster.kubectl("-n", stage.namespace, "scale", "obr/scale", f"--replicas={replicas}")

    def scaled() -> bool:
        status = stage.status("scale")
        return bool(status["readyReplicas"] == status["replicas"] == replicas == len(stage.relay_pods("scale")))

    eventually(scaled, seconds=START_SECONDS, what=f"{replicas} ready pods")


def _reports(stage: Stage) -> list[RelayReport]:
    ready = [
        pod
        for pod in stage.relay_pods("scale")
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
    ]
    return [stage.report(pod) for pod in ready]


def _sharing(stage: Stage, pods: int) -> list[RelayReport] | None:
    """The reports of that many pods if they know of each other and own all lanes among them."""
    reports = _reports(stage)
    owned = sum(len(report.lanes_owned) for report in reports)
    agreed = len(reports) == pods and all(report.members == pods for report in reports)
    return reports if agreed and owned == reports[0].lanes else None
