"""What broker errors mean, and what the preflight says about a topic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from outboxrelay.findings import Findings
from outboxrelay.publishers.errors import NOT_SENT, ROW_REFUSALS, broker_error, fatal_error
from outboxrelay.publishers.preflight import judge
from outboxrelay.publishers.topic import TopicFacts
from tests.contract.relay.settings import relay_config


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "TopicMissing"),
        (KafkaError._UNKNOWN_TOPIC, "TopicMissing"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TopicAuthorizationFailed"),
        (KafkaError._ALL_BROKERS_DOWN, "BrokerUnreachable"),
        (KafkaError._TRANSPORT, "BrokerUnreachable"),
        (KafkaError._TIMED_OUT, "BrokerUnreachable"),
        (KafkaError.NOT_ENOUGH_REPLICAS, "BrokerError"),
        (KafkaError.UNKNOWN, "BrokerError"),
    ],
)
def test_reasons_and_where(tmp_path: Path, code: int, reason: str) -> None:
    error = broker_error(
        KafkaError(code), config=relay_config(tmp_path, topic="shop.orders"), attempt="sending a batch"
    )
    assert error.reason == reason
    assert error.message.startswith("sending a batch failed (topic shop.orders on 127.0.0.1:1): ")


def test_refusals_of_rows_are_not_broker_faults() -> None:
    assert not ROW_REFUSALS & NOT_SENT
    assert KafkaError.MSG_SIZE_TOO_LARGE in ROW_REFUSALS
    assert KafkaError.NOT_ENOUGH_REPLICAS not in ROW_REFUSALS


def test_a_fatal_error_is_found_behind_what_the_client_raises() -> None:
    cause = KafkaError(KafkaError._GAPLESS_GUARANTEE)
    raised = SystemError("returned a result with an exception set")
    raised.__cause__ = KafkaException(cause)
    assert fatal_error(raised) is cause
    assert fatal_error(KafkaException(cause)) is cause
    assert fatal_error(SystemError("other")) is None


def facts(
    *, replicas: int = 3, insync: int | None = 2, limit: int | None = 1 << 20, compacted: bool | None = False
) -> TopicFacts:
    return TopicFacts(
        partitions=12, replicas=replicas, compacted=compacted, max_message_bytes=limit, min_insync_replicas=insync
    )


@pytest.mark.parametrize(
    ("topic", "warned"),
    [
        (facts(), []),
        (facts(replicas=1), ["replication"]),
        (facts(insync=1), ["replication"]),
        (facts(insync=None, limit=None, compacted=None), ["message size"]),
        (facts(compacted=True), []),
    ],
)
def test_what_the_preflight_says_about_a_topic(tmp_path: Path, topic: TopicFacts, warned: list[str]) -> None:
    findings = Findings.of(judge(topic, config=relay_config(tmp_path)))
    assert findings.ok
    assert [finding.subject for finding in findings.findings if finding.level == "warning"] == warned
    assert all(finding.remedy for finding in findings.findings if finding.level == "warning")


def test_the_preflight_finds_partitions_that_take_no_messages(tmp_path: Path) -> None:
    findings = Findings.of(judge(replace(facts(), short=3), config=relay_config(tmp_path)))
    (found,) = [finding for finding in findings.findings if finding.level == "error"]
    assert found.message.startswith("3 of 12 partitions cannot take messages")
