"""One suite for every `DeadLetters`: over the in-memory fake and over Kafka.

Covered: letters arrive whole, tombstones and rows without a key among them; what this topic does not take; a topic that
is missing and comes later; and what the preflight says of the topic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outboxrelay.ports import DeadLetter, DeadLetters, Outcome, PublisherError, Row, RowFault
from outboxrelay.publishers.dead_letter import kafka_dead_letters
from outboxrelay.publishers.preflight import examine_topic
from tests.contract.relay.fakes import FakeTopic, fake_dead_letters
from tests.contract.relay.settings import relay_config
from tests.integration.harness.consumer import read_all
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic

LIMIT = 20_000

Arrived = list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]


class InMemory:
    """The fake's topic."""

    def __init__(self) -> None:
        self._topic = FakeTopic(max_message_bytes=LIMIT)
        self._topic.down = PublisherError("TopicMissing", "there is no topic")

    def sender(self) -> DeadLetters:
        return fake_dead_letters(self._topic)

    def create(self) -> None:
        self._topic.down = None

    def messages(self) -> Arrived:
        return [
            (each.key, each.value, {name: value for name, value in each.headers if not isinstance(value, str)})
            for each in self._topic.messages
        ]


class RealKafka:
    """A topic of the session's Kafka."""

    def __init__(self, kafka: LocalKafka, directory: Path, name: str) -> None:
        self._kafka = kafka
        self._config = relay_config(
            directory,
            bootstrap_servers=kafka.bootstrap_servers,
            topic="t",
            on_error={"policy": "DeadLetter", "topic": name},
        )
        self._topic: Topic | None = None
        self._made: list[DeadLetters] = []

    def sender(self) -> DeadLetters:
        made = kafka_dead_letters(self._config, client_id="test")
        assert made is not None
        self._made.append(made)
        return made

    def create(self) -> None:
        name = self._config.on_error.topic
        self._topic = self._kafka.create_topic(name=name, configs={"max.message.bytes": str(LIMIT)})

    def messages(self) -> Arrived:
        assert self._topic is not None
        return [(each.key, each.payload, dict(each.headers)) for each in read_all(self._kafka, self._topic)]

    def close(self) -> None:
        for made in self._made:
            made.close()
        if self._topic is not None:
            self._kafka.delete_topic(self._topic)


@pytest.fixture(params=["fake", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InMemory | RealKafka]:
    """A dead-letter topic that does not exist yet."""
    if request.param == "fake":
        yield InMemory()
        return
    made = RealKafka(request.getfixturevalue("kafka"), tmp_path, f"dead-{os.urandom(4).hex()}")
    yield made
    made.close()


def letter(row_id: int, key: bytes | None, payload: bytes | None, *, headers: bytes | None = None) -> DeadLetter:
    row = Row(row_id, key, payload, b"created", headers, None, len(payload or b""))
    return DeadLetter(RowFault(row, "RowTooLarge", f"row {row_id} is too large"), 3)


def send(sender: DeadLetters, *letters: DeadLetter) -> Outcome:
    sender.send(letters)
    eventually(lambda: sender.wait(0.2), seconds=60, what="outcome of dead letters")
    return sender.outcome()


def test_letters_arrive_whole(place: InMemory | RealKafka) -> None:
    place.create()
    sender = place.sender()
    outcome = send(
        sender,
        letter(1, b"a", b"\x00\xff", headers=b'{"trace": "x"}'),
        letter(2, b"b", None),
        letter(3, None, b"p", headers=b"{"),
    )
    assert outcome == Outcome(acknowledged=[1, 2, 3], faults=[])
    assert send(sender, letter(4, b"a", b"again")).acknowledged == [4]
    first, second, third, fourth = place.messages()
    assert [each[:2] for each in (first, second, third, fourth)] == [
        (b"a", b"\x00\xff"),
        (b"b", None),
        (None, b"p"),
        (b"a", b"again"),
    ]
    time = first[2].pop("outbox-error-time")
    assert time is not None
    assert time.endswith(b"Z")
    assert first[2] == {
        "outbox-id": b"db.public.outbox:1",
        "outbox-type": b"created",
        "trace": b"x",
        "outbox-error-reason": b"RowTooLarge",
        "outbox-error-message": b"row 1 is too large",
        "outbox-error-attempts": b"3",
        "outbox-error-topic": b"t",
        "outbox-error-source": b"db.public.outbox",
        "outbox-error-row": b"1",
    }
    assert third[2]["outbox-error-headers"] == b"{"


def test_what_is_too_large_for_this_topic_too_is_told(place: InMemory | RealKafka) -> None:
    place.create()
    outcome = send(place.sender(), letter(1, b"a", os.urandom(2 * LIMIT)), letter(2, b"b", b"small"))
    assert outcome.acknowledged == [2]
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(1, "RowTooLarge")]


def test_a_missing_topic_is_told_and_found_when_it_is_there(place: InMemory | RealKafka) -> None:
    sender = place.sender()
    with pytest.raises(PublisherError) as caught:
        sender.send([letter(1, b"a", b"p")])
    assert caught.value.reason == "TopicMissing"
    place.create()
    assert send(sender, letter(1, b"a", b"p")).acknowledged == [1]


def test_without_a_topic_for_them_there_are_no_dead_letters(tmp_path: Path) -> None:
    assert kafka_dead_letters(relay_config(tmp_path), client_id="test") is None


@pytest.mark.parametrize(
    ("settings", "level", "text"),
    [
        ({"max.message.bytes": "3000000"}, "ok", "has 1 partition"),
        ({}, "warning", "no larger than the topic's"),
        ({"cleanup.policy": "compact"}, "error", "is compacted"),
        (None, "error", "TopicMissing"),
    ],
)
def test_the_preflight_looks_at_the_dead_letter_topic(
    kafka: LocalKafka, topic: Topic, tmp_path: Path, settings: dict[str, str] | None, level: str, text: str
) -> None:
    dead = kafka.create_topic(configs=settings) if settings is not None else Topic(name="missing", partitions=1)
    config = relay_config(
        tmp_path,
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        on_error={"policy": "DeadLetter", "topic": dead.name},
    )
    (found,) = [finding for finding in examine_topic(config) if finding.subject == "dead-letter topic"]
    assert found.level == level
    assert text in found.message
    assert found.remedy or settings is None or level == "ok"
    if settings is not None:
        kafka.delete_topic(dead)
