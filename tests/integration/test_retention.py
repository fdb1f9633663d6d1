"""Rows that are kept, and cleaned up while relays are busy: cases.md RR-07 (a)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.relay.settings import MARK_TIME, prepare_policy
from tests.integration.harness.checker import check
from tests.integration.harness.consumer import read_all
from tests.integration.harness.load import Load
from tests.integration.harness.relay import Pair, relay_config, relaying
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import Database

OLD_ROWS = 100_000
KEPT = {
    "mark-time": (MARK_TIME, "outbox", "published_at"),
    "keep": ({"policy": "Keep"}, "outbox_sent", "outbox_sent_at"),
}


@pytest.mark.parametrize("policy", KEPT)
def test_rr_07_a_busy_relay_cleans_up_and_the_table_stops_growing(
    database: Database, kafka: LocalKafka, tmp_path: Path, policy: str
) -> None:
    """Rows are removed while others are written and sent: clean-up is no affair of idle hours."""
    unsent = prepare_policy(database, policy)
    retention, table, sent_at = KEPT[policy]
    if policy == "keep":
        database.execute("create index on outbox_sent (id)")
    database.execute(
        f"insert into {table} (id, aggregatetype, aggregateid, created_at, {sent_at})"
        + (" overriding system value" if table == "outbox" else "")
        + " select -i, 'order', 'k', now(), now() - interval '1 hour' from generate_series(1, %s) i",
        (OLD_ROWS,),
    )
    topic = kafka.create_topic(partitions=3)
    config = configured(database, kafka, tmp_path, topic=topic.name, retention={**retention, "keep_for_seconds": 2.0})

    def old() -> int:
        found = database.execute(f"select count(*) from {table} where {sent_at} < now() - interval '30 s'")
        return int(found[0][0])

    pair = Pair(database=database, topic=topic, config=config, directory=tmp_path, unsent=unsent)
    with relaying(pair):
        relay = pair.relay()
        relay.await_ready()
        with Load(database) as load:
            eventually(lambda: old() == 0, seconds=120, what="all old rows removed", detail=relay.log_tail)
            sent = relay.report().sent_rows
            relay.await_report(lambda report: report.sent_rows >= sent + 200, what="200 more rows sent")
            eventually(
                lambda: database.execute(f"select count(*) from {table}")[0][0] < load.count(),
                seconds=60,
                what="rows of this very load removed",
            )
        pair.await_empty()
        assert relay.terminate() == 0
    verdict = check(committed=load.committed(), delivered=read_all(kafka, topic))
    assert not verdict.problems(), f"{verdict}: {verdict.problems()}"


def test_a_busy_relay_waits_for_a_partition_and_sends_nothing_twice(
    database: Database, kafka: LocalKafka, tmp_path: Path
) -> None:
    """Where rows that were sent have no place to go, they are held until they have."""
    database.execute(
        "create table outbox_sent (like outbox, outbox_sent_at timestamptz not null default now())"
        " partition by range (outbox_sent_at)"
    )
    database.execute("create table sent_rest partition of outbox_sent default")
    topic = kafka.create_topic(partitions=3)
    config = configured(database, kafka, tmp_path, topic=topic.name, retention={"policy": "Keep"})
    pair = Pair(database=database, topic=topic, config=config, directory=tmp_path)
    with relaying(pair):
        relay = pair.relay()
        relay.await_ready()
        with Load(database) as load:
            relay.await_report(lambda report: report.sent_rows >= 200, what="200 rows sent")
            database.execute("alter table outbox_sent detach partition sent_rest")
            relay.await_report(
                lambda report: "outbox_sent has no partition" in report.database.message, what="the table at fault"
            )
            pending = pair.pending()
            eventually(lambda: pair.pending() >= pending + 500, seconds=60, what="500 rows more waiting")
            assert "outbox_sent has no partition" in relay.report().database.message
            database.execute("alter table outbox_sent attach partition sent_rest default")
            relay.await_report(lambda report: report.database.ok, what="rows settled again")
        pair.await_empty()
        assert relay.terminate() == 0
    verdict = check(committed=load.committed(), delivered=read_all(kafka, topic))
    assert not verdict.problems(), f"{verdict}: {verdict.problems()}"
    assert database.execute("select count(*) from outbox_sent") == [(verdict.committed,)]


def configured(database: Database, kafka: LocalKafka, directory: Path, *, topic: str, retention: dict[str, Any]) -> Any:
    """A configuration whose clean-up looks often."""
    return relay_config(
        database=database,
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        directory=directory,
        retention=retention,
        tuning={"clean_up_rest_seconds": 0.5},
    )
