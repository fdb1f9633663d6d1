"""In-memory implementations of the two ports, and wrappers that inject faults into any implementation.

The fakes are strict where the contract is: a row that was handed out is not handed out again unless it was rewound or
the session is new, as with the real store's floor; a publisher sends nothing behind a refused row of its key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from outboxrelay import lanes as lane_plan
from outboxrelay.ports import (
    Batch,
    Header,
    OutboxStore,
    Outcome,
    Publisher,
    PublisherError,
    Row,
    RowFault,
    Stop,
    StoreError,
    Wake,
)
from outboxrelay.publishers.dead_letter import DeadLetterSender, LetterHeaders
from outboxrelay.publishers.headers import HeaderBuilder, HeadersInvalidError, HeaderSource
from outboxrelay.report import BrokerReason, Holder, RowFaultReason

Interference = Callable[[str], None]
"""Called with "before NAME" and "after NAME" around each call of a port; may raise, or change the world."""


class FakeTransaction:
    """Draws ids at once and shows its rows when it commits, as a sequence and MVCC do."""

    def __init__(self, table: FakeTable) -> None:
        self._table = table
        self._rows: list[Row] = []

    def insert(self, key: bytes | None, payload: bytes | None = b"{}", *, headers: bytes | None = None) -> int:
        """Add a row; returns its id."""
        row_id = self._table.draw()
        size = len(payload or b"") + len(headers or b"") + len(key or b"")
        self._rows.append(Row(row_id, key, payload, b"created", headers, None, size))
        return row_id

    def commit(self) -> None:
        """Let everybody see the rows."""
        self._table.rows |= {row.id: row for row in self._rows}
        self._table.announcements += bool(self._rows)

    def rollback(self) -> None:
        """Forget the rows; their ids stay unused."""
        self._rows.clear()


class FakeTable:
    """One outbox table, with its sessions and their locks."""

    def __init__(self, *, lanes: int = 4) -> None:
        self.lanes = lanes
        self.rows: dict[int, Row] = {}
        self.holders: dict[int, FakeStore] = {}
        self.inside: dict[FakeStore, str] = {}
        self.down: StoreError | None = None
        self.notes: dict[int, str] = {}
        self.note_refusal: str | None = None
        self.wake: Wake | None = None
        self.announcements = 0
        """How many transactions with rows were committed, if they are announced."""

        self.next_id = 1
        """The id that is drawn next."""

    def draw(self) -> int:
        """The next id."""
        self.next_id += 1
        return self.next_id - 1

    def begin(self) -> FakeTransaction:
        """A transaction."""
        return FakeTransaction(self)

    def insert(self, key: bytes | None, payload: bytes | None = b"{}", *, headers: bytes | None = None) -> int:
        """One row in a transaction of its own; returns its id."""
        transaction = self.begin()
        row_id = transaction.insert(key, payload, headers=headers)
        transaction.commit()
        return row_id

    def terminate(self, store: FakeStore) -> None:
        """End a session from the server's side."""
        self.inside.pop(store, None)
        for lane in [lane for lane, holder in self.holders.items() if holder is store]:
            del self.holders[lane]
        store.session = False

    def lane_of(self, row: Row) -> int:
        """The lane of a row."""
        return (row.id if row.key is None else zlib.crc32(row.key)) % self.lanes


class FakeStore:
    """`OutboxStore` over a `FakeTable`."""

    def __init__(
        self,
        table: FakeTable,
        *,
        owner: str = "shop/orders",
        batch_bytes: int = 1 << 20,
        max_row_bytes: int = 1 << 20,
    ) -> None:
        self._table = table
        self._owner = owner
        self._batch_bytes = batch_bytes
        self._max_row_bytes = max_row_bytes
        self.session = False
        self._owned: frozenset[int] = frozenset()
        self._members = 0
        self._handed_out: set[int] = set()
        self._answer: Batch | None = None
        self._settling: Sequence[int] | None = None
        self._left_out: frozenset[int] = frozenset()
        self._rewound: int | None = None
        self._known = 0

    def open(self) -> None:
        """See `OutboxStore.open`."""
        self.close()
        if self._table.down is not None:
            raise self._table.down
        self.session = True

    def close(self) -> None:
        """See `OutboxStore.close`."""
        self._table.terminate(self)
        self._answer = self._settling = None
        self._owned = frozenset()
        self._handed_out.clear()
        self._members = 0

    def _check(self, *, settling: Sequence[int] | None = None) -> None:
        assert self._settling == settling, f"rows {self._settling} are being removed, and not yet settled"
        if self._table.down is not None:
            self.close()
            raise self._table.down
        if not self.session:
            self.close()
            raise StoreError("DatabaseUnreachable", "the session was ended")

    def rebalance(self) -> frozenset[int]:
        """See `OutboxStore.rebalance`."""
        self._check()
        self.drop()
        table = self._table
        if self not in table.inside:
            if any(owner != self._owner for owner in table.inside.values()):
                self.close()
                raise StoreError("Conflict", "another resource's relay works here")
            table.inside[self] = self._owner
        self._members = len(table.inside)
        step = lane_plan.plan(
            lanes=table.lanes,
            members=self._members,
            owned=self._owned,
            held_by_others=[lane for lane, holder in table.holders.items() if holder is not self],
        )
        for lane in step.give:
            del table.holders[lane]
        table.holders |= dict.fromkeys(step.take, self)
        if step.take:
            self._handed_out.clear()
        self._owned = self._owned - set(step.give) | set(step.take)
        return self._owned

    def release(self) -> None:
        """See `OutboxStore.release`."""
        self._check()
        self.drop()
        self._table.terminate(self)
        self.session = True
        self._owned = frozenset()
        self._handed_out.clear()
        self._members = 0

    def members(self) -> int:
        """See `OutboxStore.members`."""
        return self._members

    def cleanup_trouble(self) -> str | None:
        """See `OutboxStore.cleanup_trouble`: a fake keeps nothing."""
        return None

    def held_back_by(self) -> Holder | None:
        """See `OutboxStore.held_back_by`: nothing holds a fake back."""
        return None

    def wake(self) -> Wake | None:
        """See `OutboxStore.wake`: as the table says."""
        return self._table.wake

    def rest(self, stop: Stop, seconds: float) -> bool:
        """See `OutboxStore.rest`."""
        self._check()
        if self._table.announcements == self._known:
            stop.wait(seconds)
        return self._table.announcements != self._known

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        """See `OutboxStore.ask`."""
        self._check()
        self._known = self._table.announcements
        wanted = [
            row
            for _, row in sorted(self._table.rows.items())
            if self._table.lane_of(row) in self._owned - self._left_out
            and row.id not in self._handed_out
            and row.id not in in_flight
            and row.key not in held_keys
            and row.id not in held_ids
        ]
        rows: list[Row] = []
        weight = 0
        for row in wanted[:limit]:
            if weight >= self._batch_bytes:
                break
            weight += row.size
            rows.append(
                row if row.size <= self._max_row_bytes else Row(row.id, row.key, None, None, None, None, row.size)
            )
        self._answer = Batch(rows=rows, complete=len(rows) == len(wanted) and len(rows) < limit, size=weight)
        self._rewound = None

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        """See `OutboxStore.read`."""
        if self._answer is None:
            self.ask(limit=limit, held_keys=held_keys, held_ids=held_ids, in_flight=())
        self._check(settling=self._settling)
        batch, self._answer = self._answer, None
        assert batch is not None
        self._handed_out.update(row.id for row in batch.rows)
        if self._rewound is not None:
            self.rewind(self._rewound)
        return batch

    def fetch(self) -> None:
        """See `OutboxStore.fetch`."""
        self._check()

    def drop(self) -> None:
        """See `OutboxStore.drop`."""
        self._answer = None

    def leave_out(self, lanes: Collection[int]) -> None:
        """See `OutboxStore.leave_out`."""
        self.drop()
        self._left_out = frozenset(lanes)

    def lanes_of(self, ids: Collection[int]) -> dict[int, int]:
        """See `OutboxStore.lanes_of`."""
        self._check()
        self.drop()
        return {row_id: self._table.lane_of(self._table.rows[row_id]) for row_id in ids if row_id in self._table.rows}

    def rewind(self, row_id: int) -> None:
        """See `OutboxStore.rewind`."""
        self._handed_out = {other for other in self._handed_out if other < row_id}
        if self._answer is not None:
            self._rewound = row_id if self._rewound is None else min(row_id, self._rewound)

    def start_settling(self, ids: Sequence[int]) -> None:
        """See `OutboxStore.start_settling`."""
        self._check()
        self._settling = ids

    def settle(self, ids: Sequence[int]) -> None:
        """See `OutboxStore.settle`."""
        self._check(settling=None if self._settling is None else ids)
        self._settling = None
        for row_id in ids:
            self._table.rows.pop(row_id, None)

    def note(self, faults: Sequence[RowFault]) -> str | None:
        """See `OutboxStore.note`."""
        self._check()
        if self._table.note_refusal is None:
            self._table.notes |= {fault.row.id: fault.reason for fault in faults}
        return self._table.note_refusal

    def alive(self) -> bool:
        """See `OutboxStore.alive`."""
        return self.session and self._table.down is None


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message in the topic."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def outbox_id(self) -> bytes:
        """The header that consumers drop repeats by."""
        value = dict(self.headers)["outbox-id"]
        return value if isinstance(value, bytes) else b""


@dataclass
class FakeTopic:
    """One topic with one partition."""

    compacted: bool = False
    max_message_bytes: int = 1 << 20
    messages: list[Delivered] = field(default_factory=list)
    refuses: Callable[[Row], bool] = field(default=lambda _row: False)
    refusal: RowFaultReason = "RowRejected"
    down: PublisherError | None = None
    paused: bool = False
    breaks_after: int | None = None
    """The broker goes away after so many more messages; they stay in the topic."""

    clients: list[FakePublisher] = field(default_factory=list)

    def resume(self) -> None:
        """Answer again: what waits in the clients arrives, whether anybody waits for it or not."""
        self.paused = False
        for client in self.clients:
            client.deliver()

    def accept(self, message: Delivered) -> None:
        """Append a message, unless the broker goes away now."""
        if self.breaks_after is not None:
            if self.breaks_after == 0:
                self.breaks_after = None
                raise PublisherError("BrokerUnreachable", "the broker went away")
            self.breaks_after -= 1
        self.messages.append(message)

    def ids(self) -> list[bytes]:
        """The outbox-id of each message, in the order of arrival."""
        return [message.outbox_id for message in self.messages]


class FakePublisher:
    """`Publisher` into a `FakeTopic`; `wait` is where messages arrive."""

    _PREFIX: Final = "db.public.outbox:"

    def __init__(
        self,
        topic: FakeTopic,
        *,
        max_row_bytes: int = 1 << 20,
        sleep: Callable[[float], None] = lambda _seconds: None,
        headers: HeaderSource | None = None,
        null_payloads: bool = False,
    ) -> None:
        """`sleep` is called with the time-out of a `wait` in vain; the rest as with `KafkaPublisher`."""
        self._topic = topic
        topic.clients.append(self)
        self._sleep = sleep
        self._max_row_bytes = max_row_bytes
        self._headers = headers or HeaderBuilder(id_prefix=self._PREFIX)
        self._null_payloads = null_payloads
        self._open = False
        self._queue: list[Row] = []
        self._acknowledged: list[int] = []
        self._faults: list[RowFault] = []
        self._stuck: set[bytes] = set()
        self._busy = False

    def open(self) -> None:
        """See `Publisher.open`."""
        self.close()
        self._check()
        self._open = True

    def _check(self) -> None:
        if self._topic.down is not None:
            self.close()
            raise self._topic.down

    def close(self) -> None:
        """See `Publisher.close`."""
        self._open = False
        self._busy = False
        self._forget()

    def _forget(self) -> None:
        self._queue, self._acknowledged, self._faults, self._stuck = [], [], [], set()

    def publish(self, rows: Sequence[Row], *, halfway: Callable[[], None] | None = None) -> None:
        """See `Publisher.publish`."""
        if not self._open:
            raise PublisherError("BrokerUnreachable", "not open")
        if self._busy:
            raise RuntimeError("publish called before the batch before it had an outcome")
        self._busy = True
        self._queue = list(rows)
        if halfway is not None:
            halfway()

    def wait(self, timeout_seconds: float) -> bool:
        """See `Publisher.wait`."""
        self._check()
        if self._topic.paused:
            self._sleep(timeout_seconds)
            return False
        self.deliver()
        return True

    def deliver(self) -> None:
        """Send what was handed over."""
        for row in self._queue:
            if row.key is not None and row.key in self._stuck:
                continue
            try:
                headers = self._headers.build(row)
            except HeadersInvalidError as error:
                self._fault(RowFault(row, "HeadersInvalid", str(error)))
                continue
            if row.size > min(self._max_row_bytes, self._topic.max_message_bytes):
                self._fault(RowFault(row, "RowTooLarge", f"row {row.id} is too large"))
            elif row.key is None and self._topic.compacted:
                self._fault(RowFault(row, "NullKeyOnCompactedTopic", f"row {row.id} has no key"))
            elif row.payload is None and not (self._topic.compacted or self._null_payloads):
                self._fault(RowFault(row, "PayloadIsNull", f"row {row.id} has no payload"))
            elif self._topic.refuses(row):
                self._fault(RowFault(row, self._topic.refusal, f"row {row.id} was refused"))
            else:
                try:
                    self._topic.accept(Delivered(row.key, row.payload, tuple(headers)))
                except PublisherError:
                    self.close()
                    raise
                self._acknowledged.append(row.id)
        self._queue = []

    def _fault(self, fault: RowFault) -> None:
        self._faults.append(fault)
        if fault.row.key is not None:
            self._stuck.add(fault.row.key)

    def outcome(self) -> Outcome:
        """See `Publisher.outcome`."""
        self._check()
        result = Outcome(acknowledged=self._acknowledged, faults=self._faults)
        self._forget()
        self._busy = False
        return result

    def check(self) -> None:
        """See `Publisher.check`."""
        self._check()

    def trouble(self) -> tuple[BrokerReason, str] | None:
        """See `Publisher.trouble`."""
        return ("BrokerUnreachable", "the brokers do not answer") if self._topic.paused else None

    def partitions(self) -> int | None:
        """See `Publisher.partitions`."""
        return 1


def fake_dead_letters(
    topic: FakeTopic,
    *,
    sleep: Callable[[float], None] = lambda _seconds: None,
    wall: Callable[[], float] = lambda: 0.0,
    max_row_bytes: int = 1 << 20,
    interfere: Interference = lambda _moment: None,
) -> DeadLetterSender:
    """`DeadLetters` into a `FakeTopic`, of a pair whose own topic is t."""
    headers = LetterHeaders(
        HeaderBuilder(id_prefix="db.public.outbox:"), topic="t", source="db.public.outbox", wall=wall
    )
    publisher = FakePublisher(topic, sleep=sleep, headers=headers, null_payloads=True, max_row_bytes=max_row_bytes)
    return DeadLetterSender(FaultyPublisher(publisher, interfere), headers)


class FaultyStore:
    """Any `OutboxStore`, with an interference around each call that can fail."""

    def __init__(self, inner: OutboxStore, interfere: Interference) -> None:
        self._inner = inner
        self._interfere = interfere

    def open(self) -> None:
        """See `OutboxStore.open`."""
        self._interfere("before open")
        self._inner.open()
        self._interfere("after open")

    def close(self) -> None:
        """See `OutboxStore.close`."""
        self._inner.close()

    def rebalance(self) -> frozenset[int]:
        """See `OutboxStore.rebalance`."""
        self._interfere("before rebalance")
        owned = self._inner.rebalance()
        self._interfere("after rebalance")
        return owned

    def release(self) -> None:
        """See `OutboxStore.release`."""
        self._interfere("before release")
        self._inner.release()
        self._interfere("after release")

    def members(self) -> int:
        """See `OutboxStore.members`."""
        return self._inner.members()

    def cleanup_trouble(self) -> str | None:
        """See `OutboxStore.cleanup_trouble`."""
        return self._inner.cleanup_trouble()

    def held_back_by(self) -> Holder | None:
        """See `OutboxStore.held_back_by`."""
        return self._inner.held_back_by()

    def wake(self) -> Wake | None:
        """See `OutboxStore.wake`."""
        return self._inner.wake()

    def rest(self, stop: Stop, seconds: float) -> bool:
        """See `OutboxStore.rest`."""
        return self._inner.rest(stop, seconds)

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        """See `OutboxStore.read`."""
        self._interfere("before read")
        batch = self._inner.read(limit=limit, held_keys=held_keys, held_ids=held_ids)
        self._interfere("after read")
        return batch

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        """See `OutboxStore.ask`."""
        self._interfere("before ask")
        self._inner.ask(limit=limit, held_keys=held_keys, held_ids=held_ids, in_flight=in_flight)
        self._interfere("after ask")

    def fetch(self) -> None:
        """See `OutboxStore.fetch`."""
        self._interfere("before fetch")
        self._inner.fetch()

    def drop(self) -> None:
        """See `OutboxStore.drop`."""
        self._inner.drop()

    def leave_out(self, lanes: Collection[int]) -> None:
        """See `OutboxStore.leave_out`."""
        self._inner.leave_out(lanes)

    def lanes_of(self, ids: Collection[int]) -> dict[int, int]:
        """See `OutboxStore.lanes_of`."""
        self._interfere("before lanes_of")
        return self._inner.lanes_of(ids)

    def rewind(self, row_id: int) -> None:
        """See `OutboxStore.rewind`."""
        self._inner.rewind(row_id)

    def start_settling(self, ids: Sequence[int]) -> None:
        """See `OutboxStore.start_settling`."""
        self._interfere("before start_settling")
        self._inner.start_settling(ids)
        self._interfere("after start_settling")

    def settle(self, ids: Sequence[int]) -> None:
        """See `OutboxStore.settle`."""
        self._interfere("before settle")
        self._inner.settle(ids)
        self._interfere("after settle")

    def note(self, faults: Sequence[RowFault]) -> str | None:
        """See `OutboxStore.note`."""
        self._interfere("before note")
        return self._inner.note(faults)

    def alive(self) -> bool:
        """See `OutboxStore.alive`."""
        return self._inner.alive()


class FaultyPublisher:
    """Any `Publisher`, with an interference around each call that can fail."""

    def __init__(self, inner: Publisher, interfere: Interference) -> None:
        self._inner = inner
        self._interfere = interfere

    def open(self) -> None:
        """See `Publisher.open`."""
        self._interfere("before open")
        self._inner.open()
        self._interfere("after open")

    def close(self) -> None:
        """See `Publisher.close`."""
        self._inner.close()

    def publish(self, rows: Sequence[Row], *, halfway: Callable[[], None] | None = None) -> None:
        """See `Publisher.publish`."""
        self._interfere("before publish")
        self._inner.publish(rows, halfway=halfway)
        self._interfere("after publish")

    def wait(self, timeout_seconds: float) -> bool:
        """See `Publisher.wait`."""
        self._interfere("before wait")
        done = self._inner.wait(timeout_seconds)
        self._interfere("after wait")
        return done

    def outcome(self) -> Outcome:
        """See `Publisher.outcome`."""
        self._interfere("before outcome")
        result = self._inner.outcome()
        self._interfere("after outcome")
        return result

    def check(self) -> None:
        """See `Publisher.check`."""
        self._interfere("before check")
        self._inner.check()

    def trouble(self) -> tuple[BrokerReason, str] | None:
        """See `Publisher.trouble`."""
        return self._inner.trouble()

    def partitions(self) -> int | None:
        """See `Publisher.partitions`."""
        return self._inner.partitions()
