"""The correctness test: concurrent writers, relays that die and stop in the middle, and nothing lost or reordered.

The writers do what makes naive relays fail: ids drawn long before the commit, xids older than row locks, roll-backs,
long transactions. `test_wrong_stores.py` shows that relays with a well-known wrong reading scheme do fail here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outboxrelay.stores import ddl
from tests.contract.relay.settings import POLICIES, prepare_policy, relay_role
from tests.integration.harness.checker import check
from tests.integration.harness.consumer import read_all
from tests.integration.harness.progress import await_inserted
from tests.integration.harness.relay import Pair, RelayProcess, relay_config, relaying
from tests.integration.harness.writers import prepare, writing
from tests.testbed.services.eventually import pass_time
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import Database
from tests.testbed.services.table import PayloadType

BATCH_ROWS = 50
STOPPED_SECONDS = 20


@pytest.mark.parametrize(
    ("relays", "payload", "policy", "seed"),
    [
        (1, "text", "delete", 11),
        (2, "bytea", "delete", 22),
        (4, "jsonb", "delete", 44),
        (2, "jsonb", "mark-status", 66),
        (4, "text", "mark-time", 77),
        (3, "bytea", "keep", 88),
        (3, "text", "woken-lane-column", 99),
    ],
    # The seed is in the name, and so in every report.
    ids=[
        "1-relay-seed-11",
        "2-relays-seed-22",
        "4-relays-seed-44",
        "2-relays-mark-status-seed-66",
        "4-relays-mark-time-seed-77",
        "3-relays-keep-seed-88",
        "3-relays-lane-column-and-wake-seed-99",
    ],
)
def test_nothing_is_lost_or_reordered(
    database: Database, kafka: LocalKafka, tmp_path: Path, relays: int, payload: PayloadType, policy: str, seed: int
) -> None:
    """cases.md RC-01, RC-04, INV: 12 writers x 250 transactions; one relay killed -9, one stopped 20 s and resumed."""
    prepare(database, payload=payload)
    table: dict[str, Any] = {"columns": {"headers": "headers", "created_at": "created_at"}}
    if policy == "woken-lane-column":
        policy = "delete"
        table = {"columns": table["columns"] | {"lane": "lane"}, "wake": "Notify"}
    unsent = prepare_policy(database, policy)
    topic = kafka.create_topic(partitions=4)
    config = relay_config(
        database=relay_role(database, policy),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=tmp_path,
        table=table,
        retention=POLICIES[policy],
        tuning={"batch_rows": BATCH_ROWS},
    )
    for statement in (ddl.add_column(config, name="lane"), *ddl.wake_trigger(config)) if "wake" in table else ():
        database.execute(statement)
    with relaying(Pair(database=database, topic=topic, config=config, directory=tmp_path, unsent=unsent)) as pair:
        running = [pair.relay() for _ in range(relays)]
        for relay in running:
            relay.await_report(lambda report: report.lanes_owned, what="lanes owned")
        with writing(database, payload=payload, seed=seed) as writers:
            await_inserted(database, writers.expected // 4)
            repeatable = pair.unsettled_after_death(running.pop())
            running.append(pair.relay())

            await_inserted(database, writers.expected // 2)
            stopped = running[0]
            stopped.pause()
            # Now and in the end: what the server still reads for it is in one of the two, also if its lanes move on.
            repeatable |= pair.unsettled()
            pass_time(STOPPED_SECONDS)
            repeatable |= pair.unsettled()
            stopped.resume()
            committed = writers.committed()
        pair.await_empty(seconds=120)
        end_gently(running)
    verdict = check(committed=committed, delivered=read_all(kafka, topic))
    problems = verdict.problems(repeatable=repeatable, most_repeats=2 * BATCH_ROWS)
    assert not problems, f"{verdict}: {problems}"
    if policy == "keep":
        kept = [row_id for (row_id,) in database.execute("select id from outbox_sent order by id")]
        assert kept == sorted(row.row_id for row in committed)
    assert verdict.committed > writers.expected * 0.9


def test_scaling_moves_lanes_without_repeats(database: Database, kafka: LocalKafka, tmp_path: Path) -> None:
    """Design section 5, rule 4: relays come and go in an orderly way under load; every lane changes hands settled."""
    prepare(database, payload="jsonb")
    topic = kafka.create_topic(partitions=4)
    config = relay_config(
        database=database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=tmp_path,
        tuning={"batch_rows": BATCH_ROWS, "rebalance_seconds": 0.2},
    )
    with relaying(Pair(database=database, topic=topic, config=config, directory=tmp_path)) as pair:
        running = [pair.relay()]
        with writing(database, payload="jsonb", seed=55) as writers:
            for number, wanted in enumerate((3, 1, 4, 2, 3), start=1):
                await_inserted(database, writers.expected * number // 7)
                while len(running) < wanted:
                    running.append(pair.relay())
                end_gently(running[: len(running) - wanted])
                running = running[-wanted:]
                for relay in running:
                    relay.await_report(lambda report, wanted=wanted: report.members == wanted, what=f"{wanted} members")
                    relay.await_report(lambda report: report.lanes_owned, what="a share of the lanes")
            committed = writers.committed()
        pair.await_empty(seconds=120)
        end_gently(running)
    verdict = check(committed=committed, delivered=read_all(kafka, topic))
    assert not verdict.problems(), f"{verdict}: {verdict.problems()}"


def end_gently(relays: list[RelayProcess]) -> None:
    """SIGTERM to all; each must end by itself with status 0."""
    for relay in relays:
        assert relay.terminate() == 0, relay.log_tail()
