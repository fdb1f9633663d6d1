"""`WidePublisher` with a client that only pretends, for what real brokers do seldom or slowly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from outboxrelay.config import RelayConfig
from outboxrelay.ports import Outcome, WideRow
from outboxrelay.publishers import kafka as kafka_module
from outboxrelay.publishers.topic import TopicFacts
from outboxrelay.publishers.wide import WidePublisher
from tests.unit.relay.world import World

FACTS = TopicFacts(partitions=3, replicas=1, compacted=False, max_message_bytes=1_048_588, min_insync_replicas=1)


class Cluster:
    """What the brokers know and have, and when they answer."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicFacts | KafkaError] = {}
        self.refuses: dict[str, int] = {}
        self.messages: list[tuple[str, bytes | None]] = []
        self.slices = 0
        """How many waits in vain come before each acknowledgement."""

        self.clients = 0
        self.surveys: list[list[str]] = []
        self.on_flush: Callable[[float], None] = lambda _seconds: None


class Client:
    """A producer."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.clients += 1
        self._cluster = cluster
        self._queue: list[tuple[str, bytes | None, Callable[..., None]]] = []
        self._left = 0

    def produce(
        self, topic: str, value: bytes | None, _key: bytes | None, _partition: int, callback: Any, *_more: object
    ) -> None:
        self._queue.append((topic, value, callback))
        self._left = self._cluster.slices

    def poll(self, _seconds: float) -> int:
        return 0

    def flush(self, seconds: float) -> int:
        self._cluster.on_flush(seconds)
        if self._left:
            self._left -= 1
            return len(self._queue)
        queue, self._queue = self._queue, []
        for topic, value, callback in queue:
            if topic in self._cluster.refuses:
                callback(KafkaError(self._cluster.refuses[topic]), None)
            else:
                self._cluster.messages.append((topic, value))
        return 0

    def purge(self, **_options: bool) -> None:
        self._queue.clear()

    def close(self) -> bool:
        assert self._queue == []
        return True


class Inspector:
    """A `TopicInspector`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def open_without_topic(self, _secured: object) -> None:
        pass

    def ask_brokers(self) -> None:
        pass

    def heed(self) -> None:
        pass

    def close(self) -> None:
        pass

    def survey(self, names: list[str]) -> dict[str, TopicFacts | KafkaError]:
        self._cluster.surveys.append(names)
        return {name: self._cluster.topics.get(name, FACTS) for name in names}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Brokers in which every topic is there."""
    made = Cluster()
    monkeypatch.setattr(kafka_module, "Producer", lambda *_arguments, **_options: Client(made))
    monkeypatch.setattr(kafka_module, "TopicInspector", lambda *_arguments, **_options: Inspector(made))
    return made


def config(*, columns: dict[str, Any] | None = None, **changes: Any) -> RelayConfig:
    """Topics `out.${route}`."""
    document = World().config.model_dump() | changes
    document["kafka"]["topic"] = "out.${route}"
    document["table"]["columns"] |= columns or {}
    return RelayConfig.model_validate(document)


def opened(clock: Callable[[], float] = lambda: 0.0, **columns: Any) -> WidePublisher:
    publisher = WidePublisher(config(columns=columns), client_id="c", clock=clock)
    publisher.open()
    return publisher


def row(row_id: int, key: bytes | None, *more: bytes | int | None, payload: bytes = b"p") -> WideRow:
    return tuple.__new__(WideRow, (row_id, key, payload, None, None, None, len(payload), *more))


def send(publisher: WidePublisher, *rows: WideRow) -> Outcome:
    publisher.publish(rows)
    while not publisher.wait(0.2):
        pass
    return publisher.outcome()


def faults(outcome: Outcome) -> list[tuple[int, str]]:
    return [(fault.row.id, fault.reason) for fault in outcome.faults]


def test_a_partition_that_was_added_since_is_no_fault_of_the_row(cluster: Cluster) -> None:
    publisher = opened(partition="part")
    assert faults(send(publisher, row(1, b"k", b"a", 3))) == [(1, "PartitionInvalid")]
    cluster.topics["out.a"] = TopicFacts(
        partitions=4, replicas=1, compacted=False, max_message_bytes=1_048_588, min_insync_replicas=1
    )
    assert send(publisher, row(2, b"k", b"a", 3), row(3, b"l", b"a", None)).acknowledged == [2, 3]


def test_rows_of_a_topic_that_brokers_refuse_are_at_fault_and_no_others(cluster: Cluster) -> None:
    """Where they do not say so when they are asked: their own topics, and ACLs on brokers that list no operations."""
    publisher = opened()
    for code, reason in (
        (KafkaError.TOPIC_EXCEPTION, "TopicInvalid"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TopicAuthorizationFailed"),
    ):
        cluster.refuses = {"out.a": code}
        rows = [row(number, b"%d" % (number % 7), b"a" if number % 3 else b"b") for number in range(1, 30)]
        outcome = send(publisher, *rows)
        assert {found for _, found in faults(outcome)} == {reason}
        wrong = {fault.row.key: fault.row.id for fault in outcome.faults}
        for key in {each.key for each in rows}:
            first = next(each.id for each in rows if each.key == key and each.id % 3)
            assert wrong[key] == first
            assert [each.id for each in rows if each.key == key and each.id in outcome.acknowledged] == [
                each.id for each in rows if each.key == key and each.id < first
            ]


def test_waves_that_are_acknowledged_are_no_silence(cluster: Cluster) -> None:
    now = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    cluster.slices = 1
    cluster.on_flush = pass_time
    publisher = opened(clock=lambda: now)
    publisher.publish([row(number, b"k", b"ab"[number % 2 :][:1]) for number in range(1, 31)])
    while not publisher.wait(0.25):
        assert publisher.trouble() is None
    assert now > 10
    assert len(publisher.outcome().acknowledged) == 30


def test_a_wave_that_nobody_acknowledges_is_silence(cluster: Cluster) -> None:
    now = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    cluster.slices = 1000
    cluster.on_flush = pass_time
    publisher = opened(clock=lambda: now)
    publisher.publish([row(1, b"k", b"a"), row(2, b"k", b"b")])
    while publisher.trouble() is None:
        assert not publisher.wait(0.25)
        assert now < 6


def test_a_key_that_changes_topics_all_the_time_keeps_no_other_row_waiting(cluster: Cluster) -> None:
    publisher = opened()
    rows = [row(number, b"hot", b"ab"[number % 2 :][:1]) for number in range(1, 100)]
    outcome = send(publisher, *rows, row(100, b"other", b"a"))
    assert outcome.acknowledged == [*range(1, 33), 100]
    assert outcome.put_back == list(range(33, 100))
    assert outcome.faults == []
    assert send(publisher, row(101, b"hot", b"a")).acknowledged == [101]


def test_rows_that_were_put_back_are_sent_in_order_and_once(cluster: Cluster) -> None:
    there = World(batch_rows=100)
    there.publisher = opened()

    def insert(key: bytes, route: bytes) -> int:
        row_id = there.table.insert(key)
        there.table.rows[row_id] = tuple.__new__(WideRow, (row_id, key, b"%d" % row_id, None, None, None, 1, route))
        return row_id

    hot = [insert(b"hot", b"ab"[number % 2 :][:1]) for number in range(150)]
    other = [insert(b"other", b"a") for _ in range(150)]
    there.run()
    sent = [int(value or b"0") for _, value in cluster.messages]
    assert [row_id for row_id in sent if row_id in hot] == hot
    assert [row_id for row_id in sent if row_id in other] == other
    assert there.board.report().sent_rows == 300


def test_put_back_rows_stay_behind_a_row_at_fault(cluster: Cluster) -> None:
    publisher = opened()
    rows = [row(number, b"hot", b"ab"[number % 2 :][:1]) for number in range(1, 60)]
    rows[9] = row(10, b"hot", b"no name")
    outcome = send(publisher, *rows)
    assert outcome.acknowledged == list(range(1, 10))
    assert faults(outcome) == [(10, "TopicInvalid")]


def test_a_row_above_the_limit_of_its_own_topic_takes_no_other_with_it(cluster: Cluster) -> None:
    """The client's limit is that of the topic with the largest."""
    cluster.topics["out.small"] = TopicFacts(
        partitions=1, replicas=1, compacted=False, max_message_bytes=1000, min_insync_replicas=1
    )
    publisher = opened()
    good = [row(number, b"%d" % number, b"big", payload=b"p" * 5000) for number in range(1, 20)]
    send(publisher, *good)
    cluster.messages.clear()
    cluster.clients = 0
    cluster.refuses = {"out.small": KafkaError.MSG_SIZE_TOO_LARGE}
    outcome = send(publisher, *good, row(20, b"k", b"small", payload=b"p" * 1000))
    assert faults(outcome) == [(20, "RowTooLarge")]
    assert len(cluster.messages) == len(good)
    # One for the limits that the new topic brought, none for sending again.
    assert cluster.clients == 1
    cluster.refuses = {}
    assert send(publisher, row(21, b"l", b"small", payload=b"p" * 900)).acknowledged == [21]


def test_a_check_is_about_some_of_many_topics_and_about_each_in_turn(cluster: Cluster) -> None:
    publisher = opened()
    send(publisher, *(row(number, b"k%d" % number, b"t%d" % number) for number in range(1, 1201)))
    cluster.surveys.clear()
    for _ in range(3):
        publisher.check()
    assert [len(names) for names in cluster.surveys] == [500, 500, 500]
    assert len({name for names in cluster.surveys for name in names}) == 1200


def test_no_row_may_name_the_dead_letter_topic(cluster: Cluster) -> None:
    """Its consumers would take an event for a dead letter."""
    publisher = WidePublisher(config(on_error={"policy": "DeadLetter", "topic": "out.dead"}), client_id="c")
    publisher.open()
    outcome = send(publisher, row(1, b"k", b"dead"), row(2, b"l", b"dead2"))
    assert faults(outcome) == [(1, "TopicInvalid")]
    assert outcome.acknowledged == [2]
