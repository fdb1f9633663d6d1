"""Reads a topic from its beginning to its present end."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from tests.integration.harness.checker import Delivered
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic

READ_SECONDS = 60


def read_all(kafka: LocalKafka, topic: Topic) -> list[Delivered]:
    """Every message up to the ends of the partitions as they are now, each partition in order."""
    missing = {number: high for number, (low, high) in kafka.watermarks(topic).items() if high > low}
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in missing])
        read: list[Delivered] = []

        def all_read() -> bool:
            for message in consumer.consume(num_messages=1000, timeout=0.2):
                delivered = _delivered(message)
                read.append(delivered)
                if delivered.offset + 1 >= missing.get(delivered.partition, delivered.offset + 2):
                    del missing[delivered.partition]
            return not missing

        eventually(all_read, seconds=READ_SECONDS, what=f"end of topic {topic.name}", interval_seconds=0)
        return read
    finally:
        consumer.close()


def count(kafka: LocalKafka, topic: Topic) -> int:
    """Messages in the topic now."""
    return sum(high - low for low, high in kafka.watermarks(topic).values())


def _delivered(message: Message) -> Delivered:
    if (error := message.error()) is not None:
        raise RuntimeError(f"cannot read {message.topic()}: {error}")
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    key, value = message.key(), message.value()
    headers = {str(header[0]): _bytes(header[1]) or b"" for header in message.headers() or ()}
    return Delivered(partition=partition, offset=offset, key=_bytes(key), payload=_bytes(value), headers=headers)


def _bytes(value: object) -> bytes | None:
    """The client's type hints allow text, which it never gives without a deserializer."""
    assert value is None or isinstance(value, bytes)
    return value


def await_messages(kafka: LocalKafka, topic: Topic, number: int, *, seconds: float = 60) -> None:
    """Wait until the topic holds at least this many messages."""
    eventually(lambda: count(kafka, topic) >= number, seconds=seconds, what=f"{number} messages in {topic.name}")
