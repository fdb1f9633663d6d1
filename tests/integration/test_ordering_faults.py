"""Order per key when relays stall, rows fail and lane locks vanish."""

from __future__ import annotations

from tests.integration.harness.checker import check
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.load import Load
from tests.integration.harness.progress import await_inserted
from tests.integration.harness.relay import Pair, relay_config
from tests.integration.test_secrets_in_output import check_output
from tests.testbed.services.eventually import eventually, pass_time
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.pgbouncer import pooling

BATCH = 5
LIMIT = 2000
BIG = '{"text": "' + "".join(f"{number:05}" for number in range(1000)) + '"}'


def order(kafka: LocalKafka, pair: Pair, key: str) -> list[bytes]:
    """Payloads of one key in the order of their offsets."""
    messages = sorted(read_all(kafka, pair.topic), key=lambda message: (message.partition, message.offset))
    return [message.payload or b"" for message in messages if message.key == key.encode()]


def small_topic(kafka: LocalKafka, pair: Pair) -> Pair:
    """The pair on a topic that refuses messages above `LIMIT` bytes, with quick retries."""
    topic = kafka.create_topic(partitions=1, configs={"max.message.bytes": str(LIMIT)})
    config = relay_config(
        database=pair.database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=pair.directory,
        tuning={"row_retry_min_seconds": 0.5, "row_retry_max_seconds": 1.0},
    )
    pair.topic, pair.config = topic, config
    return pair


def test_rc_04_a_stalled_relay_is_not_overtaken(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-04: four relays, batches of five, three keys; each relay in turn stands still for a while."""
    config = pair.configured(batch_rows=BATCH)
    running = [pair.relay(config=config) for _ in range(4)]
    for relay in running:
        relay.await_report(lambda report: len(report.lanes_owned) == 4, what="a quarter of the lanes")
    with Load(pair.database, keys=3, rows_per_second=100) as load:
        for relay in running:
            relay.pause()
            pass_time(5)
            relay.resume()
    pair.await_empty()
    verdict = check(committed=load.committed(), delivered=read_all(kafka, pair.topic))
    assert not verdict.problems(), f"{verdict}: {verdict.problems()}"
    assert verdict.committed > 200


def test_rc_04_a_row_that_fails_first_holds_back_its_own_key_only(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-04, second run: row 3 of key k fails, later goes through; key k stays in order, others pass."""
    pair = small_topic(kafka, pair)
    pair.insert(("k", '{"n": 1}'), ("k", '{"n": 2}'), ("k", BIG), ("k", '{"n": 4}'), ("other", '{"n": 1}'))
    relay = pair.relay()
    relay.await_report(lambda report: report.parked_total == 1, what="one parked row")
    pair.insert(("other", '{"n": 2}'), ("k", '{"n": 5}'))
    await_messages(kafka, pair.topic, 4)
    relay.await_report(lambda report: report.row_faults >= 3, what="the row to be tried again and again")
    assert order(kafka, pair, "k") == [b'{"n": 1}', b'{"n": 2}']
    assert order(kafka, pair, "other") == [b'{"n": 1}', b'{"n": 2}']
    assert pair.pending() == 3
    kafka.configure_topic(pair.topic, max_message_bytes="1048588")
    pair.await_empty()
    assert order(kafka, pair, "k") == [b'{"n": 1}', b'{"n": 2}', BIG.encode(), b'{"n": 4}', b'{"n": 5}']
    relay.await_report(lambda report: report.parked_total == 0, what="nothing parked any more")


def test_rc_04_relays_beyond_the_lanes_stand_by(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-04: more relays than can keep order: the spare ones send nothing until a lane is free."""
    config = pair.configured(batch_rows=BATCH).model_copy(update={"lanes": 2})
    running = [pair.relay(config=config) for _ in range(4)]
    for relay in running:
        relay.await_report(lambda report: report.members == 4, what="four members")
    with Load(pair.database, keys=3, rows_per_second=200) as load:
        await_inserted(pair.database, 100)
        busy = [relay for relay in running if relay.report().lanes_owned]
        assert [len(relay.report().lanes_owned) for relay in busy] == [1, 1]
        assert {relay.report().sent_rows for relay in running if relay not in busy} == {0}
        repeatable = pair.unsettled_after_death(busy[0])
        rest = [relay for relay in running if relay is not busy[0]]
        eventually(
            lambda: sum(len(relay.report().lanes_owned) for relay in rest) == 2, seconds=30, what="the lane taken over"
        )
        await_inserted(pair.database, 200)
    pair.await_empty()
    verdict = check(committed=load.committed(), delivered=read_all(kafka, pair.topic))
    problems = verdict.problems(repeatable=repeatable, most_repeats=2 * BATCH)
    assert not problems, f"{verdict}: {problems}"


def test_rc_06_one_bad_row_neither_holds_nor_carries_its_batch(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-06 (a): ten rows, the fifth too large: nine go out once and are settled, one is parked and shown."""
    pair = small_topic(kafka, pair)
    ids = pair.insert(*[(f"key-{number}", BIG if number == 4 else f'{{"n": {number}}}') for number in range(10)])
    relay = pair.relay()
    report = relay.await_report(lambda report: report.parked_total == 1, what="one parked row")
    await_messages(kafka, pair.topic, 9)
    assert [row.row_id for row in report.parked] == [str(ids[4])]
    assert report.parked[0].reason == "RowTooLarge"
    assert report.parked[0].key == "key-4"
    relay.await_report(lambda report: report.sent_rows == 9, what="nine rows settled")
    assert [row_id for (row_id,) in pair.database.execute("select id from outbox")] == [ids[4]]
    messages = read_all(kafka, pair.topic)
    assert sorted(message.payload or b"" for message in messages) == sorted(
        f'{{"n": {number}}}'.encode() for number in range(10) if number != 4
    )


def test_rr_11_a_lost_lock_ends_publishing(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RR-11 (a): the session that holds the lane locks is ended under load, with two relays."""
    config = pair.configured(batch_rows=50, reconnect_max_seconds=0.5, rebalance_seconds=0.2)
    running = [pair.relay(config=config) for _ in range(2)]
    for relay in running:
        relay.await_report(lambda report: len(report.lanes_owned) == 8, what="half of the lanes")
    ended = 0
    with Load(pair.database) as load:
        for number in range(10):
            relay = running[number % 2]
            for backend in relay.backends(pair.database):
                pair.database.execute("select pg_terminate_backend(%s)", [backend])
                ended += 1
            sent = relay.report().sent_rows
            relay.await_report(lambda report, sent=sent: report.sent_rows >= sent + 50, what="50 more rows sent")
    pair.await_empty()
    committed = load.committed()
    verdict = check(committed=committed, delivered=read_all(kafka, pair.topic))
    problems = verdict.problems(repeatable={row.row_id for row in committed}, most_repeats=ended * 50)
    assert not problems, f"{verdict}: {problems}"


def test_rr_11_a_relay_behind_a_pooler_takes_no_lane(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RR-11 (b): refused and named, and no lock is stranded: a relay that connects directly gets all lanes."""
    login = pair.database.as_role(
        user=(pair.directory / "username").read_text(), password=(pair.directory / "password").read_text()
    )
    tls = pair.config.database.tls.model_copy(update={"mode": "disable", "ca_file": None})
    with pooling(login, mode="transaction") as (pooled,):
        database = pair.config.database.model_copy(update={"port": pooled.port, "tls": tls})
        config = pair.config.model_copy(update={"database": database})
        pair.insert(*[(f"key-{number}", f'{{"n": {number}}}') for number in range(20)])
        for relay in [pair.relay(config=config) for _ in range(2)]:
            report = relay.await_report(lambda report: report.database.reason == "DatabaseError", what="the refusal")
            assert "connect to PostgreSQL directly" in report.database.message
            assert report.lanes_owned == ()
            assert relay.get("/readyz").status == 503
        assert "connect to PostgreSQL directly" in check_output(config, pair.directory)
        assert pair.pending() == 20
        direct = pair.relay()
        direct.await_report(lambda report: len(report.lanes_owned) == 16, what="all lanes")
        pair.await_empty()
    assert len(read_all(kafka, pair.topic)) == 20
