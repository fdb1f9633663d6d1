"""Rows that say where they go, into a real Kafka: topics by template, partitions, timestamps, faults of single topics.

KF-08 of cases.md, one bad route must not stop the others: here for the routes that one relay serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from outboxrelay.ports import Outcome, PublisherError, WideRow
from outboxrelay.publishers.choice import kafka_publisher
from outboxrelay.publishers.kafka import KafkaPublisher
from outboxrelay.publishers.preflight import examine_topic
from outboxrelay.publishers.topic import TopicFacts, TopicInspector
from tests.contract.relay.limits import set_limit
from tests.contract.relay.settings import relay_config
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic

MakePublisher = Callable[..., KafkaPublisher]


class Routes:
    """Topics with a prefix of their own."""

    def __init__(self, kafka: LocalKafka) -> None:
        self.kafka = kafka
        self.prefix = f"routes-{os.urandom(4).hex()}"
        self.topics: dict[str, Topic] = {}

    def create(self, route: str, *, partitions: int = 1, **configs: str) -> Topic:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        self.topics[route] = self.kafka.create_topic(
            name=f"{self.prefix}.{route}", partitions=partitions, configs=settings
        )
        return self.topics[route]

    def messages(self, route: str) -> list[Message]:
        """Everything in the topic of a route, each partition in order."""
        topic = self.topics[route]
        consumer = Consumer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "t", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
        found: list[Message] = []
        ended = 0
        while ended < topic.partitions:
            message = consumer.poll(10)
            assert message is not None
            if message.error():
                ended += 1
            else:
                found.append(message)
        consumer.close()
        return found

    def values(self, route: str) -> list[bytes]:
        found = [message.value() for message in self.messages(route)]
        return [value for value in found if isinstance(value, bytes)]


@pytest.fixture
def routes(kafka: LocalKafka) -> Iterator[Routes]:
    """Topics that are deleted with the test."""
    made = Routes(kafka)
    yield made
    for topic in made.topics.values():
        kafka.delete_topic(topic)


@pytest.fixture
def make_publisher(tmp_path: Path) -> Iterator[MakePublisher]:
    """Makes open publishers for `<prefix>.${route}`, or another topic."""
    made: list[KafkaPublisher] = []

    def make(routes: Routes, *, topic: str | None = None, **changes: Any) -> KafkaPublisher:
        config = relay_config(
            tmp_path,
            bootstrap_servers=routes.kafka.bootstrap_servers,
            topic=topic or f"{routes.prefix}.${{route}}",
            **changes,
        )
        made.append(kafka_publisher(config, client_id="test"))
        made[-1].open()
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


def row(row_id: int, key: bytes | None, *more: bytes | int | None, payload: bytes | None = b"p") -> WideRow:
    return tuple.__new__(WideRow, (row_id, key, payload, None, None, None, len(payload or b""), *more))


def send(publisher: KafkaPublisher, *rows: WideRow) -> Outcome:
    publisher.publish(rows)
    eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
    return publisher.outcome()


def faults(outcome: Outcome) -> list[tuple[int, str]]:
    return [(fault.row.id, fault.reason) for fault in outcome.faults]


def test_each_row_goes_to_the_topic_that_it_names(routes: Routes, make_publisher: MakePublisher) -> None:
    for route in ("order", "payment"):
        routes.create(route)
    publisher = make_publisher(routes)
    assert publisher.partitions() is None
    rows = [
        row(number, b"k%d" % (number % 5), b"order" if number % 3 else b"payment", payload=b"%d" % number)
        for number in range(1, 200)
    ]
    assert send(publisher, *rows).acknowledged == list(range(1, 200))
    for route, third in (("order", False), ("payment", True)):
        sent = [int(value) for value in routes.values(route)]
        assert sorted(sent) == [number for number in range(1, 200) if (number % 3 == 0) is third]
        for key in range(5):
            of_key = [number for number in sent if number % 5 == key]
            assert of_key == sorted(of_key)


def test_kf_08_a_missing_topic_is_a_fault_of_its_rows_only(routes: Routes, make_publisher: MakePublisher) -> None:
    routes.create("order")
    publisher = make_publisher(routes)
    batch = [
        row(1, b"a", b"order"),
        row(2, b"b", b"payment"),
        row(3, b"b", b"order"),
        row(4, b"c", b"order"),
        row(5, None, b"payment"),
    ]
    outcome = send(publisher, *batch)
    assert outcome.acknowledged == [1, 4]
    assert faults(outcome) == [(2, "TopicMissing"), (5, "TopicMissing")]
    publisher.check()
    routes.create("payment")
    assert send(publisher, *batch[1:3], batch[4]).acknowledged == [2, 3, 5]


def test_illegal_names_are_faults_of_their_rows_only(routes: Routes, make_publisher: MakePublisher) -> None:
    routes.create("order")
    outcome = send(
        make_publisher(routes),
        row(1, b"a", b"a b"),
        row(2, b"b", None),
        row(3, b"c", b"x" * 300),
        row(4, b"d", b"order"),
        row(5, b"a", b"order"),
    )
    assert faults(outcome) == [(1, "TopicInvalid"), (2, "TopicInvalid"), (3, "TopicInvalid")]
    assert outcome.acknowledged == [4]


def test_kf_08_a_topic_of_the_brokers_own_is_a_fault_of_its_rows_only(
    routes: Routes, make_publisher: MakePublisher
) -> None:
    """cases.md KF-08: it may be described and written to by what the ACLs say, and the brokers refuse every message."""
    topic = routes.create("a")
    consumer = Consumer({"bootstrap.servers": routes.kafka.bootstrap_servers, "group.id": "t"})
    # Only a group's first question makes the brokers create it.
    consumer.committed([TopicPartition(topic.name, 0)], timeout=60)
    consumer.close()
    publisher = make_publisher(routes, topic="${topic}", table={"name": "outbox", "columns": {"topic": "topic"}})
    outcome = send(publisher, row(1, b"k", b"__consumer_offsets"), row(2, b"l", topic.name.encode()))
    assert faults(outcome) == [(1, "TopicInvalid")]
    assert outcome.acknowledged == [2]


def test_kf_08_a_topic_that_may_not_be_written_to_is_a_fault_of_its_rows_only(
    routes: Routes, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for route in ("order", "payment"):
        routes.create(route)
    survey = TopicInspector.survey

    def deny(inspector: TopicInspector, topics: list[str]) -> dict[str, TopicFacts | KafkaError]:
        found = survey(inspector, topics)
        denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return {name: denied if name.endswith("payment") else facts for name, facts in found.items()}

    monkeypatch.setattr(TopicInspector, "survey", deny)
    outcome = send(make_publisher(routes), row(1, b"a", b"payment"), row(2, b"b", b"order"))
    assert faults(outcome) == [(1, "TopicAuthorizationFailed")]
    assert outcome.acknowledged == [2]


def test_a_key_whose_rows_change_topics_waits_for_each_acknowledgement(
    routes: Routes, make_publisher: MakePublisher
) -> None:
    """The order of a key is that of time: a row in the second topic is written after the one before it in the first."""
    for route in ("order", "payment"):
        routes.create(route, message_timestamp_type="LogAppendTime")
    rows = [
        row(number, b"k", b"order" if number % 2 else b"payment", payload=b"%d" % number) for number in range(1, 21)
    ]
    assert send(make_publisher(routes), *rows).acknowledged == list(range(1, 21))
    written = sorted(
        (message.timestamp()[1], int(message.value() or b"0"))
        for route in ("order", "payment")
        for message in routes.messages(route)
    )
    times = {number: at for at, number in written}
    assert all(times[number] <= times[number + 1] for number in range(1, 20))


def test_a_row_that_the_broker_refuses_keeps_its_key_from_the_other_topic(
    routes: Routes, make_publisher: MakePublisher
) -> None:
    for route in ("order", "payment"):
        routes.create(route)
    publisher = make_publisher(routes)
    assert send(publisher, row(1, b"x", b"order"), row(2, b"y", b"payment")).acknowledged == [1, 2]
    set_limit(routes.kafka, routes.topics["order"], 2000)
    outcome = send(
        publisher,
        row(3, b"k", b"order", payload=os.urandom(5000)),
        row(4, b"k", b"payment", payload=b"behind"),
        row(5, b"other", b"payment", payload=b"free"),
    )
    assert faults(outcome) == [(3, "RowTooLarge")]
    assert outcome.acknowledged == [5]
    assert b"behind" not in routes.values("payment")
    assert b"free" in routes.values("payment")


def test_a_topic_with_a_small_limit_takes_small_rows_beside_one_with_a_large_limit(
    routes: Routes, make_publisher: MakePublisher
) -> None:
    routes.create("small", max_message_bytes="2000")
    routes.create("large", max_message_bytes="5000000")
    publisher = make_publisher(routes)
    rows = [row(number, b"k%d" % number, b"small", payload=os.urandom(300)) for number in range(1, 100)]
    rows.append(row(100, b"k", b"large", payload=os.urandom(3_000_000)))
    rows.append(row(101, b"big", b"small", payload=os.urandom(5000)))
    outcome = send(publisher, *rows)
    assert outcome.acknowledged == list(range(1, 101))
    assert faults(outcome) == [(101, "RowTooLarge")]


def test_rules_of_a_compacted_topic_hold_for_its_rows_only(routes: Routes, make_publisher: MakePublisher) -> None:
    routes.create("plain")
    routes.create("state", cleanup_policy="compact")
    outcome = send(
        make_publisher(routes),
        row(1, None, b"plain"),
        row(2, None, b"state"),
        row(3, b"a", b"plain", payload=None),
        row(4, b"b", b"state", payload=None),
    )
    assert faults(outcome) == [(2, "NullKeyOnCompactedTopic"), (3, "PayloadIsNull")]
    assert outcome.acknowledged == [1, 4]


def test_a_topic_deleted_while_in_use_is_an_outage_once_and_then_a_fault(
    routes: Routes, make_publisher: MakePublisher
) -> None:
    for route in ("order", "payment"):
        routes.create(route)
    publisher = make_publisher(routes)
    send(publisher, row(1, b"a", b"order"), row(2, b"b", b"payment"))
    routes.kafka.delete_topic(routes.topics.pop("payment"))
    publisher.check()
    outcome = send(publisher, row(3, b"a", b"order"), row(4, b"b", b"payment"))
    assert outcome.acknowledged == [3]
    assert faults(outcome) == [(4, "TopicMissing")]


def test_an_outage_is_nobodys_fault(routes: Routes, make_publisher: MakePublisher, kafka: LocalKafka) -> None:
    routes.create("order")
    publisher = make_publisher(routes)
    kafka.pause()
    try:
        with pytest.raises(PublisherError) as caught:
            publisher.publish([row(1, b"a", b"order")])
        assert caught.value.reason == "BrokerUnreachable"
        with pytest.raises(PublisherError):
            publisher.open()
    finally:
        kafka.resume()
    publisher.open()
    assert send(publisher, row(1, b"a", b"order")).acknowledged == [1]


def test_a_column_chooses_the_partition_and_the_timestamp(routes: Routes, make_publisher: MakePublisher) -> None:
    topic = routes.create("fixed", partitions=3)
    publisher = make_publisher(
        routes,
        topic=topic.name,
        table={"columns": {"partition": "p", "created_at": "c"}},
        timestamps="CreatedAt",
    )
    assert publisher.partitions() == 3
    outcome = send(
        publisher,
        *(row(number, b"k%d" % number, number % 3, 1_767_323_045_678 + number) for number in range(1, 30)),
        row(30, b"a", 3, None),
        row(31, b"b", -1, None),
        row(32, b"c", None, None),
    )
    assert faults(outcome) == [(30, "PartitionInvalid"), (31, "PartitionInvalid")]
    assert outcome.acknowledged == [*range(1, 30), 32]
    found = {bytes(message.key() or b""): message for message in routes.messages("fixed")}
    for number in range(1, 30):
        message = found[b"k%d" % number]
        assert message.partition() == number % 3
        assert message.timestamp()[1] == 1_767_323_045_678 + number
    assert found[b"c"].timestamp()[1] > 1_767_323_045_678 + 1000


def test_the_preflight_asks_the_brokers_when_no_topic_is_known(routes: Routes, tmp_path: Path) -> None:
    config = relay_config(tmp_path, bootstrap_servers=routes.kafka.bootstrap_servers, topic="a.${route}")
    assert [(finding.level, finding.subject) for finding in examine_topic(config)] == [("ok", "topic")]
    away = relay_config(tmp_path, topic="a.${route}")
    (finding,) = examine_topic(away)
    assert finding.level == "error"
    assert "BrokerUnreachable" in finding.message


def test_columns_become_headers(routes: Routes, make_publisher: MakePublisher) -> None:
    topic = routes.create("fixed")
    publisher = make_publisher(
        routes,
        topic=topic.name,
        format="CloudEvents",
        table={"columns": {"created_at": "c", "extra_headers": ({"column": "t", "header": "traceparent"},)}},
    )
    typed = tuple.__new__(WideRow, (1, b"k", b"{}", b"Placed", None, None, 2, b"00-aa-bb-01", b"2026-01-02T03:04:05Z"))
    assert send(publisher, typed).acknowledged == [1]
    (message,) = routes.messages("fixed")
    assert message.headers() == [
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/shop/orders/db"),
        ("content-type", b"application/json"),
        ("ce_id", b"db.public.outbox:1"),
        ("ce_type", b"Placed"),
        ("traceparent", b"00-aa-bb-01"),
        ("ce_time", b"2026-01-02T03:04:05Z"),
    ]
