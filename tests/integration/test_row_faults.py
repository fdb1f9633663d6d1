"""Rows that cannot be sent as they are, with real relays, PostgreSQL and Kafka: RC-07 and KF-01 of cases.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from outboxrelay.config import OnError, Tuning
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.relay import Pair
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic

LIMIT = 2000
BIG = '{"text": "' + "".join(f"{number:05}" for number in range(1000)) + '"}'


@contextmanager
def policy(
    pair: Pair, kafka: LocalKafka, name: str, *, attempts: int = 2, limit: int = LIMIT, **tuning: Any
) -> Iterator[Topic]:
    """Give the pair a topic with a limit and a policy; yields the dead-letter topic."""
    topic, dead = kafka.create_topic(configs={"max.message.bytes": str(limit)}), kafka.create_topic()
    pair.topic = topic
    pair.config = pair.config.model_copy(
        update={
            "kafka": pair.config.kafka.model_copy(update={"topic": topic.name}),
            "on_error": OnError.model_validate(
                {"policy": name, "attempts": attempts} | ({"topic": dead.name} if name == "DeadLetter" else {})
            ),
            "tuning": Tuning(row_retry_min_seconds=0.5, row_retry_max_seconds=1.0, **tuning),
        }
    )
    yield dead
    pair.end()
    for each in (topic, dead):
        kafka.delete_topic(each)


def test_rc_07_a_batch_of_poison_goes_to_the_dead_letter_topic(pair: Pair, kafka: LocalKafka) -> None:
    """More bad rows than a batch holds, then good ones: the good pass, the bad leave with their faults in headers."""
    with policy(pair, kafka, "DeadLetter", batch_rows=10) as dead:
        bad = pair.insert(*[(f"bad-{number}", BIG) for number in range(25)])
        pair.insert(*[(f"bad-{number}", '{"n": 1}') for number in range(25)])
        pair.insert(*[(f"good-{number}", '{"n": 2}') for number in range(10)])
        relay = pair.relay()
        pair.await_empty()
        report = relay.await_report(lambda report: report.parked_total == 0, what="nothing parked")
        assert report.dead_lettered == {"RowTooLarge": 25}
        assert report.sent_rows == 35
        letters = read_all(kafka, dead)
        assert sorted(int(letter.headers["outbox-error-row"]) for letter in letters) == bad
        assert {letter.payload for letter in letters} == {BIG.encode()}
        assert {letter.headers["outbox-error-reason"] for letter in letters} == {b"RowTooLarge"}
        assert {letter.headers["outbox-error-attempts"] for letter in letters} == {b"2"}
        assert {letter.headers["outbox-error-topic"] for letter in letters} == {pair.topic.name.encode()}
        metrics = relay.get("/metrics").body
        assert 'outboxrelay_dead_lettered_rows_total{reason="RowTooLarge"} 25.0' in metrics


def test_rc_07_a_batch_of_parked_rows_lets_others_pass_and_is_sent_once_mended(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-07 (a): more bad rows than a batch holds, then good ones of other keys; the bad are counted."""
    with policy(pair, kafka, "Park", batch_rows=10):
        bad = pair.insert(*[(f"bad-{number}", BIG) for number in range(25)])
        pair.insert(*[(f"bad-{number}", '{"n": 1}') for number in range(25)])
        pair.insert(*[(f"good-{number}", '{"n": 2}') for number in range(10)])
        relay = pair.relay()
        await_messages(kafka, pair.topic, 10)
        report = relay.await_report(lambda report: report.parked_total == 25, what="all bad rows parked")
        assert {row.reason for row in report.parked} == {"RowTooLarge"}
        assert {int(row.row_id) for row in report.parked} <= set(bad)
        assert {message.payload for message in read_all(kafka, pair.topic)} == {b'{"n": 2}'}
        assert pair.pending() == 50
        kafka.configure_topic(pair.topic, max_message_bytes="1048588")
        pair.await_empty()
        relay.await_report(lambda report: report.parked_total == 0, what="nothing parked any more")
        for number in range(25):
            key = f"bad-{number}".encode()
            sent = [message.payload for message in read_all(kafka, pair.topic) if message.key == key]
            assert sent == [BIG.encode(), b'{"n": 1}']


def small(number: int) -> str:
    """A row of about a hundred bytes."""
    return f'{{"n": {number}, "text": "{"x" * 80}"}}'


@pytest.mark.parametrize(
    ("limit", "big", "told"),
    [
        (2000, "x" * 5000, "max.message.bytes of 2000"),
        (1_048_588, os.urandom(1_500_000).hex(), "max.message.bytes of 1048588"),
        (1_048_588, "x" * 3_000_000, "max.message.bytes of 1048588, uncompressed"),
        (4_000_000, "x" * 1_500_000, "tuning.max_row_bytes of 1000000"),
    ],
    ids=["topic's", "client's", "before compression", "relay's"],
)
def test_kf_01_a_row_that_is_too_large_takes_no_neighbour_down(
    pair: Pair, kafka: LocalKafka, limit: int, big: str, told: str
) -> None:
    """cases.md KF-01: only the big row is parked, and says by which limit; its neighbours go out once."""
    with policy(pair, kafka, "Park", limit=limit, max_row_bytes=1_000_000 if "max_row" in told else 2**24):
        _, bad, _ = pair.insert(("a", small(1)), ("b", f'{{"text": "{big}"}}'), ("c", small(3)))
        relay = pair.relay()
        report = relay.await_report(lambda report: report.parked_total == 1, what="one parked row")
        assert (report.parked[0].row_id, report.parked[0].reason) == (str(bad), "RowTooLarge")
        assert told in report.parked[0].message
        await_messages(kafka, pair.topic, 2)
        relay.await_report(lambda report: report.sent_rows == 2, what="two rows settled")
        assert [message.payload for message in read_all(kafka, pair.topic)] == [
            small(number).encode() for number in (1, 3)
        ]


@pytest.mark.parametrize("name", ["Park", "DeadLetter"])
def test_kf_01_a_row_that_the_server_cannot_make_text_of_takes_no_neighbour_down(
    pair: Pair, kafka: LocalKafka, name: str
) -> None:
    """cases.md KF-01: ten thousand numbers of 131,072 digits are stored in less than 3 kB, and no text holds them.

    On a busy machine the server needs longer than the usual statement_timeout to find that out, and heeds none then.
    """
    with policy(pair, kafka, name, attempts=1, statement_timeout_seconds=240):
        huge = "[" + ", ".join(["1e131071"] * 10_000) + "]"
        bad = pair.insert(("a", small(1)), ("b", huge), ("a", small(2)), ("b", small(3)), ("c", small(4)))[1]
        relay = pair.relay()
        report = relay.await_report(lambda report: report.parked_total == 1, what="one parked row", seconds=240)
        assert (report.parked[0].row_id, report.parked[0].reason) == (str(bad), "RowTooLarge")
        pair.insert(("a", small(5)), ("c", small(6)))
        await_messages(kafka, pair.topic, 5)
        relay.await_report(lambda report: report.sent_rows == 5 and report.database.ok, what="five rows settled")
        pair.database.execute("delete from outbox where id = %s", (bad,))
        pair.await_empty()
        report = relay.await_report(lambda report: report.parked_total == 0, what="nothing parked any more")
        assert report.dead_lettered == {}
        sent = read_all(kafka, pair.topic)
        for key, numbers in ((b"a", [1, 2, 5]), (b"b", [3]), (b"c", [4, 6])):
            assert [each.payload for each in sent if each.key == key] == [small(number).encode() for number in numbers]


def test_kf_01_the_brokers_own_refusal_is_of_the_big_row_only(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md KF-01: the limit falls under the relay's eyes, so that the broker refuses the whole batch."""
    with policy(pair, kafka, "Park", limit=1_048_588):
        relay = pair.relay()
        relay.await_ready()
        kafka.configure_topic(pair.topic, max_message_bytes=str(LIMIT))
        _, bad, _ = pair.insert(("a", small(1)), ("b", BIG), ("c", small(3)))
        report = relay.await_report(lambda report: report.parked_total == 1, what="one parked row")
        assert (report.parked[0].row_id, report.parked[0].reason) == (str(bad), "RowTooLarge")
        await_messages(kafka, pair.topic, 2)
        relay.await_report(lambda report: report.sent_rows == 2, what="two rows settled")
        assert sorted(message.payload or b"" for message in read_all(kafka, pair.topic)) == [
            small(number).encode() for number in (1, 3)
        ]


def test_kf_01_neighbours_of_a_dead_letter_are_sent_once(pair: Pair, kafka: LocalKafka) -> None:
    with policy(pair, kafka, "DeadLetter", attempts=1) as dead:
        pair.insert(("a", '{"n": 1}'), ("b", BIG), ("a", '{"n": 3}'), ("b", '{"n": 4}'))
        pair.relay()
        pair.await_empty()
        messages = read_all(kafka, pair.topic)
        assert [message.payload for message in messages if message.key == b"a"] == [b'{"n": 1}', b'{"n": 3}']
        assert [message.payload for message in messages if message.key == b"b"] == [b'{"n": 4}']
        assert [letter.payload for letter in read_all(kafka, dead)] == [BIG.encode()]


def test_rc_07_a_missing_dead_letter_topic_keeps_the_row_and_the_others_pass(pair: Pair, kafka: LocalKafka) -> None:
    with policy(pair, kafka, "DeadLetter", attempts=1) as dead:
        kafka.delete_topic(dead)
        (bad,) = pair.insert(("bad", BIG))
        pair.insert(*[(f"good-{number}", '{"n": 2}') for number in range(10)])
        relay = pair.relay()
        await_messages(kafka, pair.topic, 10)
        report = relay.await_report(
            lambda report: report.parked and "dead-letter topic" in report.parked[0].message, what="the row parked"
        )
        assert report.parked[0].row_id == str(bad)
        assert report.broker.ok
        assert pair.database.execute("select id from outbox") == [(bad,)]
        kafka.create_topic(name=dead.name)
        pair.await_empty()
        assert [letter.payload for letter in read_all(kafka, dead)] == [BIG.encode()]


def test_rc_07_a_halted_lane_stands_still_until_its_row_is_deleted(pair: Pair, kafka: LocalKafka) -> None:
    with policy(pair, kafka, "Halt", attempts=1):
        (bad,) = pair.insert(("bad", BIG))
        relay = pair.relay()
        (lane,) = relay.await_report(lambda report: report.halted_lanes, what="a halted lane").halted_lanes
        keys = [f"key-{number}" for number in range(60)]
        written = dict(zip(pair.insert(*[(key, '{"n": 1}') for key in keys]), keys, strict=True))
        of_key = '(hashtextextended(k collate "C", 0) & 2147483647) %% 16'
        lanes = dict(pair.database.execute(f"select k, ({of_key})::int from unnest(%s::text[]) k", [keys]))
        waiting = {row_id for row_id, key in written.items() if lanes[key] == lane}
        assert waiting
        eventually(
            lambda: {row_id for (row_id,) in pair.database.execute("select id from outbox")} == {bad, *waiting},
            seconds=60,
            what="the rows of other lanes gone",
        )
        tried = relay.report().row_faults
        relay.await_report(lambda report: report.row_faults >= tried + 3, what="the row to be tried again and again")
        assert pair.pending() == 1 + len(waiting)
        assert "outboxrelay_halted_lanes 1.0" in relay.get("/metrics").body
        pair.database.execute("delete from outbox where id = %s", [bad])
        pair.await_empty()
        assert len(read_all(kafka, pair.topic)) == len(written)
        relay.await_report(lambda report: not report.halted_lanes, what="no lane halted")
