"""The preflight's look at the topic."""

from __future__ import annotations

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.ports import PublisherError
from outboxrelay.publishers.dead_letter import dead_letter_config
from outboxrelay.publishers.errors import CHECK_REPLICAS, protocol
from outboxrelay.publishers.routing import is_template
from outboxrelay.publishers.security import Security
from outboxrelay.publishers.topic import TopicFacts, TopicInspector, lacks_replicas
from outboxrelay.wording import counted


def examine_topic(config: RelayConfig) -> list[Finding]:
    """Connect to the brokers and judge the topic, and the dead-letter topic if there is one."""
    findings, facts = _brokers(config) if is_template(config.kafka.topic) else _examine(config, subject="topic")
    if facts is not None:
        findings = judge(facts, config=config)
    if config.on_error.topic is not None:
        found, letters = _examine(dead_letter_config(config), subject="dead-letter topic")
        findings.extend(found if letters is None else judge_dead_letters(letters, topic=facts, config=config))
    return findings


def _brokers(config: RelayConfig) -> tuple[list[Finding], TopicFacts | None]:
    """Without rows there are no names of topics yet."""
    inspector = TopicInspector(config, client_id="outboxrelay-check")
    try:
        inspector.open_without_topic(Security(config).settings())
    except PublisherError as error:
        return [Finding(level="error", subject="topic", message=f"{error.reason}: {error.message}")], None
    finally:
        inspector.close()
    message = f"{config.kafka.topic}: topics are looked at when rows name them; without its topic a row is at fault"
    return [Finding(level="ok", subject="topic", message=message)], None


def _examine(config: RelayConfig, *, subject: str) -> tuple[list[Finding], TopicFacts | None]:
    inspector = TopicInspector(config, client_id="outboxrelay-check")
    try:
        return [], inspector.open(Security(config).settings())
    except PublisherError as error:
        return [Finding(level="error", subject=subject, message=f"{error.reason}: {error.message}")], None
    finally:
        inspector.close()


def _connection(config: RelayConfig) -> Finding:
    spoken = f"the brokers answer; {protocol(config)}"
    if config.kafka.sasl is not None and config.kafka.tls is None:
        return Finding(
            level="warning",
            subject="brokers",
            message=f"{spoken}: who listens on the way reads every row, and can guess the password",
            remedy="use a listener with TLS, and spec.kafka.tls",
        )
    return Finding(level="ok", subject="brokers", message=spoken)


def judge(facts: TopicFacts, *, config: RelayConfig) -> list[Finding]:
    """What is to be said about a topic that is there."""
    topic = config.kafka.topic
    findings = [
        _connection(config),
        Finding(
            level="ok",
            subject="topic",
            message=f"{topic} has {counted(facts.partitions, 'partition')} with {counted(facts.replicas, 'replica')}",
        ),
    ]
    if facts.short:
        findings.append(
            Finding(level="error", subject="replicas", message=lacks_replicas(facts), remedy=CHECK_REPLICAS)
        )
    if facts.replicas < 2:
        findings.append(
            Finding(
                level="warning",
                subject="replication",
                message=f"{topic} has a single replica: a lost disk loses acknowledged messages",
                remedy="give the topic 3 replicas and min.insync.replicas=2, unless this is a test",
            )
        )
    elif facts.min_insync_replicas is not None and facts.min_insync_replicas < 2:
        findings.append(
            Finding(
                level="warning",
                subject="replication",
                message=f"min.insync.replicas={facts.min_insync_replicas}: a single replica may acknowledge",
                remedy="set min.insync.replicas=2 on the topic",
            )
        )
    findings.extend(_sizes(facts, config=config))
    if facts.compacted:
        findings.append(
            Finding(
                level="ok",
                subject="compaction",
                message=f"{topic} is compacted: rows without a key are parked, rows without a payload are tombstones",
            )
        )
    return findings


def judge_dead_letters(facts: TopicFacts, *, topic: TopicFacts | None, config: RelayConfig) -> list[Finding]:
    """What is to be said about a dead-letter topic that is there; `topic` is what is known of the pair's own topic."""
    subject, name = "dead-letter topic", config.on_error.topic
    if facts.compacted:
        return [
            Finding(
                level="error",
                subject=subject,
                message=f"{name} is compacted: it refuses rows without a key, and keeps one letter of a key",
                remedy=f"set cleanup.policy=delete on {name}",
            )
        ]
    limit, other = facts.max_message_bytes, None if topic is None else topic.max_message_bytes
    if limit is not None and other is not None and limit <= other:
        return [
            Finding(
                level="warning",
                subject=subject,
                message=f"{name} takes messages of {limit} bytes, no larger than the topic's {other}: rows that are"
                " too large stay parked",
                remedy=f"raise max.message.bytes of {name}",
            )
        ]
    return [Finding(level="ok", subject=subject, message=f"{name} has {counted(facts.partitions, 'partition')}")]


def _sizes(facts: TopicFacts, *, config: RelayConfig) -> list[Finding]:
    limit, most = facts.max_message_bytes, config.tuning.max_row_bytes
    if limit is None:
        return [
            Finding(
                level="warning",
                subject="message size",
                message="the topic's settings may not be read, so its limits show only when a row is refused",
                remedy=f"allow DESCRIBE_CONFIGS on topic {config.kafka.topic}",
            )
        ]
    message = f"messages may have {limit} bytes (max.message.bytes); larger rows are parked"
    if limit > most:
        message = (
            f"rows may have {most} bytes (the relay's own bound, below the topic's {limit}); larger ones are parked"
        )
    return [Finding(level="ok", subject="message size", message=message)]
