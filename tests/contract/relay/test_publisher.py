"""One suite for every `Publisher`: the in-memory fake and Kafka.

Covered: what arrives (key, payload bytes, headers, order of a key), the exact account of a batch, faults found by the
relay, by the client and by the broker, neighbours of a refused row, compacted topics, a missing topic, a stopped
broker, and that nothing is sent after `close`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, TopicPartition

from outboxrelay.ports import Outcome, Publisher, PublisherError, Row
from outboxrelay.publishers.kafka import KafkaPublisher
from tests.contract.relay.fakes import Delivered, FakePublisher, FakeTopic
from tests.contract.relay.limits import set_limit
from tests.contract.relay.settings import relay_config
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka

MAX_ROW_BYTES = 64 * 1024


class Broker(Protocol):
    """A broker with one topic of one partition."""

    def publisher(self) -> Publisher:
        """A publisher for the topic, not yet open."""

    def messages(self) -> list[Delivered]:
        """Everything in the topic, in order."""

    def limit(self, size: int) -> None:
        """Set the topic's max.message.bytes."""

    def delete_topic(self) -> None:
        """Delete the topic."""

    def pause(self) -> None:
        """Stop answering."""

    def resume(self) -> None:
        """Answer again."""


class InMemory:
    """The fake as a `Broker`."""

    def __init__(self, *, compacted: bool) -> None:
        self._topic = FakeTopic(compacted=compacted)

    def publisher(self) -> Publisher:
        return FakePublisher(self._topic, max_row_bytes=MAX_ROW_BYTES)

    def messages(self) -> list[Delivered]:
        return self._topic.messages

    def limit(self, size: int) -> None:
        self._topic.max_message_bytes = size

    def delete_topic(self) -> None:
        self._topic.down = PublisherError("TopicMissing", "the topic was deleted")

    def pause(self) -> None:
        self._topic.paused = True

    def resume(self) -> None:
        self._topic.resume()


class RealKafka:
    """A topic of the session's Kafka as a `Broker`."""

    def __init__(self, kafka: LocalKafka, directory: Path, *, compacted: bool) -> None:
        self._kafka = kafka
        self._directory = directory
        self._topic = kafka.create_topic(configs={"cleanup.policy": "compact" if compacted else "delete"})
        self._deleted = False
        self._opened: list[KafkaPublisher] = []

    def close(self) -> None:
        self.resume()
        for publisher in self._opened:
            publisher.close()
        if not self._deleted:
            self._kafka.delete_topic(self._topic)

    def publisher(self) -> Publisher:
        config = relay_config(
            self._directory,
            bootstrap_servers=self._kafka.bootstrap_servers,
            topic=self._topic.name,
            tuning={"max_row_bytes": MAX_ROW_BYTES},
        )
        # Small record batches, so that a batch of rows is many of them and one may be refused in the middle.
        publisher = KafkaPublisher(config, client_id="test", overrides={"batch.num.messages": 20})
        self._opened.append(publisher)
        return publisher

    def messages(self) -> list[Delivered]:
        _, end = self._kafka.watermarks(self._topic)[0]
        consumer = Consumer(
            {"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": "test", "enable.partition.eof": True}
        )
        try:
            consumer.assign([TopicPartition(self._topic.name, 0, 0)])
            found: list[Delivered] = []
            while len(found) < end:
                message = consumer.poll(10)
                if message is None or message.error():
                    break
                headers = message.headers()
                pairs = tuple(headers) if isinstance(headers, list) else ()
                key, value = message.key(), message.value()
                assert not isinstance(key, str)
                assert not isinstance(value, str)
                found.append(Delivered(key, value, pairs))
            return found
        finally:
            consumer.close()

    def limit(self, size: int) -> None:
        set_limit(self._kafka, self._topic, size)

    def delete_topic(self) -> None:
        self._kafka.delete_topic(self._topic)
        self._deleted = True

    def pause(self) -> None:
        self._kafka.pause()

    def resume(self) -> None:
        self._kafka.resume()


MakeBroker = Callable[..., Broker]


@pytest.fixture(params=["fake", "kafka"])
def make_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBroker]:
    made: list[RealKafka] = []

    def make(*, compacted: bool = False) -> Broker:
        if request.param == "fake":
            return InMemory(compacted=compacted)
        broker = RealKafka(request.getfixturevalue("kafka"), tmp_path, compacted=compacted)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


def row(
    row_id: int,
    key: bytes | None = b"k",
    payload: bytes | None = b"p",
    *,
    headers: bytes | None = None,
    size: int | None = None,
) -> Row:
    return Row(row_id, key, payload, b"created", headers, None, size if size is not None else len(payload or b""))


def send(publisher: Publisher, *rows: Row) -> Outcome:
    publisher.publish(rows)
    eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
    return publisher.outcome()


def opened(broker: Broker) -> Publisher:
    publisher = broker.publisher()
    publisher.open()
    return publisher


def test_everything_arrives_as_given_and_in_order(make_broker: MakeBroker) -> None:
    broker = make_broker()
    rows = [row(number, b"key %d" % (number % 7), b"\x00\xff payload %d" % number) for number in range(1, 500)]
    outcome = send(opened(broker), *rows)
    assert outcome == Outcome(acknowledged=[each.id for each in rows], faults=[])
    assert [(message.key, message.value) for message in broker.messages()] == [
        (each.key, each.payload) for each in rows
    ]


def test_headers_are_the_id_the_type_and_the_column(make_broker: MakeBroker) -> None:
    broker = make_broker()
    publisher = opened(broker)
    named = row(2)._replace(message_id=b"0a-1b", type=None)
    send(publisher, row(1, headers=b'{"trace": "1-2", "tries": 1.50, "last": null}'), named)
    first, second = broker.messages()
    assert first.headers[1:] == (
        ("outbox-type", b"created"),
        ("trace", b"1-2"),
        ("tries", b"1.50"),
        ("last", None),
    )
    assert first.headers[0] == ("outbox-id", b"db.public.outbox:1")
    assert second.headers == (("outbox-id", b"0a-1b"),)


def test_batches_follow_each_other(make_broker: MakeBroker) -> None:
    broker = make_broker()
    publisher = opened(broker)
    for number in range(1, 6):
        assert send(publisher, row(number, payload=b"%d" % number)).acknowledged == [number]
    assert [message.value for message in broker.messages()] == [b"1", b"2", b"3", b"4", b"5"]


def test_an_empty_key_and_payload_are_not_null(make_broker: MakeBroker) -> None:
    broker = make_broker()
    send(opened(broker), row(1, b"", b""))
    assert [(message.key, message.value) for message in broker.messages()] == [(b"", b"")]


def test_a_row_above_the_topics_limit_is_kept_back_with_what_follows_it(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.limit(2000)
    outcome = send(
        opened(broker),
        row(1, b"a"),
        row(2, b"b", os.urandom(5000)),
        row(3, b"b"),
        row(4, b"a"),
        row(5, None),
    )
    assert outcome.acknowledged == [1, 4, 5]
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(2, "RowTooLarge")]
    assert [message.key for message in broker.messages()] == [b"a", b"a", None]


def test_small_rows_pass_a_topic_with_a_small_limit(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.limit(2000)
    rows = [row(number, b"%d" % (number % 5), os.urandom(number % 200 + 1).hex().encode()) for number in range(1, 400)]
    assert send(opened(broker), *rows).faults == []
    assert len(broker.messages()) == len(rows)


def test_a_row_refused_by_the_broker_takes_no_neighbour_down(make_broker: MakeBroker) -> None:
    """The limit is lowered after the publisher read it, so only the broker can refuse."""
    broker = make_broker()
    publisher = opened(broker)
    broker.limit(2000)
    rows = [row(number, b"%d" % (number % 20), b"small") for number in range(1, 200)]
    rows[100] = rows[100]._replace(payload=os.urandom(5000), size=5000)
    outcome = send(publisher, *rows)
    culprit = rows[100]
    held_back = {each.id for each in rows[101:] if each.key == culprit.key}
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(culprit.id, "RowTooLarge")]
    assert outcome.acknowledged == [each.id for each in rows if each.id != culprit.id and each.id not in held_back]
    arrived = broker.messages()
    assert {message.outbox_id.rpartition(b":")[2] for message in arrived} == {
        b"%d" % row_id for row_id in outcome.acknowledged
    }
    for key in {each.key for each in rows}:
        first_seen = list(dict.fromkeys(int(m.outbox_id.rpartition(b":")[2]) for m in arrived if m.key == key))
        assert first_seen == sorted(first_seen)
    assert send(publisher, row(1000, b"0")).acknowledged == [1000]


def test_a_good_row_before_one_at_fault_of_its_key_goes_although_the_broker_refuses_another(
    make_broker: MakeBroker,
) -> None:
    """Left out, it would come behind its successors once the one at fault is mended."""
    broker = make_broker()
    publisher = opened(broker)
    broker.limit(2000)
    refused = row(3, b"x")._replace(payload=os.urandom(5000), size=5000)
    outcome = send(publisher, row(1, b"k"), row(2, b"k", headers=b"no json"), refused, row(4, b"k"), row(5, b"y"))
    assert outcome.acknowledged == [1, 5]
    assert sorted(fault.row.id for fault in outcome.faults) == [2, 3]
    assert {message.outbox_id.rpartition(b":")[2] for message in broker.messages()} == {b"1", b"5"}


def test_a_row_that_was_not_fetched_for_its_size_is_at_fault(make_broker: MakeBroker) -> None:
    outcome = send(opened(make_broker()), row(1, payload=None, size=MAX_ROW_BYTES + 1), row(2, b"other"))
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(1, "RowTooLarge")]
    assert outcome.acknowledged == [2]


def test_a_compacted_topic_takes_tombstones_but_no_row_without_a_key(make_broker: MakeBroker) -> None:
    broker = make_broker(compacted=True)
    outcome = send(opened(broker), row(1, None), row(2, b"gone", None), row(3, None))
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [
        (1, "NullKeyOnCompactedTopic"),
        (3, "NullKeyOnCompactedTopic"),
    ]
    assert outcome.acknowledged == [2]
    assert [(message.key, message.value) for message in broker.messages()] == [(b"gone", None)]


def test_a_null_payload_is_at_fault_elsewhere(make_broker: MakeBroker) -> None:
    outcome = send(opened(make_broker()), row(1, b"k", None), row(2, b"k"), row(3, b"other"))
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(1, "PayloadIsNull")]
    assert outcome.acknowledged == [3]


def test_malformed_headers_are_at_fault_and_not_quoted(make_broker: MakeBroker) -> None:
    outcome = send(opened(make_broker()), row(1, headers=b'{"a": ["secret"]}'), row(2, b"other"))
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(1, "HeadersInvalid")]
    assert "secret" not in outcome.faults[0].message
    assert outcome.acknowledged == [2]


def test_a_missing_topic_is_told_and_not_created(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.delete_topic()
    publisher = broker.publisher()
    for _ in range(2):
        with pytest.raises(PublisherError) as caught:
            publisher.open()
        assert caught.value.reason == "TopicMissing"


def test_a_topic_deleted_while_in_use_is_told(make_broker: MakeBroker) -> None:
    broker = make_broker()
    publisher = opened(broker)
    send(publisher, row(1))
    broker.delete_topic()
    with pytest.raises(PublisherError) as caught:
        publisher.check()
    assert caught.value.reason == "TopicMissing"


def test_check_passes_while_all_is_well(make_broker: MakeBroker) -> None:
    publisher = opened(make_broker())
    publisher.check()
    assert publisher.partitions() == 1
    assert publisher.trouble() is None
    assert send(publisher, row(1)).acknowledged == [1]


def test_nothing_is_sent_after_close(make_broker: MakeBroker) -> None:
    """A batch that waits for a stopped broker is forgotten by `close`, and the publisher can be opened again."""
    broker = make_broker()
    publisher = opened(broker)
    send(publisher, row(1, payload=b"before"))
    broker.pause()
    publisher.publish([row(2, payload=b"stale %d" % number) for number in range(50)])
    assert not publisher.wait(0.2)
    publisher.close()
    with pytest.raises(PublisherError):
        publisher.publish([row(3)])
    broker.resume()
    publisher.open()
    send(publisher, row(4, payload=b"after"))
    values = [message.value for message in broker.messages()]
    assert values[0] == b"before"
    assert values[-1] == b"after"
    # What the broker's socket held already may still arrive, once, and before what is sent later.
    assert len(values) <= 52
