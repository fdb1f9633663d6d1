"""Databases that end the relay's session at the worst moments, or let nobody in: cases.md RR-01 and RR-02."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.contract.relay.settings import MARK_TIME, prepare_policy
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.relay import Pair, RelayProcess, relay_config
from tests.testbed.services.eventually import eventually, pass_time
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import Database, LocalPostgres

NUMBER = 20
RELAYS = 4
BIG = '{"text": "' + "".join(f"{number:05}" for number in range(1000)) + '"}'


def rows(*, first: int = 0, number: int = NUMBER) -> list[tuple[str, str]]:
    return [(f"key-{index % 7}", f'{{"n": {index}}}') for index in range(first, first + number)]


def end_sessions(relay: RelayProcess, database: Database, *, once: str) -> None:
    """End the relay's session as soon as it is where `once`, a condition on pg_stat_activity, says."""
    (backend,) = relay.backends(database)
    ended = f"select pg_terminate_backend(pid) from pg_stat_activity where pid = {backend} and {once}"
    eventually(lambda: database.execute(ended), seconds=30, what=f"a session with {once}", interval_seconds=0.005)


@contextmanager
def while_reading(pair: Pair, broker: LocalKafka) -> Iterator[None]:
    """The read waits for a lock on the whole table."""
    relay = pair.relay(config=pair.configured(reconnect_max_seconds=1.0))
    relay.await_ready()
    with pair.database.connect(autocommit=False) as other:
        other.execute("lock table outbox in access exclusive mode")
        end_sessions(relay, pair.database, once="wait_event_type = 'Lock'")
    pair.insert(*rows())
    yield


@contextmanager
def while_sending(pair: Pair, broker: LocalKafka) -> Iterator[None]:
    """Rows are with the client, and the broker says nothing."""
    relay = pair.relay(config=pair.configured(reconnect_max_seconds=1.0))
    relay.await_ready()
    broker.pause()
    pair.insert(*rows())
    relay.await_report(lambda report: not report.broker.ok, what="trouble with the broker reported", seconds=45)
    end_sessions(relay, pair.database, once="true")
    relay.await_report(
        lambda report: report.last_error and report.last_error.reason == "DatabaseUnreachable", what="the loss noticed"
    )
    broker.resume()
    yield


@contextmanager
def while_settling(pair: Pair, broker: LocalKafka) -> Iterator[None]:
    """The rows have arrived, and the application locks one of those to be removed."""
    ids = pair.insert(*rows())
    with pair.database.connect(autocommit=False) as application:
        application.execute("select from outbox where id = %s for update", [ids[-1]])
        relay = pair.relay(config=pair.configured(reconnect_max_seconds=1.0))
        await_messages(broker, pair.topic, NUMBER)
        relay.await_report(lambda report: report.lanes_owned, what="lanes owned")
        end_sessions(relay, pair.database, once="wait_event_type = 'Lock'")
    yield


@contextmanager
def while_cleaning(pair: Pair, broker: LocalKafka) -> Iterator[None]:
    """Rows that were sent long ago are removed, slowly."""
    pair.unsent = prepare_policy(pair.database, "mark-time")
    pair.database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload, published_at)"
        " select 'order', 'k', '{}', now() - interval '1 day' from generate_series(1, 5)"
    )
    pair.database.execute(
        "create function rest() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return old; end $$"
    )
    pair.database.execute("create trigger rest before delete on outbox for each row execute function rest()")
    role = (pair.directory / "username").read_text()
    pair.database.execute(f"grant update on outbox to {role}")
    document = pair.config.model_dump(mode="python", by_alias=True) | {
        "retention": {**MARK_TIME, "keep_for_seconds": 60.0},
        "tuning": {"reconnect_max_seconds": 1.0, "clean_up_rest_seconds": 0.5},
    }
    pair.config = pair.config.model_validate(document)
    relay = pair.relay()
    eventually(lambda: relay.backends(pair.database), seconds=30, what="a session", tolerate=(OSError, AssertionError))
    end_sessions(relay, pair.database, once="wait_event = 'PgSleep'")
    pair.insert(*rows())
    eventually(
        lambda: (
            pair.database.execute("select count(*) from outbox where published_at < now() - interval '1 hour'")
            == [(0,)]
        ),
        seconds=60,
        what="the old rows removed all the same",
    )
    yield


MOMENTS: list[Callable[[Pair, LocalKafka], AbstractContextManager[None]]] = [
    while_reading,
    while_sending,
    while_settling,
    while_cleaning,
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_rr_01_a_session_that_ends_at_any_moment_is_replaced(
    pair: Pair, broker: LocalKafka, moment: Callable[[Pair, LocalKafka], AbstractContextManager[None]]
) -> None:
    """cases.md RR-01: inside the poll, the produce, the mark and the clean-up; the failure is counted and told."""
    with moment(pair, broker):
        (relay,) = pair.relays
        pair.await_empty()
        pair.insert(*rows(first=NUMBER))
        pair.await_empty()
        report = relay.await_report(lambda report: report.database.ok and report.broker.ok, what="all well again")
    assert "outboxrelay_database_failures_total 1.0" in relay.get("/metrics").body
    assert report.last_error is not None
    assert report.last_error.reason == "DatabaseUnreachable"
    assert relay.get("/livez").status == 200
    payloads = [message.payload for message in read_all(broker, pair.topic)]
    assert set(payloads) == {payload.encode() for _, payload in rows(number=2 * NUMBER)}
    assert len(payloads) <= 3 * NUMBER


def test_rr_02_a_database_that_denies_everybody_is_not_stormed(
    pair: Pair, server: LocalPostgres, kafka: LocalKafka
) -> None:
    """cases.md RR-02: four relays, each attempt as the server's own log has it, and few lines in theirs."""
    user = (pair.directory / "username").read_text()
    running = [pair.relay() for _ in range(RELAYS)]
    for relay in running:
        relay.await_report(lambda report: len(report.lanes_owned) == 4, what="a quarter of the lanes")

    def attempts() -> int:
        return sum(
            "pg_hba.conf rejects connection" in line and user in line
            for line in server.process.log.read_text(errors="replace").splitlines()
        )

    server.set_hba(f"host all {user} 127.0.0.1/32 reject", "host all all 127.0.0.1/32 scram-sha-256")
    pair.database.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [user])
    eventually(lambda: attempts() >= 7 * RELAYS, seconds=120, what="the back-off at its end")
    before, lines = attempts(), sum(relay.log_text().count("\n") for relay in running)
    seconds = 10
    pass_time(seconds)
    assert attempts() - before <= RELAYS * (seconds // 5 + 1)
    assert sum(relay.log_text().count("\n") for relay in running) - lines <= 5 * RELAYS
    for relay in running:
        assert relay.report().database.reason == "AuthenticationFailed"
    server.set_hba()
    pair.insert(*rows())
    pair.await_empty()
    assert len(read_all(kafka, pair.topic)) == NUMBER


def test_rr_02_a_row_that_fails_for_ever_is_tried_by_one_relay_of_many(
    database: Database, kafka: LocalKafka, tmp_path: Path
) -> None:
    """cases.md RR-02: the interval between two attempts holds for all four relays together."""
    topic = kafka.create_topic(partitions=1, configs={"max.message.bytes": "2000"})
    interval, seconds = 2.0, 9
    config = relay_config(
        database=database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=tmp_path,
        tuning={"row_retry_min_seconds": interval, "row_retry_max_seconds": interval},
    )
    pair = Pair(database=database, topic=topic, config=config, directory=tmp_path)
    running = [pair.relay() for _ in range(RELAYS)]

    def attempts() -> int:
        return sum(relay.report().row_faults for relay in running)

    try:
        for relay in running:
            relay.await_report(lambda report: len(report.lanes_owned) == 4, what="a quarter of the lanes")
        pair.insert(("k", BIG))
        eventually(lambda: attempts() >= 2, seconds=30, what="the row tried again")
        before = attempts()
        pass_time(seconds)
        assert 1 <= attempts() - before <= seconds / interval + 1
        assert sorted(relay.report().parked_total for relay in running) == [0, 0, 0, 1]
    finally:
        pair.end()
        kafka.delete_topic(topic)
