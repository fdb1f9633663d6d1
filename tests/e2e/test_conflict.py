"""OL-05: two OutboxRelays over one table. The younger runs nothing, and takes over when the older is gone."""

from __future__ import annotations

from tests.e2e.stage import REACT_SECONDS, Stage, condition, out_of_order, pair_status, written
from tests.testbed.api import Object
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually


def test_ol_05_the_younger_waits_and_takes_over(stage: Stage) -> None:
    """cases.md OL-05: another spelling of the host; nothing is lost or overtaken when the younger takes over."""
    stage.create_table("shared")
    stage.create_table("unshared")
    for name in ("shared", "unshared"):
        stage.create_topic(f"conflict.{name}")
    topics = [topic(name, topic=f"conflict.{name}", databases=[name]) for name in ("shared", "unshared")]
    older = stage.relay("older", databases=[stage.database("shared")], topics=topics[:1])
    stage.api.create(older)
    stage.wait_ready("older")

    # The same server under another spelling of its name; and one table that is the younger's alone.
    spelt = stage.database("shared", host=f"postgres.{stage.namespace}.svc.cluster.local")
    stage.api.create(stage.relay("younger", databases=[spelt, stage.database("unshared")], topics=topics))
    status = stage.wait_told("younger", Conflict=("True", "Conflict"))
    assert f"{stage.namespace}/older" in condition(status, "Ready")["message"]
    assert condition(status, "Ready")["status"] == "False"
    assert pair_status(status, database="shared", topic="shared")["reason"] == "Conflict"
    assert stage.deployment("younger", database="shared", topic="shared") is None
    stage.wait_status(
        "younger",
        lambda status: pair_status(status, database="unshared", topic="unshared")["ready"],
        what="its own table is served",
        seconds=2 * REACT_SECONDS,
    )
    assert condition(stage.status("older"), "Conflict")["status"] == "False"
    assert condition(stage.status("older"), "Ready")["status"] == "True"

    # Rows are written before, during and after the handover.
    writer = stage.start_writing("shared", batches=200, rows=5, keys=5)
    stage.api.delete("OutboxRelay", "older", namespace=stage.namespace)
    status = stage.wait_ready("younger")
    assert condition(status, "Conflict")["status"] == "False"
    output, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0, output
    messages = stage.wait_delivered("conflict.shared", written(rows=1000, keys=5))
    assert out_of_order(messages) == []
    assert stage.count("shared") == 0


def test_ol_05_the_relays_guard_what_names_cannot_tell(stage: Stage) -> None:
    """cases.md OL-05: by address and by name the operator sees two servers; the lock in the database sees one table."""
    stage.create_table("aliased")
    stage.create_topic("conflict.aliased")
    topics = [topic("aliased", topic="conflict.aliased")]
    stage.api.create(stage.relay("named", databases=[stage.database("aliased")], topics=topics))
    stage.wait_ready("named")

    address = stage.api.get("Service", "postgres", namespace=stage.namespace)["spec"]["clusterIP"]
    by_address = stage.database(
        "aliased", host=address, tls={"mode": "verify-ca", "caSecretRef": {"name": "postgres-ca"}}
    )
    stage.api.create(stage.relay("numbered", databases=[by_address], topics=topics))
    status = stage.wait_status(
        "numbered",
        lambda status: pair_status(status, database="aliased", topic="aliased").get("reason") == "Conflict",
        what="the relay's own guard",
        seconds=2 * REACT_SECONDS,
    )
    assert pair_status(status, database="aliased", topic="aliased")["ready"] is False
    assert condition(stage.status("named"), "Ready")["status"] == "True"

    stage.write("aliased", rows=100)
    messages = stage.wait_delivered("conflict.aliased", written(rows=100))
    assert len(messages) == 100

    stage.api.delete("OutboxRelay", "named", namespace=stage.namespace)
    stage.wait_ready("numbered")
    stage.write("aliased", rows=10, first=101)
    stage.wait_delivered("conflict.aliased", written(rows=110))


def test_two_pairs_exchange_their_topics(stage: Stage) -> None:
    """Each is to have what the other holds; rows of both arrive where they belong now, and in order."""
    stage.create_table("exchanged")
    for name in ("apples", "pears"):
        stage.create_topic(f"exchange.{name}")

    def topics(apples: str, pears: str) -> list[Object]:
        return [
            topic("apples", topic=f"exchange.{apples}", match=["apple"]),
            topic("pears", topic=f"exchange.{pears}", match=["pear"]),
        ]

    stage.api.create(stage.relay("exchange", databases=[stage.database("exchanged")], topics=topics("apples", "pears")))
    stage.wait_ready("exchange")
    stage.write("exchanged", rows=10, route="apple")
    stage.write("exchanged", rows=20, route="pear")
    stage.wait_delivered("exchange.apples", written(rows=10))
    stage.wait_delivered("exchange.pears", written(rows=20))

    changed = {"spec": {"topics": topics("pears", "apples")}}
    stage.api.merge("OutboxRelay", "exchange", changed, namespace=stage.namespace)
    stage.wait_status(
        "exchange",
        lambda status: (
            all(pair_status(status, database="exchanged", topic=name).get("ready") for name in ("apples", "pears"))
            and status["observedGeneration"] == 2
            and len(stage.relay_pods("exchange")) == 2
        ),
        what="both at their new topics",
        seconds=2 * REACT_SECONDS,
    )
    stage.write("exchanged", rows=10, first=11, route="apple")
    stage.write("exchanged", rows=20, first=21, route="pear")
    eventually(lambda: stage.count("exchanged") == 0, seconds=REACT_SECONDS, what="an empty table")
    assert len(stage.consume("exchange.pears")) == 30
    assert len(stage.consume("exchange.apples")) == 30
