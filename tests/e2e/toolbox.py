"""Kafka's side of the end-to-end tests: runs in a pod, on the relay image's Python and client.

    python toolbox.py create TOPIC PARTITIONS [NAME=VALUE ...]
    python toolbox.py ensure TOPIC PARTITIONS
    python toolbox.py consume TOPIC
    python toolbox.py password USER PASSWORD

`consume` prints every message that is in the topic now as one JSON line, in the order of each partition, and
ends. Nothing of the product is imported: the tests must not trust what they test.
"""

from __future__ import annotations

import json
import sys
import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic

BROKERS = "kafka:9092"
TIMEOUT_SECONDS = 30


def create(topic: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic and wait until it can be used."""
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    with AdminClient({"bootstrap.servers": BROKERS}) as admin:
        admin.create_topics([new], operation_timeout=TIMEOUT_SECONDS)[topic].result(TIMEOUT_SECONDS)


def ensure(topic: str, partitions: int) -> None:
    """Create a topic if there is none of that name."""
    with AdminClient({"bootstrap.servers": BROKERS}) as admin:
        known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    if topic not in known:
        create(topic, partitions, {})


def consume(topic: str) -> None:
    """Print what is between the beginning and the present end of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": BROKERS, "group.id": f"toolbox-{uuid.uuid4()}", "enable.auto.commit": False}
    )
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions}
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    remaining = {number for number, end in ends.items() if end > 0}
    while remaining:
        message = consumer.poll(TIMEOUT_SECONDS)
        if message is None:
            raise SystemExit(f"nothing more of {topic} within {TIMEOUT_SECONDS} s; missing partitions {remaining}")
        if message.error() is not None:
            raise KafkaException(message.error())
        sys.stdout.write(json.dumps(_shown(message)) + "\n")
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset + 1 >= ends[partition]:
            remaining.discard(partition)
    consumer.close()


def password(user: str, text: str) -> None:
    """Make a SCRAM user, or give it another password."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, info, text.encode())
    with AdminClient({"bootstrap.servers": BROKERS}) as admin:
        admin.alter_user_scram_credentials([change])[user].result(TIMEOUT_SECONDS)


def _shown(message: Message) -> dict[str, object]:
    headers = dict(message.headers() or [])
    return {
        "partition": message.partition(),
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": {name: _text(value) for name, value in headers.items()},
    }


def _text(data: str | bytes | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


def main(arguments: list[str]) -> None:
    """Run one command."""
    match arguments:
        case ["create", topic, partitions, *config]:
            create(topic, int(partitions), dict(item.split("=", 1) for item in config))
        case ["ensure", topic, partitions]:
            ensure(topic, int(partitions))
        case ["consume", topic]:
            consume(topic)
        case ["password", user, text]:
            password(user, text)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
