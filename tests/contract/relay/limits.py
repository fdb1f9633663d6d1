"""Changing a topic's limits while it is in use."""

from __future__ import annotations

from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic


def set_limit(kafka: LocalKafka, topic: Topic, size: int) -> None:
    """Set the topic's max.message.bytes, and wait until the broker tells so."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    )
    with kafka.admin() as admin:
        admin.incremental_alter_configs([resource])[resource].result(timeout=10)

        def told() -> bool:
            settings = admin.describe_configs([resource])[resource].result(timeout=10)
            return bool(settings["max.message.bytes"].value == str(size))

        eventually(told, seconds=10, what="the topic's new limit")
