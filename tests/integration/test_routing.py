"""One relay, many topics: KF-08 of cases.md for the routes of one pair, and order per key across topics."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from outboxrelay.config import RelayConfig
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.relay import Pair, relay_config
from tests.testbed.services.kafka import LocalKafka, Topic

ROUTES = ("order", "payment", "refund")


@pytest.fixture
def prefix(kafka: LocalKafka, pair: Pair) -> Iterator[str]:
    """What the topics of the routes begin with; relays and topics are gone after the test."""
    made = f"routed-{secrets.token_hex(4)}"
    yield made
    pair.end()
    for name in kafka.topics():
        if name.startswith(f"{made}."):
            kafka.delete_topic(Topic(name=name, partitions=1))


def routed(pair: Pair, kafka: LocalKafka, prefix: str, directory: Path) -> RelayConfig:
    return relay_config(
        database=pair.database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=f"{prefix}.${{route}}",
        directory=directory,
        tuning={"row_retry_min_seconds": 0.5, "row_retry_max_seconds": 1.0, "batch_rows": 100},
    )


def insert(pair: Pair, rows: list[tuple[str, str, str]]) -> None:
    """Rows of route, key and payload."""
    with pair.database.connect(autocommit=False) as connection:
        for row in rows:
            connection.execute(
                "insert into outbox (aggregatetype, aggregateid, type, payload) values (%s, %s, 't', %s)", row
            )


def test_kf_08_a_route_without_a_topic_keeps_its_own_rows_only(
    pair: Pair, kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    topics = {route: kafka.create_topic(name=f"{prefix}.{route}") for route in ROUTES[:2]}
    relay = pair.relay(config=routed(pair, kafka, prefix, tmp_path))
    insert(pair, [(route, f"{route}-{number}", f'{{"n": {number}}}') for number in range(30) for route in ROUTES])
    for topic in topics.values():
        await_messages(kafka, topic, 30)
    report = relay.await_report(lambda report: report.parked_total == 30, what="the rows of the third route parked")
    assert report.broker.ok
    assert {row.reason for row in report.parked} == {"TopicMissing"}
    assert pair.database.execute("select distinct aggregatetype from outbox") == [("refund",)]
    refunds = kafka.create_topic(name=f"{prefix}.refund")
    pair.await_empty()
    assert len(read_all(kafka, refunds)) == 30


def test_a_key_goes_to_its_topics_in_the_order_of_its_rows(
    pair: Pair, kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    topics = [
        kafka.create_topic(name=f"{prefix}.{route}", configs={"message.timestamp.type": "LogAppendTime"})
        for route in ROUTES
    ]
    rows = [(ROUTES[number % 3 if number % 7 else 0], f"key-{number % 4}", f"{number}") for number in range(400)]
    insert(pair, rows)
    pair.relay(config=routed(pair, kafka, prefix, tmp_path))
    pair.await_empty()
    for topic, route in zip(topics, ROUTES, strict=True):
        sent = [(str(message.key), int(message.payload or b"-1")) for message in read_all(kafka, topic)]
        for key in {key for key, _ in sent}:
            numbers = [number for of, number in sent if of == key]
            assert numbers == sorted(numbers)
        assert sorted(number for _, number in sent) == [
            number for number, (chosen, _, _) in enumerate(rows) if chosen == route
        ]
