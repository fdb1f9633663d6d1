"""Proof of the correctness test: with a wrong reading scheme the same writers and the same checker show the fault."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.harness.checker import Verdict, check
from tests.integration.harness.consumer import read_all
from tests.integration.harness.relay import Pair, relay_config, relaying
from tests.integration.harness.writers import prepare, writing
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import Database


def verdict_on(
    store: str, *, database: Database, kafka: LocalKafka, directory: Path, workers: int, batch: int
) -> Verdict:
    """Run relays with a wrong store beside the usual writers, and check what they sent as all relays are checked."""
    prepare(database, payload="jsonb")
    topic = kafka.create_topic(partitions=4)
    config = relay_config(
        database=database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=directory,
        tuning={"batch_rows": batch},
    )
    # A row lock is an update right; a relay that reads by the rules needs none.
    database.execute(f'grant update on outbox to "{(directory / "username").read_text()}"')
    command = (sys.executable, "-m", "tests.integration.wrong_stores", store)
    with relaying(Pair(database=database, topic=topic, config=config, directory=directory)) as pair:
        for _ in range(workers):
            pair.relay(command=command).await_report(lambda report: report.lanes_owned, what="start")
        with writing(database, payload="jsonb", seed=7, transactions=100) as writers:
            committed = writers.committed()
        # With the highest id of all: once it is gone, these stores have looked at all they will ever look at.
        (last,) = pair.insert(("last", '{"last": true}'))
        eventually(
            lambda: not database.execute("select 1 from outbox where id = %s", [last]),
            seconds=120,
            what="last row sent",
        )
        for relay in pair.relays:
            relay.terminate()
    return check(committed=committed, delivered=[one for one in read_all(kafka, topic) if one.key != b"last"])


def test_a_naive_cursor_loses_rows(database: Database, kafka: LocalKafka, tmp_path: Path) -> None:
    """cases.md RC-01: an id cursor skips late commits."""
    verdict = verdict_on("naive-cursor", database=database, kafka=kafka, directory=tmp_path, workers=1, batch=50)
    assert verdict.lost, verdict
    assert any("lost" in problem for problem in verdict.problems())
    assert not verdict.reordered


def test_skip_locked_reorders_keys(database: Database, kafka: LocalKafka, tmp_path: Path) -> None:
    """cases.md RC-04: several SKIP LOCKED workers reorder one key."""
    verdict = verdict_on("skip-locked", database=database, kafka=kafka, directory=tmp_path, workers=3, batch=5)
    assert verdict.reordered, verdict
    assert any("reordered" in problem for problem in verdict.problems())
    assert not verdict.lost
