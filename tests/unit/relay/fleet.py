"""Several relays over one table and one topic, each of which can be stopped, killed or hurt between any two calls.

Each relay is the real engine in a thread of its own, over the fakes. Only one thread ever runs: the fleet lets a relay
make so many calls of its ports (or sleeps), then it stands still until its next turn. So a schedule has one course,
whatever the machine does, and can be run again. Time is what the sleeps of the relays add up to.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from outboxrelay.config import OnError, Tuning
from outboxrelay.engine import Engine
from outboxrelay.ports import Batch, PublisherError, SettleRefusedError, StoreError, Wake
from outboxrelay.status import StatusBoard
from tests.contract.relay.fakes import (
    Delivered,
    FakePublisher,
    FakeStore,
    FakeTable,
    FakeTopic,
    FakeTransaction,
    FaultyPublisher,
    FaultyStore,
    fake_dead_letters,
)
from tests.integration.harness.checker import Committed, check
from tests.integration.harness.checker import Delivered as Arrived
from tests.unit.relay.slow_topic import Client, Topic
from tests.unit.relay.world import CONFIG, Clock

LOST = StoreError("DatabaseUnreachable", "the session was ended")
AWAY = PublisherError("BrokerUnreachable", "the broker went away")

_CALLS_AT_A_TURN = 40
_TURNS = 400


class _Killed(BaseException):  # no error: it ends a thread as SIGKILL ends a process
    """Nothing of the relay runs any more."""


@dataclass(frozen=True)
class Setting:
    """What stays as it is in one example."""

    lanes: int = 4
    batch_rows: int = 5
    policy: str = "Park"
    attempts: int = 1
    max_parked_keys: int = 1000
    rebalance_seconds: float = 0.1
    announced: bool = False
    """Whether new rows are announced to the relays."""

    @property
    def on_error(self) -> OnError:
        """The policy for rows that cannot be sent as they are."""
        topic = {"topic": "dead"} if self.policy == "DeadLetter" else {}
        return OnError.model_validate({"policy": self.policy, "attempts": self.attempts} | topic)

    @property
    def tuning(self) -> Tuning:
        """The bounds of the loop, with short waits: there is a price on every call."""
        return Tuning(
            batch_rows=self.batch_rows,
            idle_poll_min_ms=20,
            idle_poll_max_ms=200,
            row_retry_min_seconds=0.2,
            row_retry_max_seconds=1.0,
            max_parked_keys=self.max_parked_keys,
            reconnect_max_seconds=1.0,
            rebalance_seconds=self.rebalance_seconds,
        )


@dataclass(frozen=True)
class Kinds:
    """Which implementations of the ports the relays work with, so that wrong ones can be shown to fail."""

    store: type[FakeStore] = FakeStore
    publisher: type[Client] = Client


class _Store(FaultyStore):
    """The store of one relay: remembers its batch and the one being removed; ends nothing when the relay was killed."""

    def __init__(self, inner: FakeStore, relay: Relay) -> None:
        super().__init__(inner, relay.at_store)
        self._relay = relay
        self._removing: set[int] = set()

    def close(self) -> None:
        if not self._relay.killed:
            super().close()
            self._removing = set()

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        batch = super().read(limit=limit, held_keys=held_keys, held_ids=held_ids)
        self._relay.in_flight = self._removing | {row.id for row in batch.rows}
        return batch

    def start_settling(self, ids: Sequence[int]) -> None:
        self._removing = set(ids)
        super().start_settling(ids)

    def settle(self, ids: Sequence[int]) -> None:
        super().settle(ids)
        self._removing = set()
        self._relay.in_flight -= set(ids)


class _Publisher(FaultyPublisher):
    """The publisher of one relay."""

    def __init__(self, inner: FakePublisher, relay: Relay) -> None:
        super().__init__(inner, relay.at_publisher)
        self._relay = relay

    def close(self) -> None:
        if not self._relay.killed:
            super().close()


class Relay:
    """One relay process. It runs only inside `advance`."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.number = number
        self.ended = self.killed = self.stopping = False
        self.failure: BaseException | None = None
        self.in_flight: set[int] = set()
        """Rows of the batch that was read last which this relay has not settled."""

        self.next_error: dict[str, Exception] = {}
        """What the next call of a side raises, before it is made or after."""

        self._fleet = fleet
        self._hindered = False
        """Whether it may have had to end before its batch was settled."""

        self._locked_out = False
        """Whether it found the rows locked when it last tried to settle them: then it ends without another try."""

        self._failures = 0
        self._calls, self._until = 0, ""
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self.store = fleet.kinds.store(fleet.table)
        self.publisher = fleet.kinds.publisher(fleet.topic, fleet.clock.sleep)
        self.board = StatusBoard(
            CONFIG, pod=f"relay-{number}", config_digest="0", monotonic=fleet.clock, wall=lambda: fleet.clock.now
        )
        setting = fleet.setting
        self._engine = Engine(
            store=_Store(self.store, self),
            publisher=_Publisher(self.publisher, self),
            tuning=fleet.tuning,
            status=self.board,
            stop=self,
            clock=fleet.clock,
            rng=random.Random(number),
            on_error=setting.on_error,
            dead_letters=(
                fake_dead_letters(fleet.letters, sleep=fleet.clock.sleep, interfere=self.at_letters)
                if setting.policy == "DeadLetter"
                else None
            ),
        )
        threading.Thread(target=self._live, name=f"relay-{number}", daemon=True).start()

    def _live(self) -> None:
        self._turn.acquire()
        try:
            self._engine.run()
        except _Killed:
            pass
        except BaseException as error:  # the thread's outermost boundary: told to the test by `advance`
            self.failure = error
        self._count_failures()
        if self._hindered:
            self._excuse()
        self.ended = True
        self._back.release()

    def advance(self, calls: int, *, until: str = "") -> None:
        """Let it make up to so many calls, or get to the moment `until`, and stand still there."""
        if self.ended:
            return
        self._calls, self._until = calls, until
        self._turn.release()
        self._back.acquire()
        if self.failure is not None:
            raise AssertionError(f"relay {self.number} ended by an error") from self.failure

    def kill(self) -> None:
        """kill -9: nothing that it would have done happens."""
        self._excuse()
        self.killed = True
        self.advance(1)

    def terminate(self) -> None:
        """SIGTERM."""
        self.stopping = True
        self._hindered = self._hindered or self._locked_out or self._fleet.hinders()

    def _pause(self, moment: str = "") -> None:
        """In the relay's thread: a place where it may stand still."""
        self._count_failures()
        self._calls -= 1
        if (self._calls <= 0 or (moment and moment == self._until)) and not self.killed:
            self._back.release()
            self._turn.acquire()
        if self.killed:
            raise _Killed

    def _count_failures(self) -> None:
        failures = self.board.store_failures + self.board.publisher_failures
        if failures != self._failures:
            self._failures = failures
            self._excuse()

    def _excuse(self) -> None:
        """A crash, a lost session or a lost broker: each row of the batch in flight may come once more."""
        self._fleet.may_repeat.update(self.in_flight)
        self.in_flight = set()

    def _at(self, side: str, moment: str) -> None:
        self._pause(moment)
        error = self.next_error.pop(side, None)
        if error is not None:
            raise error

    def at_store(self, moment: str) -> None:
        """Around each call of the store."""
        self._at("store", moment)
        if moment == "before settle" and self._fleet.locked:
            self._locked_out = True
            raise SettleRefusedError("another session locks them")
        if moment == "after settle":
            self._locked_out = False

    def at_publisher(self, moment: str) -> None:
        """Around each call of the publisher."""
        self._at("broker", moment)

    def at_letters(self, _moment: str) -> None:
        """Around each call of the dead-letter topic's publisher."""
        self._at("letters", "")

    # -- the stop request, see `outboxrelay.engine.Stop`

    def is_set(self) -> bool:
        """See `Stop`."""
        self._pause()
        # Each look costs a little, so that a loop which never sleeps ends as well.
        self._fleet.clock.sleep(0.0001)
        if self.stopping:
            self.terminate()
        return self.stopping

    def wait(self, timeout: float, *, also: int | None = None) -> bool:  # noqa: ARG002  # no files here
        """See `Stop`."""
        self._fleet.clock.sleep(timeout)
        return self.is_set()


class Fleet:
    """The world of one example: a table, its writers, a topic, and relays."""

    def __init__(self, setting: Setting, kinds: Kinds) -> None:
        self.setting = setting
        self.kinds = kinds
        self.tuning = setting.tuning
        self.clock = Clock()
        self.table = FakeTable(lanes=setting.lanes)
        if setting.announced:
            self.table.wake = Wake(ok=True, reason="Listening", message="")
        self.topic = Topic()
        self.letters = FakeTopic()
        self.locked = False
        """Whether somebody else locks the rows of the table."""

        self.relays: list[Relay] = []
        self.may_repeat: Counter[int] = Counter()
        """How often a row may come again, for what happened to the relays that had it in flight."""

        self.committed: list[Committed] = []
        self._versions: Counter[bytes | None] = Counter()
        self._open: dict[int, tuple[FakeTransaction, list[tuple[int, bytes | None]]]] = {}
        self._unnoticed: list[Relay] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for relay in self.running():
            relay.killed = True
            relay.advance(1)

    # -- writers: whoever has inserted a row of a key holds the key's lock until the end of the transaction

    def insert(self, slot: int, key: bytes | None) -> None:
        """Insert a row in this slot's transaction, unless the key is locked by another."""
        if key is not None and any(
            key == other for open_slot, (_, rows) in self._open.items() if open_slot != slot for _, other in rows
        ):
            return
        transaction, rows = self._open.setdefault(slot, (self.table.begin(), []))
        row_id = self.table.next_id
        rows.append((row_id, key))
        transaction.insert(key, payload(row_id))

    def end(self, slot: int, *, commits: bool, waiting: int = 0) -> None:
        """Commit or roll back this slot's transaction, if there is one.

        Then so many transactions go on which waited for the locks of its keys.
        """
        transaction, rows = self._open.pop(slot, (None, []))
        if transaction is None:
            return
        if commits:
            self._commit(transaction, rows)
        else:
            transaction.rollback()
        for _ in range(waiting):
            for _, key in rows:
                self.insert(slot, key)
            self.end(slot, commits=True)

    def _commit(self, transaction: FakeTransaction, rows: list[tuple[int, bytes | None]]) -> None:
        transaction.commit()
        for row_id, key in rows:
            self._versions[key] += 1
            self.committed.append(
                Committed(
                    row_id=row_id,
                    key=None if key is None else key.decode(),
                    version=self._versions[key],
                    payload=payload(row_id),
                )
            )

    # -- relays

    def running(self) -> list[Relay]:
        """The relays that have not ended."""
        return [relay for relay in self.relays if not relay.ended]

    def start(self) -> None:
        """One more relay."""
        self.relays.append(Relay(self, len(self.relays)))

    def kill(self, relay: Relay, *, arriving: int, noticed: bool) -> None:
        """kill -9; so many of the rows it has handed over still arrive. The server may notice its death later."""
        relay.kill()
        relay.publisher.perish(arriving)
        self._unnoticed.append(relay)
        if noticed:
            self.notice()

    def notice(self) -> None:
        """The server notices which relays are dead, and ends their sessions."""
        for relay in self._unnoticed:
            self.table.terminate(relay.store)
        self._unnoticed.clear()

    def hinders(self) -> bool:
        """Whether a relay that is to end may have to leave its batch."""
        return self.locked or self.topic.paused or self.topic.at_once is not None

    # -- the end

    def calm(self) -> None:
        """End every outage; rows at fault stay so."""
        self.notice()
        self.locked = False
        self.table.down = self.topic.down = self.letters.down = self.topic.at_once = self.topic.breaks_after = None
        if self.topic.paused:
            self.topic.resume()

    def mend(self) -> None:
        """End every fault and every transaction."""
        for slot in list(self._open):
            self.end(slot, commits=True)
        self.calm()
        self.topic.refuses = lambda _row: False

    def finish(self) -> None:
        """Let the relays carry what is left, with nothing in their way, then stop them.

        Raises `AssertionError` when rows are left for good.
        """
        if not any(not relay.stopping for relay in self.running()):
            self.start()
        for _ in range(_TURNS):
            if not self.table.rows:
                break
            for relay in self.running():
                relay.advance(_CALLS_AT_A_TURN)
        assert not self.table.rows, f"rows {sorted(self.table.rows)} are not sent though nothing is in the way"
        for relay in self.running():
            relay.terminate()
            relay.advance(_TURNS)
            assert relay.ended, f"relay {relay.number} does not end"

    def problems(self) -> list[str]:
        """Whatever breaks the delivery contract."""
        buried = {int(letter.outbox_id.rpartition(b":")[2]) for letter in self.letters.messages}
        sent = {int(message.outbox_id.rpartition(b":")[2]) for message in self.topic.messages}
        committed = [row for row in self.committed if row.row_id in sent or row.row_id not in buried]
        verdict = check(
            committed=committed,
            delivered=[
                Arrived(partition=0, offset=offset, key=each.key, payload=each.value, headers=text(each))
                for offset, each in enumerate(self.topic.messages)
            ],
        )
        foreign = buried - {row.row_id for row in self.committed}
        unexplained = [row for row, times in verdict.repeated.items() if times > self.may_repeat[row]]
        return [
            # Repeats are looked at row by row.
            *verdict.problems(repeatable=verdict.repeated, most_repeats=verdict.repeats, stood_still=True),
            *([f"letters of rows {sorted(foreign)}, which nobody committed"] if foreign else []),
            *(
                [f"rows {unexplained} repeated though nothing happened while they were in flight"]
                if unexplained
                else []
            ),
        ]


def payload(row_id: int) -> bytes:
    """What a row holds, unlike any other's."""
    return b'{"n": %d}' % row_id


def text(message: Delivered) -> dict[str, bytes]:
    """The headers of a message."""
    return {name: value for name, value in message.headers if isinstance(value, bytes)}
