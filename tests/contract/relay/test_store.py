"""One suite for every `OutboxStore`: the fake and PostgreSQL, with each retention policy, and with a lane column.

Covered: order and bounds of a read, late and rolled-back transactions, held keys and rows, exact settling, rewinding,
lanes (shares, hand-over, loss of a session), the guard against another resource's relay, and a session that was ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from outboxrelay.ports import Batch, OutboxStore, RowFault, StoreError
from outboxrelay.stores import ddl
from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.fakes import FakeStore, FakeTable
from tests.contract.relay.settings import POLICIES, prepare_policy, relay_config
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database

LANES = 4
BATCH_BYTES = 64 * 1024
MAX_ROW_BYTES = 128 * 1024


class Transaction(Protocol):
    """An open transaction of a writer."""

    def insert(self, key: bytes | None, payload: bytes | None = b"{}") -> int:
        """Add a row; returns its id."""

    def commit(self) -> None:
        """Let everybody see the rows."""

    def rollback(self) -> None:
        """Undo."""


class Table(Protocol):
    """One outbox table and those who work on it."""

    def begin(self) -> Transaction:
        """A writer's transaction."""

    def insert(self, key: bytes | None, payload: bytes | None = b"{}") -> int:
        """One row in a transaction of its own; returns its id."""

    def ids(self) -> list[int]:
        """The rows that are there and not sent, as another session sees them."""

    def store(self, *, owner: str = "orders") -> OutboxStore:
        """A store of a relay of the resource `owner`, not yet open."""

    def terminate(self, store: OutboxStore) -> None:
        """End the store's session from the server's side."""


class InMemory:
    """The fake as a `Table`."""

    def __init__(self) -> None:
        self._table = FakeTable(lanes=LANES)

    def begin(self) -> Transaction:
        return self._table.begin()

    def insert(self, key: bytes | None, payload: bytes | None = b"{}") -> int:
        return self._table.insert(key, payload)

    def ids(self) -> list[int]:
        return sorted(self._table.rows)

    def store(self, *, owner: str = "orders") -> OutboxStore:
        return FakeStore(self._table, owner=owner, batch_bytes=BATCH_BYTES, max_row_bytes=MAX_ROW_BYTES)

    def terminate(self, store: OutboxStore) -> None:
        assert isinstance(store, FakeStore)
        self._table.terminate(store)


class Writer:
    """A transaction in PostgreSQL; many, one for each row, on a connection in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def insert(self, key: bytes | None, payload: bytes | None = b"{}") -> int:
        found = self._connection.execute(
            "insert into events (aggregatetype, aggregateid, type, payload) values ('order', %s, 'created', %s)"
            " returning id",
            (None if key is None else key.decode(), payload),
        ).fetchone()
        assert found is not None
        return int(found[0])

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()


class InPostgres:
    """A table of a fresh database as a `Table`."""

    def __init__(self, database: Database, directory: Path, *, policy: str, lane_column: bool = False) -> None:
        self._columns = {"lane": "lane"} if lane_column else {}
        self._database = database
        self._policy = policy
        self._directory = directory
        self._stores: list[PostgresStore] = []
        self._writer = Writer(database.connect())
        database.execute(
            "create table events (id bigint generated always as identity primary key, aggregatetype text,"
            " aggregateid text, type text, payload bytea)"
        )
        if lane_column:
            config = relay_config(directory, table={"name": "events", "columns": self._columns}, lanes=LANES)
            database.execute(ddl.add_column(config, name="lane"))
        self._unsent = prepare_policy(database, policy, table="events")

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._writer.commit()

    def begin(self) -> Transaction:
        return Writer(self._database.connect(autocommit=False))

    def insert(self, key: bytes | None, payload: bytes | None = b"{}") -> int:
        return self._writer.insert(key, payload)

    def ids(self) -> list[int]:
        return [
            row_id for (row_id,) in self._database.execute(f"select id from events where {self._unsent} order by id")
        ]

    def store(self, *, owner: str = "orders") -> OutboxStore:
        config = relay_config(
            self._directory,
            database=self._database,
            pair={
                "namespace": "shop",
                "relay": owner,
                "name": f"pair-of-{owner}",
                "database": "d",
                "topic": "t",
            },
            table={"name": "events", "columns": self._columns},
            retention=POLICIES[self._policy],
            lanes=LANES,
            tuning={"batch_bytes": BATCH_BYTES, "max_row_bytes": MAX_ROW_BYTES, "full_sweep_seconds": 3600.0},
        )
        store = PostgresStore(config)
        self._stores.append(store)
        return store

    def terminate(self, store: OutboxStore) -> None:
        assert isinstance(store, PostgresStore)
        assert store._connection is not None
        pid = store._connection.info.backend_pid
        assert self._database.execute("select pg_terminate_backend(%s, 5000)", (pid,)) == [(True,)]


@pytest.fixture(params=["fake", *POLICIES, "lane-column"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    if request.param == "fake":
        yield InMemory()
        return
    lane_column = request.param == "lane-column"
    policy = "delete" if lane_column else request.param
    made = InPostgres(request.getfixturevalue("database"), tmp_path, policy=policy, lane_column=lane_column)
    yield made
    made.close()


def opened(table: Table, *, owner: str = "orders") -> OutboxStore:
    store = table.store(owner=owner)
    store.open()
    store.rebalance()
    return store


def reopen(store: OutboxStore) -> None:
    """A session anew; the one before holds its lanes until the server has seen that it ended."""
    store.close()
    store.open()
    eventually(lambda: len(store.rebalance()) == LANES, seconds=20, what="all lanes")


def read(store: OutboxStore, *, limit: int = 100) -> Batch:
    return store.read(limit=limit, held_keys=[], held_ids=[])


def ids(batch: Batch) -> list[int]:
    return [row.id for row in batch.rows]


def test_rows_come_as_they_were_written(table: Table) -> None:
    row_id = table.insert(b"k\xc3\xa9y", b"\x00\xff{}")
    (row,) = read(opened(table)).rows
    assert (row.id, row.key, row.payload, row.type) == (row_id, b"k\xc3\xa9y", b"\x00\xff{}", b"created")
    assert row.headers is None
    assert row.message_id is None
    assert row.size >= 4


def test_an_empty_table_is_a_complete_read(table: Table) -> None:
    assert read(opened(table)) == Batch(rows=[], complete=True)


def test_the_lowest_ids_come_first_up_to_the_limit(table: Table) -> None:
    written = [table.insert(b"%d" % (number % 3)) for number in range(10)]
    store = opened(table)
    batch = read(store, limit=4)
    assert ids(batch) == written[:4]
    assert not batch.complete
    store.settle(written[:4])
    batch = read(store)
    assert ids(batch) == written[4:]
    assert batch.complete


def test_a_read_stops_at_the_byte_bound_but_returns_one_row(table: Table) -> None:
    written = [table.insert(b"k", bytes(30_000)) for _ in range(6)]
    large = table.insert(b"k", bytes(MAX_ROW_BYTES - 100))
    store = opened(table)
    batch = read(store)
    assert ids(batch) == written[:3]
    assert not batch.complete
    store.settle(written)
    assert ids(read(store)) == [large]


def test_a_row_above_the_row_bound_comes_without_its_payload(table: Table) -> None:
    row_id = table.insert(b"k", bytes(MAX_ROW_BYTES + 1))
    (row,) = read(opened(table)).rows
    assert (row.id, row.key, row.payload, row.type) == (row_id, b"k", None, None)
    assert row.size > MAX_ROW_BYTES


def test_null_key_and_null_payload(table: Table) -> None:
    table.insert(None, None)
    (row,) = read(opened(table)).rows
    assert (row.key, row.payload) == (None, None)


def test_rc_01_an_open_transaction_delays_nobody_and_its_row_is_not_lost(table: Table) -> None:
    """cases.md RC-01 (a) and (c): a lower id that becomes visible late is read next."""
    late = table.begin()
    first = late.insert(b"a")
    store = opened(table)
    for _ in range(3):
        row_id = table.insert(b"b")
        assert ids(read(store)) == [row_id]
        store.settle([row_id])
        assert ids(read(store)) == []
    late.commit()
    assert ids(read(store)) == [first]


def test_rc_01_a_rolled_back_id_delays_nobody(table: Table) -> None:
    """cases.md RC-01 (b): a gap is no reason to wait."""
    gone = table.begin()
    gone.insert(b"a")
    gone.rollback()
    row_id = table.insert(b"a")
    assert ids(read(opened(table))) == [row_id]


def test_settling_removes_exactly_the_ids_given(table: Table) -> None:
    """Hard rule 3: a row that became visible between the read and the settling stays."""
    first = table.insert(b"a")
    late = table.begin()
    between = late.insert(b"b")
    last = table.insert(b"a")
    store = opened(table)
    assert ids(read(store)) == [first, last]
    late.commit()
    store.settle([first, last])
    assert table.ids() == [between]
    assert ids(read(store)) == [between]


def test_settling_a_dense_run_leaves_what_is_beside_it(table: Table) -> None:
    written = [table.insert(b"a") for _ in range(6)]
    store = opened(table)
    read(store)
    store.settle(written[1:4])
    assert table.ids() == [written[0], *written[4:]]


def test_settling_what_is_gone_or_nothing_is_no_error(table: Table) -> None:
    row_id = table.insert(b"a")
    store = opened(table)
    read(store)
    store.settle([])
    store.settle([row_id])
    store.settle([row_id])
    assert table.ids() == []


def test_held_keys_and_held_rows_are_left_out(table: Table) -> None:
    a1 = table.insert(b"a")
    b1 = table.insert(b"b")
    none1 = table.insert(None)
    a2 = table.insert(b"a")
    none2 = table.insert(None)
    store = opened(table)
    batch = store.read(limit=10, held_keys=[b"a"], held_ids=[none1])
    assert ids(batch) == [b1, none2]
    store.settle([b1, none2])
    store.rewind(a1)
    assert ids(read(store)) == [a1, none1, a2]


def test_a_rewound_row_is_read_again(table: Table) -> None:
    written = [table.insert(b"a") for _ in range(5)]
    store = opened(table)
    read(store)
    store.settle(written[:2])
    store.rewind(written[2])
    assert ids(read(store)) == written[2:]


def test_a_row_that_was_noted_as_faulty_is_still_to_be_sent(table: Table) -> None:
    """Also by the relay that takes its lane over: it holds back its key there too."""
    written = [table.insert(b"a") for _ in range(3)]
    store = opened(table)
    batch = read(store)
    store.note([RowFault(batch.rows[0], "RowTooLarge", "too large")])
    store.settle(written[1:2])
    assert table.ids() == [written[0], written[2]]
    reopen(store)
    assert ids(read(store)) == [written[0], written[2]]


def test_a_new_session_reads_everything_that_is_there(table: Table) -> None:
    written = [table.insert(b"a") for _ in range(5)]
    store = opened(table)
    read(store)
    store.settle(written[:1])
    reopen(store)
    assert ids(read(store)) == written[1:]


def test_lanes_are_shared_fairly_and_cover_every_row(table: Table) -> None:
    written = [table.insert(b"key %d" % number) for number in range(40)]
    written += [table.insert(None) for _ in range(8)]
    first, second, third = opened(table), opened(table), table.store()
    third.open()
    stores = (first, second, third)
    for _ in range(3):
        owned = [store.rebalance() for store in stores]
    assert sorted(lane for lanes in owned for lane in lanes) == list(range(LANES))
    assert max(len(lanes) for lanes in owned) == 2
    assert [store.members() for store in stores] == [3, 3, 3]
    parts = [ids(read(store)) for store in stores]
    assert sorted(row_id for part in parts for row_id in part) == written


def test_rows_of_one_key_are_in_one_lane(table: Table) -> None:
    for number in range(60):
        table.insert(b"key %d" % (number % 10))
    first, second = opened(table), opened(table)
    for _ in range(2):
        first.rebalance()
        second.rebalance()
    keys = [{row.key for row in read(store).rows} for store in (first, second)]
    assert keys[0] | keys[1] == {b"key %d" % number for number in range(10)}
    assert not keys[0] & keys[1]


def test_lanes_of_an_ended_session_are_taken_over_with_their_rows(table: Table) -> None:
    written = [table.insert(b"key %d" % number) for number in range(30)]
    first, second = opened(table), opened(table)
    first.rebalance()
    second.rebalance()
    read(second)
    table.terminate(first)
    assert second.rebalance() == frozenset(range(LANES))
    assert second.members() == 1
    assert ids(read(second)) == written


def test_old_rows_of_a_lane_are_found_by_a_relay_that_has_long_passed_their_ids(table: Table) -> None:
    first, second = opened(table), opened(table)
    first.rebalance()
    second.rebalance()
    written: list[int] = []
    for _ in range(4):
        written += [table.insert(b"key %d" % number) for number in range(20)]
        second.settle(ids(read(second)))
    assert ids(read(second)) == []
    left = table.ids()
    assert 0 < len(left) < len(written)
    table.terminate(first)
    second.rebalance()
    assert ids(read(second)) == left


def test_a_relay_of_another_resource_is_kept_out_and_disturbs_nobody(table: Table) -> None:
    """OL-05: also what no comparison of names can find out."""
    row_id = table.insert(b"a")
    first = opened(table)
    intruder = table.store(owner="other")
    for _ in range(2):
        intruder.open()
        with pytest.raises(StoreError) as caught:
            intruder.rebalance()
        assert caught.value.reason == "Conflict"
    assert first.rebalance() == frozenset(range(LANES))
    assert first.members() == 1
    assert ids(read(first)) == [row_id]
    first.close()

    def taken_over() -> bool:
        intruder.open()
        try:
            return intruder.rebalance() == frozenset(range(LANES))
        except StoreError:
            return False

    eventually(taken_over, seconds=20, what="take-over after the first relay has gone")
    assert ids(read(intruder)) == [row_id]


def test_release_gives_everything_up_but_the_session(table: Table) -> None:
    row_id = table.insert(b"a")
    first, second = opened(table), opened(table)
    read(first)
    first.release()
    assert first.alive()
    assert second.rebalance() == frozenset(range(LANES))
    assert second.members() == 1
    second.close()
    eventually(lambda: first.rebalance() == frozenset(range(LANES)), seconds=20, what="all lanes")
    assert ids(read(first)) == [row_id]


@pytest.mark.parametrize("call", ["read", "settle", "rebalance", "release"])
def test_an_ended_session_is_noticed(table: Table, call: str) -> None:
    row_id = table.insert(b"a")
    store = opened(table)
    assert ids(read(store)) == [row_id]
    assert store.alive()
    table.terminate(store)
    assert not store.alive(), "at the first look: nothing may be published after it"
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: read(store),
        "settle": lambda: store.settle([row_id]),
        "rebalance": store.rebalance,
        "release": store.release,
    }
    with pytest.raises(StoreError) as caught:
        calls[call]()
    assert caught.value.reason == "DatabaseUnreachable"
    assert table.ids() == [row_id]
    store.open()
    store.rebalance()
    assert ids(read(store)) == [row_id]


def test_a_store_that_is_not_open_says_so(table: Table) -> None:
    store = table.store()
    assert not store.alive()
    with pytest.raises(StoreError):
        read(store)
    store.close()


def ask(store: OutboxStore, in_flight: list[int], *, limit: int = 100) -> None:
    store.ask(limit=limit, held_keys=[], held_ids=[], in_flight=in_flight)


def test_the_next_rows_can_be_asked_for_while_a_batch_is_in_flight(table: Table) -> None:
    written = [table.insert(b"k") for _ in range(6)]
    store = opened(table)
    assert ids(read(store, limit=2)) == written[:2]
    ask(store, written[:2], limit=2)
    later = table.insert(b"k")
    store.settle(written[:2])
    assert table.ids() == [*written[2:], later]
    assert ids(read(store)) == written[2:4]
    store.settle(written[2:4])
    assert ids(read(store)) == [*written[4:], later]


def test_a_row_below_those_in_flight_that_became_visible_is_in_the_answer(table: Table) -> None:
    late = table.begin()
    lowest = late.insert(b"late")
    first = table.insert(b"k")
    between = table.begin()
    middle = between.insert(b"between")
    last = table.insert(b"k")
    store = opened(table)
    assert ids(read(store)) == [first, last]
    late.commit()
    between.commit()
    ask(store, [first, last])
    store.settle([first, last])
    assert ids(read(store)) == [lowest, middle]


def test_rows_can_be_removed_while_those_that_were_asked_for_are_read(table: Table) -> None:
    written = [table.insert(b"k") for _ in range(6)]
    store = opened(table)
    assert ids(read(store, limit=2)) == written[:2]
    ask(store, written[:2], limit=2)
    store.fetch()
    store.start_settling(written[:2])
    assert store.alive()
    assert ids(read(store)) == written[2:4]
    assert store.alive()
    store.settle(written[:2])
    assert table.ids() == written[2:]
    ask(store, written[2:4])
    store.start_settling(written[2:4])
    store.settle(written[2:4])
    store.fetch()
    assert ids(read(store)) == written[4:]


def test_a_session_that_ends_while_rows_are_being_removed_is_noticed(table: Table) -> None:
    written = [table.insert(b"k") for _ in range(4)]
    store = opened(table)
    assert ids(read(store, limit=2)) == written[:2]
    ask(store, written[:2])
    store.start_settling(written[:2])
    assert ids(read(store)) == written[2:]
    table.terminate(store)
    assert not store.alive()
    with pytest.raises(StoreError) as caught:
        store.settle(written[:2])
    assert caught.value.reason == "DatabaseUnreachable"
    store.open()
    store.rebalance()
    assert ids(read(store)) in (written, written[2:])


def test_nothing_is_ready_where_nothing_was_asked(table: Table) -> None:
    row_id = table.insert(b"k")
    store = opened(table)
    store.fetch()
    assert ids(read(store)) == [row_id]


def test_an_answer_that_was_dropped_comes_again(table: Table) -> None:
    written = [table.insert(b"k") for _ in range(4)]
    store = opened(table)
    read(store, limit=2)
    ask(store, written[:2])
    store.drop()
    store.drop()
    store.settle(written[:2])
    assert ids(read(store)) == written[2:]


def test_sharing_the_lanes_drops_an_open_question(table: Table) -> None:
    written = [table.insert(b"%d" % number) for number in range(20)]
    first = opened(table)
    ask(first, [])
    second = table.store()
    second.open()
    assert second.rebalance() == frozenset()
    first.rebalance()
    second.rebalance()
    mine, others = ids(read(first)), ids(read(second))
    assert mine
    assert others
    assert sorted(mine + others) == written


def test_what_is_handed_back_while_a_question_is_open_comes_again(table: Table) -> None:
    written = [table.insert(b"k") for _ in range(4)]
    store = opened(table)
    assert ids(read(store, limit=2)) == written[:2]
    ask(store, written[:2])
    store.settle(written[1:2])
    store.rewind(written[0])
    assert ids(read(store)) == written[2:]
    store.settle(written[2:])
    assert ids(read(store)) == written[:1]


def test_asking_a_session_that_was_ended_fails(table: Table) -> None:
    table.insert(b"k")
    store = opened(table)
    table.terminate(store)
    with pytest.raises(StoreError):  # noqa: PT012  # which of the two fails is the store's affair
        ask(store, [])
        read(store)
    assert not store.alive()


@pytest.mark.parametrize("meanwhile", [False, True])
def test_rows_of_every_size_come_in_order_and_within_the_byte_bound(table: Table, meanwhile: bool) -> None:
    """Also while the rows in front of them are being removed: a read may have to be repeated exactly."""
    sizes = (
        [10] * 300 + [5_000] * 20 + [10] * 100 + [MAX_ROW_BYTES - 100] + [10] * 50 + [MAX_ROW_BYTES + 100] + [700] * 90
    )
    written = [table.insert(b"k%d" % (number % 7), bytes(size)) for number, size in enumerate(sizes)]
    expected = dict(zip(written, sizes, strict=True))
    store = opened(table)
    read_ids: list[int] = []
    batch = read(store)
    while batch.rows:
        read_ids += ids(batch)
        contents = [len(row.payload) for row in batch.rows if row.payload is not None]
        assert contents == [expected[row.id] for row in batch.rows if row.size <= MAX_ROW_BYTES]
        assert sum(contents[:-1]) < BATCH_BYTES
        assert batch.size == sum(row.size for row in batch.rows)
        ask(store, ids(batch))
        before = ids(batch)
        if meanwhile:
            store.start_settling(before)
            batch = read(store)
            store.settle(before)
        else:
            store.settle(before)
            batch = read(store)
    assert read_ids == written


def test_lanes_can_be_left_out_and_come_back(table: Table) -> None:
    written = [table.insert(b"%d" % number) for number in range(40)]
    store = opened(table)
    lanes = store.lanes_of([*written, 10_000])
    assert sorted(lanes) == written
    assert set(lanes.values()) == set(range(LANES))
    store.leave_out([0, 1])
    first = ids(read(store))
    assert first == [row_id for row_id in written if lanes[row_id] > 1]
    store.settle(first)
    store.leave_out([0])
    second = ids(read(store))
    assert second == [row_id for row_id in written if lanes[row_id] == 1]
    store.settle(second)
    store.leave_out([])
    assert ids(read(store)) == [row_id for row_id in written if lanes[row_id] == 0]


def test_leaving_lanes_out_drops_an_open_question(table: Table) -> None:
    written = [table.insert(b"%d" % number) for number in range(20)]
    store = opened(table)
    lanes = store.lanes_of(written)
    ask(store, [])
    store.leave_out([0])
    assert ids(read(store)) == [row_id for row_id in written if lanes[row_id]]


def test_rows_below_the_floor_of_a_lane_that_was_left_out_are_found(table: Table) -> None:
    """Others were settled above them meanwhile, batch after batch."""
    keys = [b"%d" % number for number in range(12)]
    written = [table.insert(key) for key in keys]
    store = opened(table)
    lanes = store.lanes_of(written)
    store.leave_out([0])
    for _ in range(4):
        while batch := ids(read(store, limit=5)):
            store.settle(batch)
        for key in keys:
            table.insert(key)
    store.leave_out([])
    found = ids(read(store, limit=1000))
    assert [row_id for row_id in found if row_id in lanes] == [row_id for row_id in written if lanes[row_id] == 0]
    assert found == table.ids()
