"""What is Kafka's own about the publisher.

Covered: partitions as Java's clients choose them, back-pressure of the client, a topic that a lenient broker would
create, the topic's settings, what the client complains of while brokers are away, and the end of clients.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from outboxrelay import preflight
from outboxrelay.config import KafkaSettings
from outboxrelay.ports import PublisherError, Row, WideRow
from outboxrelay.publishers.kafka import KafkaPublisher
from outboxrelay.publishers.preflight import examine_topic
from outboxrelay.publishers.wide import WidePublisher
from outboxrelay_operator.api.schema import structural
from tests.contract.relay.limits import set_limit
from tests.contract.relay.settings import relay_config
from tests.integration.harness.murmur2 import java_partition, murmur2
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import Database

MakePublisher = Callable[..., KafkaPublisher]


@pytest.fixture
def make_publisher(tmp_path: Path) -> Iterator[MakePublisher]:
    """Makes publishers that are not open."""
    made: list[KafkaPublisher] = []

    def make(
        kafka: LocalKafka, topic: str, *, overrides: dict[str, object] | None = None, **changes: Any
    ) -> KafkaPublisher:
        config = relay_config(tmp_path, bootstrap_servers=kafka.bootstrap_servers, topic=topic, **changes)
        made.append(KafkaPublisher(config, client_id="test", overrides=overrides))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


def rows(*keys: bytes | None) -> list[Row]:
    return [Row(number, key, b"%d" % number, None, None, None, 10) for number, key in enumerate(keys, start=1)]


def send(publisher: KafkaPublisher, batch: list[Row]) -> list[int]:
    publisher.publish(batch)
    eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
    outcome = publisher.outcome()
    assert outcome.faults == []
    return outcome.acknowledged


def partition_of(kafka: LocalKafka, topic: Topic) -> dict[bytes | None, set[int]]:
    """Partitions in which each key was found."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
    found: dict[bytes | None, set[int]] = {}
    ended = 0
    while ended < topic.partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended += 1
            continue
        key, partition = message.key(), message.partition()
        assert not isinstance(key, str)
        assert partition is not None
        found.setdefault(key, set()).add(partition)
    consumer.close()
    return found


def test_kf_06_the_expectation_is_javas() -> None:
    """cases.md KF-06: vectors from Kafka's own UtilsTest."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in vectors} == vectors


def test_kf_06_keys_go_where_javas_producer_puts_them(
    kafka: LocalKafka, topic: Topic, make_publisher: MakePublisher
) -> None:
    """cases.md KF-06: also the empty key, as Java's clients have it."""
    keys = [b"", "schl\u00fcssel".encode(), *(b"key-%d" % number for number in range(300))]
    publisher = make_publisher(kafka, topic.name)
    publisher.open()
    assert publisher.partitions() == 3
    send(publisher, rows(*keys))
    assert partition_of(kafka, topic) == {key: {java_partition(key, 3)} for key in keys}


def settings_at(bound: str) -> dict[str, Any]:
    """Every setting that may be chosen, as low or as high as it may be."""
    fields = structural(KafkaSettings)["properties"]
    numbers = {name: field[bound] for name, field in fields.items() if field["type"] == "integer"}
    switches = {name: bound == "maximum" for name, field in fields.items() if field["type"] == "boolean"}
    words = {name: field["enum"][0] for name, field in fields.items() if field["type"] == "string"}
    assert len(numbers) + len(switches) + len(words) == len(fields)
    return numbers | switches | words


@pytest.mark.parametrize("bound", ["minimum", "maximum"])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "snappy", "gzip"])
def test_whatever_may_be_chosen_works(
    kafka: LocalKafka, topic: Topic, tmp_path: Path, bound: str, compression: str
) -> None:
    """At its bounds no setting is refused by the client, and messages arrive."""
    section = {
        "bootstrap_servers": tuple(kafka.bootstrap_servers.split(",")),
        "topic": topic.name,
        "compression": compression,
        "settings": settings_at(bound),
    }
    publisher = KafkaPublisher(relay_config(tmp_path, kafka=section), client_id="test")
    publisher.open()
    assert send(publisher, rows(b"a", b"b")) == [1, 2]
    publisher.check()
    publisher.close()
    assert partition_of(kafka, topic).keys() == {b"a", b"b"}


def refuse_settings(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def describe(_admin: AdminClient, resources: list[ConfigResource], **_options: Any) -> dict[ConfigResource, Any]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(code)))
        return {resources[0]: answer}

    monkeypatch.setattr(AdminClient, "describe_configs", describe)


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.NOT_CONTROLLER])
def test_an_outage_does_not_make_the_topics_limits_unknown(
    kafka: LocalKafka, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Hard rule 8: a good row would be judged by the default limit, and parked."""
    topic = kafka.create_topic(configs={"max.message.bytes": "5000000"})
    publisher = make_publisher(kafka, topic.name)
    publisher.open()
    large = [Row(1, b"k", os.urandom(2_000_000), None, None, None, 2_000_000)]
    assert send(publisher, large) == [1]
    with monkeypatch.context() as outage:
        refuse_settings(outage, code)
        with pytest.raises(PublisherError):
            publisher.check()
    publisher.open()
    assert send(publisher, large) == [1]


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNSUPPORTED_VERSION])
def test_settings_that_may_not_be_read_are_left_to_the_broker(
    kafka: LocalKafka, topic: Topic, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_settings(monkeypatch, code)
    publisher = make_publisher(kafka, topic.name)
    publisher.open()
    publisher.check()
    assert send(publisher, rows(b"a")) == [1]


def test_a_row_that_the_broker_refuses_while_others_are_handed_over_is_found(
    kafka: LocalKafka, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm client gives up in the middle of a large batch; that is the row's fault and no outage."""
    refuse_settings(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    topic = kafka.create_topic(partitions=1, configs={"cleanup.policy": "compact"})
    publisher = make_publisher(kafka, topic.name)
    publisher.open()
    send(publisher, rows(*(b"%d" % number for number in range(100))))
    batch = rows(None, *(b"%d" % number for number in range(20_000)))
    publisher.publish(batch)
    eventually(lambda: publisher.wait(0.2), seconds=120, what="outcome of a batch")
    outcome = publisher.outcome()
    assert [(fault.row.id, fault.reason) for fault in outcome.faults] == [(1, "RowRejected")]
    assert outcome.acknowledged == [row.id for row in batch[1:]]


@pytest.fixture
def slow(kafka: LocalKafka) -> Iterator[LocalKafka]:
    """A broker that answers nothing for the next two seconds."""
    kafka.pause()
    timer = threading.Timer(2, kafka.resume)
    timer.start()
    yield kafka
    timer.join()


def test_kf_04_a_full_client_queue_slows_down_and_loses_nothing(
    kafka: LocalKafka, topic: Topic, make_publisher: MakePublisher, request: pytest.FixtureRequest
) -> None:
    """cases.md KF-04: a thousand rows through a queue of ten, while the broker is slow; each arrives once."""
    publisher = make_publisher(kafka, topic.name, overrides={"queue.buffering.max.messages": 10})
    publisher.open()
    request.getfixturevalue("slow")
    keys = [b"k%d" % number for number in range(1000)]
    assert send(publisher, rows(*keys)) == list(range(1, 1001))
    assert partition_of(kafka, topic).keys() == set(keys)
    assert sum(high for _, high in kafka.watermarks(topic).values()) == 1000


def test_kf_04_a_callback_that_raises_fails_the_batch(
    kafka: LocalKafka, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases.md KF-04: nothing of the batch is taken for sent, and a new client goes on."""
    refuse_settings(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    topic = kafka.create_topic(partitions=1, configs={"cleanup.policy": "compact"})
    publisher = make_publisher(kafka, topic.name)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault in the callback")

    with monkeypatch.context() as faulty:
        faulty.setattr(publisher, "_report", fail)
        publisher.open()
        publisher.publish(rows(b"a", None, b"b"))
        with pytest.raises((RuntimeError, PublisherError)):
            eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
    publisher.open()
    assert send(publisher, rows(b"a", b"b")) == [1, 2]


def test_a_row_is_refused_while_the_clients_queue_is_full(
    kafka: LocalKafka, topic: Topic, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher(kafka, topic.name, overrides={"queue.buffering.max.messages": 10})
    publisher.open()
    set_limit(kafka, topic, 2000)
    batch = rows(*(b"k%d" % number for number in range(200)))
    batch[50] = batch[50]._replace(payload=os.urandom(5000))
    publisher.publish(batch)
    eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
    outcome = publisher.outcome()
    assert [fault.row.id for fault in outcome.faults] == [51]
    assert outcome.acknowledged == [row.id for row in batch if row.id != 51]
    assert partition_of(kafka, topic).keys() == {row.key for row in batch if row.id != 51}


def test_a_raised_limit_is_noticed_by_the_next_check(
    kafka: LocalKafka, topic: Topic, make_publisher: MakePublisher
) -> None:
    set_limit(kafka, topic, 2000)
    publisher = make_publisher(kafka, topic.name)
    publisher.open()
    large = rows(b"a")[0]._replace(payload=os.urandom(5000))
    publisher.publish([large])
    eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
    assert [fault.reason for fault in publisher.outcome().faults] == ["RowTooLarge"]
    set_limit(kafka, topic, 10_000)
    publisher.check()
    assert send(publisher, [large]) == [1]


def client_threads() -> set[str]:
    """Those of librdkafka in this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


def clients() -> list[object]:
    """Every client that has not been freed."""
    return [each for each in gc.get_objects() if isinstance(each, Producer | AdminClient)]


def test_a_closed_publisher_leaves_no_client_to_the_garbage(
    make_publisher: MakePublisher, kafka: LocalKafka, topic: Topic
) -> None:
    """However long something refers to it: librdkafka aborts the process if it ends a client in its own thread."""
    before = client_threads()
    publisher = make_publisher(kafka, topic.name)
    publisher.open()
    assert send(publisher, rows(b"a", b"b")) == [1, 2]
    publisher.publish(rows(b"c"))
    held = clients()
    assert len(held) >= 2
    assert client_threads() - before != set()
    publisher.close()
    assert client_threads() - before == set()


def test_a_publisher_that_cannot_open_leaves_no_client_to_the_garbage(
    make_publisher: MakePublisher, kafka: LocalKafka
) -> None:
    before = client_threads()
    publisher = make_publisher(kafka, "missing")
    with pytest.raises(PublisherError):
        publisher.open()
    held = clients()
    assert len(held) >= 1
    with pytest.raises(PublisherError):
        publisher.open()
    publisher.close()
    assert client_threads() - before == set()


def test_a_topic_is_never_created_by_looking_for_it(make_publisher: MakePublisher) -> None:
    with LocalKafka(settings={"auto.create.topics.enable": "true"}) as lenient:
        publisher = make_publisher(lenient, "missing")
        for _ in range(2):
            with pytest.raises(PublisherError) as caught:
                publisher.open()
            assert caught.value.reason == "TopicMissing"
        assert "missing" not in lenient.topics()


def test_an_unreachable_broker_is_told_when_opening(tmp_path: Path) -> None:
    publisher = KafkaPublisher(relay_config(tmp_path), client_id="test")
    with pytest.raises(PublisherError) as caught:
        publisher.open()
    assert caught.value.reason == "BrokerUnreachable"
    assert "127.0.0.1:1" in caught.value.message


def test_rc_05_brokers_that_went_away_are_complained_of_and_one_copy_waits(make_publisher: MakePublisher) -> None:
    """cases.md RC-05: nothing is given up and nothing is sent twice while the broker is away."""
    with LocalKafka() as cluster:
        topic = cluster.create_topic(partitions=1)
        publisher = make_publisher(cluster, topic.name)
        publisher.open()
        send(publisher, rows(b"a"))
        cluster.stop()
        publisher.publish(rows(b"b", b"c"))

        def complains() -> bool:
            assert not publisher.wait(0.2)
            trouble = publisher.trouble()
            return trouble is not None and trouble[0] == "BrokerUnreachable"

        eventually(complains, seconds=30, what="complaint about the broker")
        cluster.start()
        eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
        assert publisher.outcome().acknowledged == [1, 2]
        assert publisher.trouble() is None
        assert cluster.watermarks(topic) == {0: (0, 3)}


def test_a_client_that_lost_its_way_to_brokers_that_are_well_is_given_up(
    kafka: LocalKafka, topic: Topic, tmp_path: Path
) -> None:
    """As after librdkafka's issue 5301: only the producer has nobody to talk to."""
    config = relay_config(tmp_path, bootstrap_servers=kafka.bootstrap_servers, topic=topic.name)
    publisher = KafkaPublisher(
        config, client_id="test", examine_seconds=1.0, overrides={"bootstrap.servers": "127.0.0.1:1"}
    )
    publisher.open()
    publisher.publish(rows(b"a"))

    def given_up() -> PublisherError | None:
        try:
            assert not publisher.wait(0.2)
        except PublisherError as error:
            return error
        return None

    assert eventually(given_up, seconds=30, what="end of the client").reason == "BrokerUnreachable"
    with pytest.raises(PublisherError):
        publisher.publish(rows(b"a"))


def test_silent_brokers_are_complained_of_and_waited_for(make_publisher: MakePublisher) -> None:
    with LocalKafka() as cluster:
        topic = cluster.create_topic(partitions=1)
        publisher = make_publisher(cluster, topic.name)
        publisher.open()
        send(publisher, rows(b"a"))
        cluster.pause()
        publisher.publish(rows(b"b"))

        def complains() -> bool:
            assert not publisher.wait(0.2)
            return publisher.trouble() is not None

        eventually(complains, seconds=20, what="complaint about silence")
        trouble = publisher.trouble()
        assert trouble is not None
        assert trouble[0] == "BrokerUnreachable"
        cluster.resume()
        eventually(lambda: publisher.wait(0.2), seconds=60, what="outcome of a batch")
        assert publisher.outcome().acknowledged == [1]


def test_a_lack_of_in_sync_replicas_is_told_of_and_waited_for(tmp_path: Path) -> None:
    """The brokers refuse each attempt, and librdkafka says nothing of it."""
    with LocalKafka(brokers=3) as cluster, contextlib.ExitStack() as closing:
        topic = cluster.create_topic(partitions=2, configs={"min.insync.replicas": "3"})
        fixed, by_route = (
            relay_config(tmp_path, bootstrap_servers=cluster.bootstrap_servers, topic=name)
            for name in (topic.name, "${route}")
        )
        publishers = [
            closing.enter_context(contextlib.closing(made))
            for made in (
                KafkaPublisher(fixed, client_id="fixed", examine_seconds=1.0),
                WidePublisher(by_route, client_id="by route", examine_seconds=1.0),
            )
        ]
        narrow = rows(b"a", b"a")
        wide: list[Row] = [tuple.__new__(WideRow, (*row, topic.name.encode())) for row in narrow]
        batches = [narrow, wide]
        for publisher, batch in zip(publishers, batches, strict=True):
            publisher.open()
            # To get to know the topic when its broker has just gone may fail.
            assert send(publisher, batch) == [1, 2]
        cluster.stop(2)
        for publisher, batch in zip(publishers, batches, strict=True):
            publisher.publish(batch)
        for publisher in publishers:
            message = eventually(partial(short, publisher), seconds=60, what="a complaint about replicas")
            assert f"(topic {topic.name}): 2 of 2 partitions cannot take messages" in str(message)
            assert "bring back in-sync replicas" in str(message)
        (found,) = [each for each in examine_topic(fixed) if each.subject == "replicas"]
        assert found.level == "error"
        cluster.start()
        for publisher in publishers:
            eventually(partial(publisher.wait, 0.2), seconds=60, what="outcome of a batch")
            assert publisher.outcome().acknowledged == [1, 2]
            assert publisher.trouble() is None
        assert [each for each in examine_topic(fixed) if each.subject == "replicas"] == []


def short(publisher: KafkaPublisher) -> str | None:
    """What it says of replicas; nothing was acknowledged yet."""
    assert not publisher.wait(0.2)
    trouble = publisher.trouble()
    return None if trouble is None or trouble[0] != "BrokerError" else trouble[1]


def test_complaints_do_not_pile_up_while_a_batch_waits_for_its_brokers(make_publisher: MakePublisher) -> None:
    """A client keeps them until somebody asks, and an outage may last for days."""
    with LocalKafka() as cluster:
        topic = cluster.create_topic(partitions=1)
        publisher = make_publisher(cluster, topic.name)
        publisher.open()
        cluster.stop()
        publisher.publish(rows(b"a"))
        # That it has a length the client's own types do not say.
        admin: Any = publisher._inspector._admin
        for _ in range(40):
            assert not publisher.wait(0.2)
            assert len(admin) < 5


def test_the_preflight_passes_a_sound_pair(kafka: LocalKafka, topic: Topic, database: Database, tmp_path: Path) -> None:
    config = relay_config(
        tmp_path, database=database.relay_role(), bootstrap_servers=kafka.bootstrap_servers, topic=topic.name
    )
    found = preflight.run(config)
    assert found.ok, found.text()
    assert [each.subject for each in found.findings if each.level == "warning"] == ["replication"]
    assert "ready to relay (0 errors, 1 warning)" in found.text()
    assert json.loads(found.model_dump_json())["ok"] is True


@pytest.mark.parametrize(
    ("change", "level", "subject", "remedy"),
    [
        ("alter table outbox drop constraint outbox_pkey", "error", "index", "primary key"),
        ("alter sequence outbox_id_seq cache 50", "error", "ids", "ALTER SEQUENCE public.outbox_id_seq CACHE 1"),
        ("alter sequence outbox_id_seq increment -1", "error", "ids", "INCREMENT 1"),
        ("alter sequence outbox_id_seq cycle", "error", "ids", "ALTER SEQUENCE public.outbox_id_seq NO CYCLE"),
        ("alter sequence outbox_id_seq increment 50", "warning", "ids", "INCREMENT 1"),
        ("alter table outbox alter id drop identity", "warning", "ids", "GENERATED ALWAYS AS IDENTITY"),
        ("alter table outbox reset (autovacuum_vacuum_scale_factor)", "warning", "autovacuum", "ALTER TABLE"),
        (
            "alter table outbox enable row level security, force row level security",
            "error",
            "row security",
            "BYPASSRLS",
        ),
        ("alter table outbox rename payload to body", "error", "column payload", "columns.payload"),
        ("alter table outbox alter payload type text[] using null", "error", "column payload", "use one of"),
        ("revoke delete on outbox from {user}", "error", "privileges", "GRANT DELETE ON public.outbox TO {user}"),
        ("drop table outbox", "error", "table", "create it"),
        (
            "alter table outbox drop constraint outbox_pkey; create index on outbox (id, created_at)",
            "warning",
            "index",
            "primary key",
        ),
    ],
)
def test_the_preflight_finds_what_is_wrong_and_says_what_to_do(
    kafka: LocalKafka,
    topic: Topic,
    database: Database,
    tmp_path: Path,
    change: str,
    level: str,
    subject: str,
    remedy: str,
) -> None:
    role = database.relay_role()
    for statement in change.format(user=role.user).split("; "):
        database.execute(statement)
    config = relay_config(tmp_path, database=role, bootstrap_servers=kafka.bootstrap_servers, topic=topic.name)
    found = preflight.run(config)
    assert found.ok == (level == "warning")
    (finding,) = [each for each in found.findings if each.subject == subject]
    assert finding.level == level
    advice = finding.remedy or "".join(finding.statements)
    assert remedy.format(user=role.user) in advice
    assert advice in found.text()
