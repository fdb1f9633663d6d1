"""The loop: read a batch, publish it, wait for every acknowledgement, settle it.

The engine knows order and failure, and nothing of databases and brokers: it works on the two ports. While a batch is in
flight the store may already look for the next one, and while that is handed over remove the one before. What the engine
must never do: publish a batch before all of the one before has an outcome; publish a third while the first may still be
in the table; settle a row that was not acknowledged; publish after the session, and with it the lanes, may be lost; or
let an outage count against a row.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outboxrelay.config import OnError, Tuning
from outboxrelay.ports import (
    Batch,
    DeadLetters,
    OutboxStore,
    Outcome,
    Publisher,
    PublisherError,
    SettleRefusedError,
    Stop,
    StoreError,
)
from outboxrelay.retry import Backoff
from outboxrelay.row_faults import RowFaults
from outboxrelay.status import StatusBoard
from outboxrelay.wording import counted

_log = logging.getLogger(__name__)

_WAIT_SLICE_SECONDS = 0.2
_HEAD_START_SECONDS = 0.001
"""How long a batch takes at most to be on its way to the brokers; they are busy with it then for longer than that."""

_TICK_SECONDS = 0.5
_BROKER_CHECK_SECONDS = 10.0
_COMPLAINT_AFTER_SECONDS = 2.0


class _StoppedError(Exception):
    """The process shall end, and the batch in flight cannot be finished in time."""


class Engine:
    """Carries rows from one store to one publisher until it is told to stop."""

    def __init__(
        self,
        *,
        store: OutboxStore,
        publisher: Publisher,
        tuning: Tuning,
        status: StatusBoard,
        stop: Stop,
        clock: Callable[[], float],
        rng: random.Random,
        on_error: OnError | None = None,
        dead_letters: DeadLetters | None = None,
        grace_seconds: float = 5.0,
    ) -> None:
        """`dead_letters` goes with the policy `DeadLetter`.

        `grace_seconds`: how long a batch in flight may still take after the request to stop.
        """
        self._store = store
        self._publisher = publisher
        self._tuning = tuning
        self._status = status
        self._stop = stop
        self._clock = clock
        self._rng = rng
        self._grace = grace_seconds
        minimum = min(0.25, tuning.reconnect_max_seconds)
        self._store_backoff = Backoff(minimum=minimum, maximum=tuning.reconnect_max_seconds, rng=rng)
        self._broker_backoff = Backoff(minimum=minimum, maximum=tuning.reconnect_max_seconds, rng=rng)
        self._settle_backoff = Backoff(minimum=minimum, maximum=tuning.reconnect_max_seconds, rng=rng)
        self._faults = RowFaults(
            policy=on_error or OnError(),
            store=store,
            dead_letters=dead_letters,
            tuning=tuning,
            status=status,
            stop=stop,
            clock=clock,
            rng=rng,
        )
        self._parked = self._faults.parked
        self._store_open = False
        self._store_doubtful = False
        """Whether a statement was refused: that a new session can be opened does not say that it is not any more."""
        self._broker_open = False
        self._owned: frozenset[int] = frozenset()
        self._worked: frozenset[int] = frozenset()
        """Lanes whose rows may be parked here; outlives the session, unlike the lanes owned."""
        self._rebalance_at = 0.0
        self._check_at = 0.0
        self._in_flight = False
        self._at_the_store = 0.0
        """Seconds that the store took while this batch was in flight."""

        self._removing: tuple[list[int], int] | None = None
        """Ids of acknowledged rows that are being removed, and the bytes of these rows: to be settled before anything
        else is asked of the store. The rows themselves need not be in memory while the next ones are handed over."""
        self._asked = False
        """Whether the store was asked for the next batch while the one before was in flight."""
        self._idle_polls = 0
        self._poll_at = 0.0
        """When to ask for rows, unless they are announced before."""
        self._poll_from = 0.0
        """When to ask at the earliest: a table may be full of news that are none for this relay."""
        self._stop_by: float | None = None
        self._cleanup_trouble: str | None = None

    def run(self) -> None:
        """Work until the stop request; faults of either side are waited out, never raised."""
        try:
            while not self._stop.is_set():
                try:
                    self._cycle()
                except StoreError as error:
                    self._store_failed(error)
                except PublisherError as error:
                    self._broker_failed(error)
                except _StoppedError:
                    raise
                except Exception:
                    # A fault of our own. Starting afresh on both sides is always safe.
                    _log.exception("unexpected fault; starting again with new connections")
                    self._store_failed(StoreError("DatabaseError", "given up after a fault inside the relay"))
                    self._broker_failed(PublisherError("BrokerError", "given up after a fault inside the relay"))
                self._status.tick()
            self._wind_up()
        except _StoppedError:
            _log.warning(
                "stopping with a batch that was not acknowledged or settled in time; its rows will be sent again"
            )
        finally:
            self._publisher.close()
            self._faults.close()
            self._store.close()

    def _wind_up(self) -> None:
        """The last batch may still be on its way out of the table."""
        try:
            self._finish_settling()
        except StoreError as error:
            _log.warning("%s; rows of the last batch may be sent again", error.message, extra={"reason": error.reason})

    def _cycle(self) -> None:
        """One round: mend what is broken, else move rows, else wait a little."""
        now = self._clock()
        self._open_store(now)
        self._open_broker(now)
        if not (self._store_open and self._broker_open):
            self._wait_for_repair()
            return
        if now >= self._check_at:
            self._check_broker(now)
        if now >= self._rebalance_at and not self._asked:
            self._rebalance(now)
        if not self._owned or now < self._faults.full_until:
            self._pause()
        elif now < self._poll_at and not (self._parked and self._parked.stirs(now)):
            self._rest()
        elif not self._relay():
            self._idle()

    # -- the two sides

    def _open_store(self, now: float) -> None:
        if self._store_open or not self._store_backoff.due(now):
            return
        self._store.open()
        self._store_open = True
        self._rebalance_at = 0.0
        self._owned = frozenset()
        if self._status.database.reason != "Conflict":
            # A conflict shows only when lanes are taken; until then it is still the truth.
            self._database_seems_well(now)
        _log.info("connected to the database")

    def _database_seems_well(self, now: float) -> None:
        if now >= self._faults.crowded_until and not self._store_doubtful:
            self._status.database_is(ok=True, reason="Connected")

    def _database_worked(self) -> None:
        """Rows could be read, and settled if there were any."""
        self._store_backoff.succeeded()
        if self._store_doubtful:
            self._store_doubtful = False
            self._database_seems_well(self._clock())

    def _open_broker(self, now: float) -> None:
        if self._broker_open or not self._broker_backoff.due(now):
            return
        self._publisher.open()
        self._broker_open = True
        self._check_at = now + _BROKER_CHECK_SECONDS
        self._broker_is_well()
        _log.info("connected to the brokers")

    def _check_broker(self, now: float) -> None:
        """An idle relay must notice that its topic has gone, a busy one that the topic's limits have changed."""
        self._check_at = now + _BROKER_CHECK_SECONDS
        self._publisher.check()
        self._broker_backoff.succeeded()
        self._broker_is_well()

    def _broker_is_well(self) -> None:
        self._status.partitions = self._publisher.partitions()
        self._status.broker_is(ok=True, reason="Connected")

    def _wait_for_repair(self) -> None:
        """One side is down: keep an eye on the other until the next attempt is due."""
        if self._store_open and not self._store.alive():
            raise StoreError("DatabaseUnreachable", "the session was ended while waiting for the brokers")
        if self._broker_open and self._clock() >= self._check_at:
            self._check_broker(self._clock())
        waits = [backoff.not_before for backoff in (self._store_backoff, self._broker_backoff)]
        pending = [at for at in waits if at > self._clock()]
        self._stop.wait(max(0.01, min([_TICK_SECONDS, *(at - self._clock() for at in pending)])))

    def _store_failed(self, error: StoreError) -> None:
        """The session and its lanes are gone, so no message of the batch in flight may be sent any more."""
        self._store.close()
        self._store_open = self._asked = False
        self._removing = None
        self._owned = frozenset()
        if self._in_flight:
            self._publisher.close()
            self._broker_open = False
            self._in_flight = False
        self._store_doubtful = error.reason == "DatabaseError"
        delay = self._store_backoff.failed(self._clock())
        self._status.store_failures += 1
        self._status.lanes_owned, self._status.members = (), 0
        self._status.wake_is(self._store.wake())
        self._status.database_is(ok=False, reason=error.reason, message=error.message)
        self._status.failed(reason=error.reason, message=error.message)
        _log.warning("%s; trying again in %.1f s", error.message, delay, extra={"reason": error.reason})

    def _broker_failed(self, error: PublisherError) -> None:
        self._publisher.close()
        self._faults.close()
        self._broker_open = False
        self._in_flight = False
        delay = self._broker_backoff.failed(self._clock())
        self._status.publisher_failures += 1
        self._status.broker_is(ok=False, reason=error.reason, message=error.message)
        self._status.failed(reason=error.reason, message=error.message)
        _log.warning("%s; trying again in %.1f s", error.message, delay, extra={"reason": error.reason})
        if self._store_open:
            # Another pod may reach the brokers; nothing of ours is in flight.
            try:
                self._finish_settling()
                self._store.release()
            except StoreError as also:
                self._store_failed(also)
            self._asked = False
            self._owned = frozenset()
            self._rebalance_at = 0.0
            self._status.lanes_owned, self._status.members = (), 0

    # -- lanes

    def _rebalance(self, now: float) -> None:
        """Share the lanes again; nothing is in flight here."""
        owned = self._store.rebalance()
        self._rebalance_at = now + self._tuning.rebalance_seconds * (0.75 + self._rng.random() / 2)
        self._database_seems_well(now)
        self._status.members = self._store.members()
        self._status.held_back_by = self._store.held_back_by()
        self._show_cleanup()
        self._show_wake()
        if self._worked - owned:
            self._faults.lanes_went(owned)
        self._worked = owned
        if owned == self._owned:
            return
        self._owned = owned
        self._poll_at = 0.0
        self._status.lanes_owned = tuple(sorted(owned))
        _log.info("owning %d of the lanes, with %s alive", len(owned), counted(self._store.members(), "relay"))

    def _show_cleanup(self) -> None:
        trouble = self._store.cleanup_trouble()
        if trouble is not None and trouble != self._cleanup_trouble:
            self._status.failed(reason="DatabaseError", message=trouble)
            _log.warning("%s", trouble, extra={"reason": "DatabaseError"})
        self._cleanup_trouble = trouble

    def _show_wake(self) -> None:
        before, wake = self._status.wake, self._store.wake()
        self._status.wake_is(wake)
        if wake is None or (before is not None and before.reason == wake.reason):
            return
        if wake.ok:
            _log.info("new rows are announced")
        elif wake.message and wake.reason != "Starting":
            _log.warning("%s", wake.message, extra={"reason": wake.reason})

    # -- rows

    def _relay(self) -> bool:
        """Carry one batch; False if there was none."""
        limit = self._tuning.batch_rows
        if not self._asked:
            self._faults.release_due()
            limit = self._faults.to_read(self._owned, limit)
            if not limit:
                return False
        batch = self._store.read(
            limit=limit,
            held_keys=self._parked.held_keys(),
            held_ids=self._parked.held_ids(),
        )
        self._asked = False
        self._faults.seen(batch)
        if not batch.rows:
            self._finish_settling()
            self._database_worked()
            return False
        self._idle_polls = 0
        # A parked row may have ended the rest early: there is something to do until a read finds nothing.
        self._poll_at = 0.0
        if self._faults.stays(batch):
            self._store.rewind(batch.rows[0].id)
            return True
        if not self._store.alive():
            raise StoreError("DatabaseUnreachable", "the session was ended; the lanes may be another relay's by now")
        self._in_flight = True
        handed_over, self._at_the_store = self._clock(), 0.0
        if self._removing is None:
            self._read_on(batch)
            self._publisher.publish(batch.rows)
        else:
            # The database is busy with the batch before for about as long as half of this one takes.
            self._publisher.publish(batch.rows, halfway=lambda: self._read_on(batch))
        outcome = self._outcome()
        self._in_flight = False
        self._status.publish_seconds += self._clock() - handed_over - self._at_the_store
        self._broker_backoff.succeeded()
        if self._asked and len(outcome.acknowledged) == len(batch.rows):
            self._store.start_settling(outcome.acknowledged)
            self._removing = outcome.acknowledged, batch.size
            return True
        self._settle(outcome.acknowledged, _size_of(outcome.acknowledged, batch))
        if (outcome.faults or outcome.put_back) and self._asked:
            # The answer may hold later rows of the keys that are at fault, or were put back.
            self._store.drop()
            self._asked = False
        if outcome.put_back:
            self._store.rewind(outcome.put_back[0])
        if outcome.faults:
            self._faults.handle(outcome.faults, remove=self._remove)
        return True

    def _read_on(self, batch: Batch) -> None:
        """Let the database look for the rows behind this batch."""
        with self._store_takes():
            self._finish_settling()
            if self._more_is_wanted(batch):
                self._store.ask(
                    limit=self._tuning.batch_rows,
                    held_keys=self._parked.held_keys(),
                    held_ids=self._parked.held_ids(),
                    in_flight=[row.id for row in batch.rows],
                )
                self._asked = True

    @contextmanager
    def _store_takes(self) -> Iterator[None]:
        """The time that is spent here says nothing of the brokers: settling alone may be refused for hours."""
        began = self._clock()
        yield
        self._at_the_store += self._clock() - began

    def _more_is_wanted(self, batch: Batch) -> bool:
        """Whether to read on while the batch is in flight: there is more, and nothing has to come in between."""
        now = self._clock()
        return (
            not batch.complete
            and not self._faults.trying
            # One row may be larger than the whole bound; two such batches need not be in memory at once.
            and batch.size <= self._tuning.batch_bytes
            and now < self._rebalance_at
            and not self._stop.is_set()
            and not (self._parked and self._parked.stirs(now))
        )

    def _outcome(self) -> Outcome:
        """Wait for the batch, however long; an end of the session ends the wait."""
        started = self._clock()
        if self._asked and not self._publisher.wait(_HEAD_START_SECONDS):
            with self._store_takes():
                self._store.fetch()
        while not self._publisher.wait(_WAIT_SLICE_SECONDS):
            self._status.tick()
            now = self._clock()
            if not self._store.alive():
                raise StoreError("DatabaseUnreachable", "the session was ended while a batch was in flight")
            trouble = self._publisher.trouble()
            if trouble is not None and now - started >= _COMPLAINT_AFTER_SECONDS:
                self._status.broker_is(ok=False, reason=trouble[0], message=trouble[1])
                self._faults.close()
            if self._stop.is_set():
                self._stop_by = self._stop_by or now + self._grace
                if now >= self._stop_by:
                    raise _StoppedError
        outcome = self._publisher.outcome()
        if not self._status.broker.ok:
            self._broker_is_well()
        return outcome

    def _finish_settling(self) -> None:
        """Wait until the batch before is gone from the table."""
        if self._removing is not None:
            ids, size = self._removing
            self._settle(ids, size)
            self._removing = None

    def _settle(self, ids: list[int], size: int) -> None:
        """Wait until acknowledged rows, which have `size` bytes, are gone from the table."""
        if ids:
            self._remove(ids)
            self._status.settled(rows=len(ids), size=size)
            self._faults.settled(ids)
        # Only now: a database that can be read but refuses the settling must not be asked at full speed.
        self._database_worked()

    def _remove(self, ids: list[int]) -> None:
        """Settle, however long something keeps the rows: the broker has them, so sending them again would not help."""
        refused: str | None = None
        while True:
            # One attempt after the request to end: what was in the way may be gone, else each row would be sent again.
            last = self._stop.is_set()
            try:
                self._store.settle(ids)
            except SettleRefusedError as error:
                if last:
                    raise _StoppedError from None
                if error.message != refused:
                    _log.warning("%s", error.message)
                refused = error.message
                self._status.database_is(ok=False, reason="DatabaseError", message=error.message)
                self._status.failed(reason="DatabaseError", message=error.message)
            else:
                break
            # Each attempt may change every row and undo that again: dead rows, WAL, and work for vacuum.
            self._settle_backoff.failed(self._clock())
            self._wait_to_settle()
        self._settle_backoff.succeeded()
        if refused is not None:
            self._status.database_is(ok=True, reason="Connected")

    def _wait_to_settle(self) -> None:
        """Wait for the next attempt, or for the request to end; an end of the session ends it all."""
        while (left := self._settle_backoff.not_before - self._clock()) > 0:
            self._status.tick()
            if self._stop.wait(min(_TICK_SECONDS, left)):
                return
            if not self._store.alive():
                raise StoreError("DatabaseUnreachable", "the session was ended before acknowledged rows were removed")

    # -- pauses

    def _idle(self) -> None:
        """Nothing to send: poll again soon, then less often, and the least often while rows are announced."""
        self._idle_polls += 1
        tuning, now = self._tuning, self._clock()
        milliseconds = tuning.idle_poll_min_ms * 2.0 ** min(self._idle_polls - 1, 20)
        jitter = 0.75 + self._rng.random() / 2
        self._poll_from = self._poll_at = now + min(tuning.idle_poll_max_ms, milliseconds) / 1000 * jitter
        wake = self._store.wake()
        if wake is not None and wake.ok and milliseconds >= tuning.idle_poll_max_ms:
            self._poll_at = max(self._poll_from, now + tuning.announced_poll_ms / 1000 * jitter)
        self._rest()

    def _rest(self) -> None:
        """Sleep until it is time to poll, or rows are announced; not for so long that other duties would be late."""
        seconds = min(_TICK_SECONDS, max(0.0, self._poll_at - self._clock()))
        if self._poll_at <= self._poll_from:
            self._stop.wait(seconds)
        elif self._store.rest(self._stop, seconds):
            self._poll_at = self._poll_from

    def _pause(self) -> None:
        if not self._store.alive():
            raise StoreError("DatabaseUnreachable", "the session was ended while waiting for lanes")
        self._stop.wait(min(_TICK_SECONDS, max(0.01, self._rebalance_at - self._clock())))


def _size_of(ids: list[int], batch: Batch) -> int:
    """Bytes of some of the rows of a batch."""
    if len(ids) == len(batch.rows):
        return batch.size
    wanted = set(ids)
    return sum(row.size for row in batch.rows if row.id in wanted)
