"""Rows that become visible late: ids are drawn before the commit, so the order of commits is not that of ids."""

from __future__ import annotations

import pytest

from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.relay import Pair
from tests.testbed.services.eventually import pass_time
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import LocalPostgres

INSERT = "insert into outbox (aggregatetype, aggregateid, type, payload) values ('order', %s, 'T', '{}')"
BATCH = 20


def keys(kafka: LocalKafka, pair: Pair) -> list[str]:
    """Keys of all messages, sorted."""
    return sorted((message.key or b"").decode() for message in read_all(kafka, pair.topic))


def test_rc_01_a_row_below_many_published_ones_still_arrives(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-01 (a): while the transaction is open the relay settles many full batches above its id.

    The net that looks at the whole table now and then is switched off: the floor alone must not pass the row.
    """
    relay = pair.relay(config=pair.configured(batch_rows=BATCH, full_sweep_seconds=3600.0))
    relay.await_ready()
    with pair.database.connect(autocommit=False) as first:
        first.execute(INSERT, ["late"])
        for _ in range(5):
            pair.insert(*[(f"key-{number}", "{}") for number in range(3 * BATCH)])
        await_messages(kafka, pair.topic, 15 * BATCH)
        pair.await_empty()
        first.commit()
    pair.await_empty()
    assert keys(kafka, pair).count("late") == 1


def test_rc_01_a_rolled_back_id_is_no_reason_to_wait(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-01 (b): a gap in the ids is neither waited for nor reported."""
    relay = pair.relay()
    relay.await_ready()
    with pair.database.connect(autocommit=False) as first:
        first.execute(INSERT, ["gone"])
        first.rollback()
    pair.insert(("next", "{}"))
    pair.await_empty()
    assert keys(kafka, pair) == ["next"]
    report = relay.report()
    assert report.database.ok
    assert report.broker.ok
    assert report.last_error is None


def test_rc_01_a_transaction_may_stay_open_longer_than_any_interval_of_the_relay(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-01 (c): the transaction outlives ten full sweeps."""
    sweep = 0.5
    relay = pair.relay(config=pair.configured(batch_rows=BATCH, full_sweep_seconds=sweep))
    relay.await_ready()
    with pair.database.connect(autocommit=False) as first:
        first.execute(INSERT, ["late"])
        for _ in range(10):
            pair.insert(*[(f"key-{number}", "{}") for number in range(2 * BATCH)])
            pass_time(sweep)
        pair.await_empty()
        first.commit()
    pair.await_empty()
    assert keys(kafka, pair).count("late") == 1
    assert len(keys(kafka, pair)) == 20 * BATCH + 1


def test_rc_01_a_crash_between_publishing_and_the_late_commit_loses_nothing(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md RC-01 (d): kill -9 after the later row went out; its successor finds the earlier one."""
    relay = pair.relay()
    relay.await_ready()
    with pair.database.connect(autocommit=False) as first:
        first.execute(INSERT, ["late"])
        pair.insert(("early", "{}"))
        await_messages(kafka, pair.topic, 1)
        relay.kill()
        pair.relay().await_ready()
        first.commit()
    pair.await_empty()
    assert set(keys(kafka, pair)) == {"early", "late"}


@pytest.mark.parametrize("elsewhere", ["same database", "other database"])
def test_rc_02_publishing_does_not_wait_for_somebody_elses_transaction(
    pair: Pair, kafka: LocalKafka, postgres: LocalPostgres, elsewhere: str
) -> None:
    """cases.md RC-02 (a): an open writing transaction anywhere in the server holds nothing back."""
    busy = pair.database if elsewhere == "same database" else postgres.create_database()
    busy.execute("create table elsewhere (value int)")
    with busy.connect(autocommit=False) as other:
        other.execute("insert into elsewhere values (1)")
        pair.relay().await_ready()
        for _ in range(5):
            pair.insert(*[("key", "{}")] * 20)
        pair.await_empty()
        assert len(keys(kafka, pair)) == 100
        other.rollback()
    if busy is not pair.database:
        postgres.drop_database(busy)
