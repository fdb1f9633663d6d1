"""Placement of keys: the same as that of Java's producers, so that a change of the relay keeps the order of a key."""

from __future__ import annotations

from tests.integration.harness.consumer import read_all
from tests.integration.harness.murmur2 import java_partition
from tests.integration.harness.relay import Pair, relay_config
from tests.testbed.services.kafka import LocalKafka

PARTITIONS = 12


def test_kf_06_keys_go_where_java_producers_put_them(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md KF-06: 1,000 keys, ASCII, UTF-8 and empty, on 12 partitions, against murmur2."""
    pair.topic = kafka.create_topic(partitions=PARTITIONS)
    pair.config = relay_config(
        database=pair.database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=pair.topic.name,
        directory=pair.directory,
    )
    keys = ["", *(f"customer-{n}" for n in range(500)), *(f"Kundin Ü-{n} 🚚" for n in range(499))]
    pair.insert(*[(key, "{}") for key in keys])
    pair.relay()
    pair.await_empty()
    found = {message.key: message.partition for message in read_all(kafka, pair.topic)}
    assert found == {key.encode(): java_partition(key.encode(), PARTITIONS) for key in keys}
