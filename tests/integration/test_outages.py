"""Outages of broker and database: nothing is lost, nothing is parked, and nothing holds a lock while it waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outboxrelay.config import OnError
from tests.integration.harness.checker import check
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.load import Load
from tests.integration.harness.proxy import Proxy
from tests.integration.harness.relay import OUTBOXRELAY, Pair, relay_config, relaying
from tests.integration.harness.starting_broker import StartingBroker
from tests.testbed.services.eventually import eventually, pass_time
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table

MIB = 2**20
POD_BYTES = 256 * MIB
"""The default memory limit of a relay's pod."""


def rows(number: int) -> list[tuple[str, str]]:
    """Rows over seven keys, each payload unique."""
    return [(f"key-{index % 7}", f'{{"n": {index}}}') for index in range(number)]


def counts(kafka: LocalKafka, pair: Pair) -> dict[bytes, int]:
    """How often each outbox-id arrived."""
    found: dict[bytes, int] = {}
    for message in read_all(kafka, pair.topic):
        found[message.headers["outbox-id"]] = found.get(message.headers["outbox-id"], 0) + 1
    return found


def test_rc_05_nothing_is_settled_before_the_broker_has_it(pair: Pair, broker: LocalKafka) -> None:
    """cases.md RC-05 (a): broker silent, 100 rows queued in the client, kill -9: all rows are still there."""
    relay = pair.relay()
    relay.await_ready()
    broker.pause()
    pair.insert(*rows(100))
    relay.await_report(lambda report: not report.broker.ok, what="trouble with the broker reported", seconds=45)
    assert pair.pending() == 100
    relay.kill()
    assert pair.pending() == 100
    broker.resume()
    pair.relay()
    pair.await_empty()
    assert len(counts(broker, pair)) == 100


def test_rc_05_a_silent_broker_does_not_pile_up_copies(pair: Pair, broker: LocalKafka) -> None:
    """cases.md RC-05 (b): broker silent far longer than one wait: memory flat, at most one repeat of a row."""
    relay = pair.relay()
    relay.await_ready()
    pair.insert(*rows(100))
    pair.await_empty()
    broker.pause()
    pair.insert(*rows(5000))
    relay.await_report(lambda report: not report.broker.ok, what="trouble with the broker reported", seconds=45)
    before = relay.resident_bytes()
    pass_time(15)
    assert pair.pending() == 5000
    assert relay.resident_bytes() - before < 16 * MIB
    broker.resume()
    pair.await_empty(seconds=120)
    found = counts(broker, pair)
    assert len(found) == 5100
    assert max(found.values()) <= 2


def test_rc_06_a_connection_lost_between_ack_and_settling_repeats_one_batch(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-06 (b): the DELETE never reaches the server: that batch comes again, with the same outbox-id."""
    batch = 10
    with Proxy(target=pair.config.database.port) as proxy:
        plaintext = pair.config.database.tls.model_copy(update={"mode": "disable", "ca_file": None})
        database = pair.config.database.model_copy(update={"port": proxy.port, "tls": plaintext})
        config = pair.configured(batch_rows=batch).model_copy(update={"database": database})
        relay = pair.relay(config=config)
        relay.await_ready()
        # The first removal of a session carries the statement's text; later ones only its name.
        proxy.cut_at(lambda data: b"DELETE FROM" in data)
        pair.insert(*rows(batch * 5))
        pair.await_empty()
        assert proxy.cuts == 1
    found = counts(kafka, pair)
    assert len(found) == batch * 5
    assert sorted(found.values(), reverse=True)[: batch + 1] == [2] * batch + [1]


def test_rc_07_a_long_outage_parks_nothing(pair: Pair, broker: LocalKafka) -> None:
    """cases.md RC-07 (b): broker gone over many attempts, where one fault gives a row up; none is, and all arrive."""
    dead = broker.create_topic()
    config = pair.configured(reconnect_max_seconds=0.5, row_retry_min_seconds=0.1)
    on_error = OnError(policy="DeadLetter", attempts=1, topic=dead.name)
    relay = pair.relay(config=config.model_copy(update={"on_error": on_error}))
    relay.await_ready()
    broker.stop()
    pair.insert(*rows(200))
    report = relay.await_report(lambda report: not report.broker.ok, what="broker reported as gone", seconds=60)
    assert report.broker.reason == "BrokerUnreachable"
    pass_time(10)
    report = relay.report()
    assert not report.broker.ok
    assert (report.parked_total, report.row_faults) == (0, 0)
    assert relay.get("/readyz").status == 503
    assert relay.get("/livez").status == 200
    broker.start()
    pair.await_empty(seconds=120)
    report = relay.await_report(lambda report: report.broker.ok, what="broker reported as well")
    assert (report.parked_total, report.row_faults) == (0, 0)
    assert relay.get("/readyz").status == 200
    assert len(counts(broker, pair)) == 200
    assert read_all(broker, dead) == []


def test_rc_07_a_broker_that_starts_without_knowing_itself_is_found_again(pair: Pair, broker: LocalKafka) -> None:
    """A KRaft broker that has just started names no brokers: the client must not stay alone for ever.

    librdkafka issue 5301; seen on a cluster as a relay that delivered nothing any more after a restart of the broker.
    """
    (port,) = {int(address.rpartition(":")[2]) for address in broker.bootstrap_servers.split(",")}
    relay = pair.relay()
    relay.await_ready()
    pair.insert(*rows(10))
    pair.await_empty()
    broker.stop()
    pair.insert(*rows(20))
    relay.await_report(lambda report: not report.broker.ok, what="broker reported as gone", seconds=60)
    with StartingBroker(port=port, topic=pair.topic.name) as starting:
        # Whether a client falls silent at one such answer is a matter of its threads; at eight it mostly does.
        eventually(
            lambda: starting.denied >= 8 or (starting.denied > 0 and starting.quiet_seconds > 5),
            seconds=90,
            what="a client that asks no more, or keeps asking",
        )
    broker.start()
    pair.await_empty(seconds=90)
    relay.await_report(lambda report: report.broker.ok, what="broker reported as well")
    assert len(counts(broker, pair)) == 30


def test_rr_01_ended_sessions_are_replaced(pair: Pair, server: LocalPostgres, kafka: LocalKafka) -> None:
    """cases.md RR-01: sessions terminated again and again under load, then the whole server restarted."""
    relay = pair.relay(config=pair.configured(batch_rows=50, reconnect_max_seconds=1.0))
    relay.await_ready()
    with Load(pair.database) as load:
        for _ in range(8):
            sent = relay.report().sent_rows
            relay.await_report(lambda report, sent=sent: report.sent_rows >= sent + 60, what="60 more rows sent")
            (backend,) = relay.backends(pair.database)
            pair.database.execute("select pg_terminate_backend(%s)", [backend])
        server.restart()
        sent = relay.report().sent_rows
        relay.await_report(lambda report: report.sent_rows >= sent + 60, what="60 more rows sent after the restart")
    pair.await_empty()
    report = relay.report()
    assert report.database.ok
    assert report.last_error is not None
    assert report.last_error.reason == "DatabaseUnreachable"
    assert relay.get("/livez").status == 200
    assert relay.terminate() == 0
    committed = load.committed()
    verdict = check(committed=committed, delivered=read_all(kafka, pair.topic))
    problems = verdict.problems(repeatable={row.row_id for row in committed}, most_repeats=9 * 50)
    assert not problems, f"{verdict}: {problems}"


def test_rr_01_a_crash_of_the_server_loses_and_reorders_nothing(
    pair: Pair, server: LocalPostgres, kafka: LocalKafka
) -> None:
    """cases.md RR-01: kill -9 of the whole server under load, three times.

    The relay commits removals without waiting for the disk (synchronous_commit off), so a crash of the server may
    undo those of the last instants: at most three times wal_writer_delay of 200 ms, and those rows come again.
    """
    rate, batch, crashes = 200, 50, 3
    relay = pair.relay(config=pair.configured(batch_rows=batch, reconnect_max_seconds=1.0))
    relay.await_ready()
    with Load(pair.database, rows_per_second=rate) as load:
        for _ in range(crashes):
            sent = relay.report().sent_rows
            relay.await_report(lambda report, sent=sent: report.sent_rows >= sent + 100, what="100 more rows sent")
            server.kill()
            server.start()
        sent = relay.report().sent_rows
        relay.await_report(lambda report: report.sent_rows >= sent + 100, what="100 more rows sent after the crashes")
    pair.await_empty()
    committed = load.committed()
    verdict = check(committed=committed, delivered=read_all(kafka, pair.topic))
    problems = verdict.problems(repeatable={row.row_id for row in committed}, most_repeats=crashes * (batch + rate))
    assert not problems, f"{verdict}: {problems}"


def test_rr_01_a_database_that_falls_silent_is_left_and_found_again(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RR-01: packets vanish in the middle of a session; the loop must not hang in it for ever."""
    with Proxy(target=pair.config.database.port) as proxy:
        database = pair.config.database.model_copy(
            update={"port": proxy.port, "host": "127.0.0.1", "connect_timeout_seconds": 2}
        )
        tuning = {"statement_timeout_seconds": 3.0, "reconnect_max_seconds": 1.0}
        config = pair.configured(**tuning).model_copy(update={"database": database})
        relay = pair.relay(config=config)
        relay.await_ready()
        proxy.silence()
        pair.insert(*rows(50))
        report = relay.await_report(lambda report: not report.database.ok, what="silence noticed", seconds=60)
        assert report.database.reason == "DatabaseUnreachable"
        proxy.speak()
        pair.await_empty(seconds=120)
        relay.await_report(lambda report: report.database.ok, what="database found again")
    assert set(counts(kafka, pair).values()) <= {1, 2}


def test_rr_02_an_unreachable_database_is_not_stormed(pair: Pair) -> None:
    """cases.md RR-02: at the steady state at most one attempt per five seconds and relay, and few lines of log."""
    relays, seconds = 2, 15
    with Proxy(target=pair.config.database.port) as proxy:
        proxy.refuse()
        database = pair.config.database.model_copy(update={"port": proxy.port})
        config = pair.config.model_copy(update={"database": database})
        running = [pair.relay(config=config) for _ in range(relays)]
        eventually(lambda: proxy.connections >= 8 * relays, seconds=120, what="the back-off to be at its end")
        before = proxy.connections
        lines = sum(relay.log_text().count("\n") for relay in running)
        pass_time(seconds)
        assert proxy.connections - before <= relays * (seconds // 5 + 1)
        assert sum(relay.log_text().count("\n") for relay in running) - lines <= relays * 10
        for relay in running:
            assert relay.report().database.reason == "DatabaseUnreachable"
            assert relay.get("/livez").status == 200


def test_rr_06_no_transaction_waits_for_the_broker(pair: Pair, broker: LocalKafka) -> None:
    """cases.md RR-06: broker silent with rows in flight: no open transaction, no lock the application could hit."""
    running = [pair.relay() for _ in range(2)]
    for relay in running:
        relay.await_report(lambda report: len(report.lanes_owned) == 8, what="half of the lanes")
    broker.pause()
    ids = pair.insert(*rows(100))
    for relay in running:
        relay.await_report(lambda report: not report.broker.ok, what="trouble with the broker reported", seconds=45)
    role = (pair.directory / "username").read_text()
    for _ in range(5):
        sessions = pair.database.execute(
            "select state, extract(epoch from now() - xact_start) from pg_stat_activity where usename = %s", [role]
        )
        assert sessions
        assert not [state for state, _ in sessions if state and state.startswith("idle in transaction")]
        assert not [age for _, age in sessions if age is not None and age > 5]
        with pair.database.connect(options="-c lock_timeout=2s") as application:
            application.execute("update outbox set payload = payload where id = any(%s)", [ids])
        pass_time(1)
    broker.resume()
    pair.await_empty(seconds=120)
    assert len(counts(broker, pair)) == 100


def test_rr_09_a_backlog_of_fat_rows_fits_into_the_pod(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RR-09 (b): 2,000 rows of 900 kB against the default limit of 256 MiB."""
    number, size = 2000, 900_000
    pair.database.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload)"
        " select 'order', 'key-' || n %% 100, 'Fat', to_jsonb(n || repeat(md5(n::text), %s))"
        " from generate_series(1, %s) n",
        [size // 32, number],
    )
    relay = pair.relay()
    pair.await_empty(seconds=600)
    peak = relay.peak_resident_bytes()
    await_messages(kafka, pair.topic, number)
    assert peak < 256 * MIB, f"peak of {peak / MIB:.0f} MiB"
    report = relay.report()
    assert (report.sent_rows, report.parked_total) == (number, 0)
    assert report.sent_bytes > number * 10_000


def test_rr_09_the_kernel_gives_no_more_than_the_limit_of_the_pod(
    database: Database, kafka: LocalKafka, topic: Topic, tmp_path: Path
) -> None:
    """cases.md RR-09 (b): incompressible rows of 900 kB, more than fit, under a limit that the kernel holds."""
    number, size = 320, 900_000
    database.execute("drop table outbox")
    create_outbox_table(database, payload="bytea")
    database.execute("alter table outbox alter payload set storage external")
    into = "copy outbox (aggregatetype, aggregateid, payload) from stdin (format binary)"
    with database.connect() as connection, connection.cursor().copy(into) as copy:
        copy.set_types(["text", "text", "bytea"])
        for index in range(number):
            copy.write_row(("order", f"key-{index % 20}", index.to_bytes(4, "big") + os.urandom(size)))
    config = relay_config(
        database=database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=tmp_path,
        tuning={"batch_rows": 500},
    )
    with relaying(Pair(database=database, topic=topic, config=config, directory=tmp_path)) as pair:
        limited = (str(program("prlimit")), f"--data={POD_BYTES}", str(OUTBOXRELAY), "run")
        relay = pair.relay(command=limited)
        pair.await_empty(seconds=300)
        assert relay.peak_resident_bytes() < POD_BYTES
        report = relay.report()
        assert (report.sent_rows, report.parked_total) == (number, 0)
        assert report.last_error is None
    arrived = [int.from_bytes((message.payload or b"")[:4], "big") for message in read_all(kafka, topic)]
    assert sorted(arrived) == list(range(number))


@pytest.mark.parametrize("signalled", ["as soon as it can", "while connecting", "when ready"])
def test_rr_10_sigterm_at_the_start_ends_the_process_at_once(pair: Pair, signalled: str) -> None:
    """cases.md RR-10 (a): also within the first second; exit status 0."""
    relay = pair.relay()
    if signalled == "as soon as it can":
        eventually(lambda: relay.catches_sigterm(), seconds=20, what="a handler of SIGTERM", interval_seconds=0.001)
    elif signalled == "while connecting":
        eventually(
            lambda: relay.get("/livez"), seconds=20, what="an answer", tolerate=(OSError,), interval_seconds=0.001
        )
    else:
        relay.await_ready()
    assert relay.terminate(seconds=10) == 0, relay.log_tail()


def test_rr_10_sigterm_under_load_settles_what_is_in_flight(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RR-10 (a): ended and replaced again and again at 500 rows a second: nothing lost, nothing repeated."""
    batch = 50
    config = pair.configured(batch_rows=batch)
    relay = pair.relay(config=config)
    with Load(pair.database) as load:
        for _ in range(4):
            relay.await_report(lambda report: report.sent_rows >= 100, what="100 rows sent")
            assert relay.terminate(seconds=10) == 0, relay.log_tail()
            relay = pair.relay(config=config)
    pair.await_empty()
    committed = load.committed()
    verdict = check(committed=committed, delivered=read_all(kafka, pair.topic))
    assert not verdict.problems(), f"{verdict}: {verdict.problems()}"


def test_rr_10_the_lanes_of_a_killed_relay_are_taken_over(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RR-10 (b): kill -9 one of two; the other takes all lanes within seconds."""
    one, other = pair.relay(), pair.relay()
    for relay in (one, other):
        relay.await_report(lambda report: len(report.lanes_owned) == 8, what="half of the lanes")
    one.kill()
    other.await_report(
        lambda report: len(report.lanes_owned) == 16 and report.members == 1, what="all of the lanes", seconds=30
    )
    pair.insert(*rows(100))
    pair.await_empty()
    assert len(counts(kafka, pair)) == 100
