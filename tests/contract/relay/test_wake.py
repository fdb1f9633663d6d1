"""`wake: Notify` against PostgreSQL: what ends a rest and what does not, and what keeps the relay polling.

Covered: rows of every kind of INSERT, rows announced before and after a question, tests of other relays, a lost
session, a trigger that is missing, disabled, somebody's own or printed by `outboxrelay sql`, long and odd names of
tables, and the preflight's findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.config import RelayConfig, Table
from outboxrelay.ports import StoreError, Wake
from outboxrelay.readable import readable
from outboxrelay.stores import ddl, setup
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from outboxrelay.stores.wake import channel
from tests.contract.relay.settings import MakeStore, relay_config
from tests.descriptors import many_descriptors
from tests.testbed.services.postgres import Database

NOTIFY = {"wake": "Notify"}


class OneSleep:
    """A stop that never comes; its sleep ends only when there is something to read, and fails the test else."""

    def __init__(self) -> None:
        self.sleeps = 0

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float, *, also: int | None = None) -> bool:
        assert also is not None
        self.sleeps += 1
        assert readable(also, within=timeout), "nothing ended the rest"
        return False


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def prepare(database: Database, config: RelayConfig) -> None:
    """What the owner runs."""
    for statement in ddl.wake_trigger(config):
        database.execute(statement)


@pytest.fixture
def notified(database: Database, tmp_path: Path) -> Database:
    """A database whose outbox table announces its rows."""
    prepare(database, relay_config(tmp_path, database=database, table=NOTIFY))
    return database


def insert(database: Database, *, key: str = "k") -> None:
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', %s, '{}')", (key,))


def read(store: PostgresStore) -> list[int]:
    return [row.id for row in store.read(limit=100, held_keys=[], held_ids=[]).rows]


def wake(store: PostgresStore) -> Wake:
    found = store.wake()
    assert found is not None
    return found


def test_a_new_row_ends_a_rest(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified, table=NOTIFY)
    assert wake(store) == Wake(ok=True, reason="Listening", message="")
    assert read(store) == []
    for number in range(1, 4):
        insert(notified)
        assert store.rest(OneSleep(), 30)
        assert read(store) == [number]
        store.settle([number])


def test_a_row_that_came_after_the_question_ends_a_rest_at_once(notified: Database, make_store: MakeStore) -> None:
    """The window in which a wake-up could be lost: the read did not see the row, and nobody sleeps yet."""
    store = make_store(notified, table=NOTIFY)
    store.ask(limit=10, held_keys=[], held_ids=[], in_flight=())
    store._receive(store._session())
    insert(notified)
    store._session().connection.execute("SELECT 1")
    assert read(store) == []
    stop = OneSleep()
    assert store.rest(stop, 30)
    assert stop.sleeps == 0
    assert read(store) == [1]


def test_what_was_announced_before_the_question_is_forgotten(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified, table=NOTIFY)
    insert(notified)
    assert store.rest(OneSleep(), 30)
    assert read(store) == [1]
    assert not store._session().listener.announced()  # type: ignore[union-attr]


def test_tests_of_other_relays_are_no_rows(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified, table=NOTIFY)
    assert read(store) == []
    other = make_store(notified, table=NOTIFY)
    assert wake(other).ok
    assert not store.rest(OneSleep(), 30)
    assert wake(store).ok


def test_rows_that_are_no_inserts_of_the_table_end_no_rest(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified, table=NOTIFY)
    insert(notified)
    assert store.rest(OneSleep(), 30)
    read(store)
    store.settle([1])
    notified.execute("update outbox set type = 'x'")
    with notified.connect(autocommit=False) as connection:
        connection.execute("insert into outbox (aggregatetype, payload) values ('order', '{}')")
        connection.rollback()
    notified.execute('notify "outboxrelay:public.other"')
    store._session().connection.execute("SELECT 1")
    assert not store._session().listener.announced()  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["many", "copy", "conflict", "select"])
def test_every_kind_of_insert_is_announced(notified: Database, make_store: MakeStore, how: str) -> None:
    store = make_store(notified, table=NOTIFY)
    assert read(store) == []
    with notified.connect() as connection:
        if how == "copy":
            with connection.cursor().copy("copy outbox (aggregatetype, payload) from stdin") as copy:
                copy.write_row(("order", "{}"))
        else:
            statements = {
                "many": "values ('order', '{}'::jsonb), ('order', '{}')",
                "conflict": "values ('order', '{}'::jsonb) on conflict do nothing",
                "select": "select 'order', '{}'::jsonb from generate_series(1, 3)",
            }
            connection.execute(f"insert into outbox (aggregatetype, payload) {statements[how]}".encode())
    assert store.rest(OneSleep(), 30)
    assert read(store)


def test_a_session_that_is_ended_ends_a_rest(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified, table=NOTIFY)
    pid = store._session().connection.info.backend_pid
    assert notified.execute("select pg_terminate_backend(%s, 5000)", (pid,)) == [(True,)]
    with pytest.raises(StoreError) as caught:
        store.rest(OneSleep(), 30)
    assert caught.value.reason == "DatabaseUnreachable"
    store.close()
    assert not wake(store).ok
    store.open()
    store.rebalance()
    assert wake(store).ok
    insert(notified)
    assert store.rest(OneSleep(), 30)


def test_a_descriptor_of_any_number_will_do(notified: Database, make_store: MakeStore) -> None:
    """Clients of very many brokers have the low ones."""
    with many_descriptors():
        store = make_store(notified, table=NOTIFY)
    assert store._session().connection.pgconn.socket > 1023
    assert wake(store).ok
    assert read(store) == []
    assert store.alive()
    insert(notified)
    assert store.rest(OneSleep(), 30)
    assert read(store) == [1]


def test_notifications_do_not_pile_up_while_a_batch_is_in_flight(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified, table=NOTIFY)
    assert read(store) == []
    for _ in range(20):
        insert(notified)
    assert store.alive()
    assert store._session().connection.pgconn.notifies() is None
    stop = OneSleep()
    assert store.rest(stop, 30)
    assert stop.sleeps == 0


def test_a_relay_that_polls_listens_to_nothing(notified: Database, make_store: MakeStore) -> None:
    store = make_store(notified)
    assert store.wake() is None
    assert store._session().connection.execute("SELECT pg_listening_channels()").fetchall() == []


DOUBTS: dict[str, Sequence[str]] = {
    "missing": ["drop trigger outboxrelay_wake on outbox"],
    "disabled": ["alter table outbox disable trigger outboxrelay_wake"],
    "for replicas only": ["alter table outbox enable replica trigger outboxrelay_wake"],
    "of another channel": [
        "drop trigger outboxrelay_wake on outbox",
        "create trigger outboxrelay_wake after insert on outbox execute function outboxrelay_wake('other')",
    ],
    "of a table with a longer name": [
        "drop trigger outboxrelay_wake on outbox",
        "create trigger outboxrelay_wake after insert on outbox"
        " execute function outboxrelay_wake('outboxrelay:public.outbox_2')",
    ],
    "for updates only": [
        "drop trigger outboxrelay_wake on outbox",
        "create trigger outboxrelay_wake after update on outbox"
        " execute function outboxrelay_wake('outboxrelay:public.outbox')",
    ],
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_without_its_trigger_the_relay_polls_and_says_so_and_it_comes_back(
    notified: Database, make_store: MakeStore, tmp_path: Path, doubt: str
) -> None:
    clock = Clock()
    store = make_store(notified, clock=clock, table=NOTIFY)
    for statement in DOUBTS[doubt]:
        notified.execute(statement)
    clock.now += 60
    store.rebalance()
    found = wake(store)
    assert (found.ok, found.reason) == (False, "TriggerMissing")
    assert "public.outbox" in found.message
    assert "outboxrelay sql" in found.message
    assert "every 50 ms" in found.message
    notified.execute("drop trigger if exists outboxrelay_wake on outbox")
    prepare(notified, relay_config(tmp_path, database=notified, table=NOTIFY))
    clock.now += 60
    store.rebalance()
    assert wake(store).ok


def test_a_trigger_of_the_owners_own_is_recognised_by_its_text(database: Database, make_store: MakeStore) -> None:
    database.execute(
        "create function tell() returns trigger language plpgsql as"
        " $$ begin perform pg_notify('outboxrelay:public.outbox', 'news'); return new; end $$"
    )
    database.execute("create trigger tell after insert on outbox for each row execute function tell()")
    store = make_store(database, table=NOTIFY)
    assert wake(store).ok
    insert(database)
    assert store.rest(OneSleep(), 30)


@pytest.mark.parametrize(
    ("schema", "name"), [("public", 'Out;"Box%'), ("My 'Schema'", "\u00fcnlang" * 5), ("s" * 60, "t" * 60)]
)
def test_odd_and_long_names(database: Database, make_store: MakeStore, tmp_path: Path, schema: str, name: str) -> None:
    table = {"schema": schema, "name": name, "wake": "Notify"}
    config = relay_config(tmp_path, database=database, table=table)
    for statement in ddl.new_table(config):
        with database.connect() as connection:
            connection.execute(statement.encode())
    store = make_store(database, table=table)
    assert wake(store).ok
    database.execute(f"insert into {ddl.quoted_table(config)} (payload) values ('{{}}')")
    assert store.rest(OneSleep(), 30)
    assert len(read(store)) == 1


def test_each_table_has_a_channel_of_its_own() -> None:
    tables = [Table(name="a" * 60, schema_="s" * 60), Table(name="b" * 60, schema_="s" * 60), Table(), Table(name="x")]
    channels = [channel(table) for table in tables]
    assert len(set(channels)) == len(channels)
    assert all(len(each.encode()) <= 63 for each in channels)
    assert channel(Table()) == "outboxrelay:public.outbox"


def test_rows_of_partitions_are_announced(database: Database, make_store: MakeStore, tmp_path: Path) -> None:
    database.execute("drop table outbox")
    database.execute(
        "create table outbox (id bigint generated always as identity primary key, aggregatetype text, aggregateid text,"
        " type text, payload jsonb) partition by range (id)"
    )
    database.execute("create table outbox_1 partition of outbox for values from (minvalue) to (maxvalue)")
    prepare(database, relay_config(tmp_path, database=database, table=NOTIFY))
    store = make_store(database, table=NOTIFY)
    assert wake(store).ok
    insert(database)
    assert store.rest(OneSleep(), 30)


def findings(config: RelayConfig, subject: str) -> list[tuple[str, str]]:
    return [(each.level, each.message) for each in examine_database(config) if each.subject == subject]


def test_check_and_sql_ask_for_the_trigger(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database, table=NOTIFY)
    ((level, message),) = findings(config, "wake")
    assert level == "warning"
    assert "outboxrelay:public.outbox" in message
    script = setup.for_what_is_missing(config, role=database.user)
    for statement in ddl.wake_trigger(config):
        assert statement in script
        database.execute(statement)
    assert [level for level, _ in findings(config, "wake")] == ["ok"]
    assert [level for level, _ in findings(config, "notifications")] == ["ok"]
    assert "TRIGGER" not in setup.for_what_is_missing(config, role=database.user)
    assert "TRIGGER" in setup.for_new_table(config, role=database.user)


def test_check_and_sql_ask_for_no_trigger_where_the_relay_polls(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    assert findings(config, "wake") == findings(config, "notifications") == []
    assert "TRIGGER" not in setup.for_new_table(config, role=database.user)


def test_check_says_that_notifications_are_swallowed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = relay_config(tmp_path, database=database, table=NOTIFY)

    def deaf(*_arguments: Any) -> None:
        """A proxy that swallows notifications."""

    monkeypatch.setattr("outboxrelay.stores.wake.Listener._on_notification", deaf)
    ((level, message),) = findings(config, "notifications")
    assert level == "warning"
    assert "did not come back" in message
