"""What becomes of rows that cannot be sent as they are: parked, and sent to the dead-letter topic if so asked.

Called between two batches, by the engine and in its thread. Outages never come here, and an outage of the dead-letter
topic is no attempt of a row either: the row stays parked, in the table.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from outboxrelay.config import OnError, Tuning
from outboxrelay.parked import UNCHARGED, ParkedRows
from outboxrelay.ports import Batch, DeadLetter, DeadLetters, OutboxStore, Outcome, PublisherError, RowFault, StoreError
from outboxrelay.retry import Backoff
from outboxrelay.status import StatusBoard
from outboxrelay.wording import counted

_log = logging.getLogger(__name__)

_WAIT_SLICE_SECONDS = 0.2
_LETTERS_WITHIN_SECONDS = 10.0
"""How long the other rows wait for the dead-letter topic; what it has then not acknowledged is tried again later."""


class _Stop(Protocol):
    def is_set(self) -> bool:
        """Whether the process shall end."""


class RowFaults:
    """The faulty rows of one engine, and the policy for them."""

    def __init__(
        self,
        *,
        policy: OnError,
        store: OutboxStore,
        dead_letters: DeadLetters | None,
        tuning: Tuning,
        status: StatusBoard,
        stop: _Stop,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """`dead_letters` is needed by the policy `DeadLetter`, and by no other."""
        self._policy = policy
        self._store = store
        self._dead_letters = dead_letters
        self._tuning = tuning
        self._status = status
        self._stop = stop
        self._clock = clock
        self._topic_backoff = Backoff(
            minimum=tuning.row_retry_min_seconds, maximum=tuning.row_retry_max_seconds, rng=rng
        )
        self._topic_trouble = ""
        self._note_refused: str | None = None
        self._left_out: frozenset[int] = frozenset()
        self._to_halt: list[RowFault] = []
        """Rows whose lanes could not be found out yet."""
        self._trial: tuple[int, int] | None = None
        """The halted lane that is tried again now, and the row by which."""

        self.full_until = 0.0
        self.crowded_until = 0.0
        self.parked = ParkedRows(
            minimum=tuning.row_retry_min_seconds,
            maximum=tuning.row_retry_max_seconds,
            limit=tuning.max_parked_keys,
            rng=rng,
        )

    def handle(self, faults: Sequence[RowFault], *, remove: Callable[[list[int]], None]) -> None:
        """Hold the keys of these rows, and give up those that failed too often.

        `remove` settles rows. Raises what `remove` raises, and `StoreError` if the session is lost meanwhile.
        """
        now = self._clock()
        self._note(faults)
        given_up: list[DeadLetter] = []
        for fault in faults:
            self._status.row_faults += 1
            self._status.failed(reason=fault.reason, message=fault.message, row_id=fault.row.id, key=fault.row.key)
            attempts = self.parked.park(fault, now)
            if attempts is None:
                self._no_room(fault, now)
            elif self._policy.policy != "Park" and fault.reason not in UNCHARGED and attempts >= self._policy.attempts:
                if self._policy.policy == "Halt":
                    self._to_halt.append(fault)
                else:
                    given_up.append(DeadLetter(fault, attempts))
            else:
                self._tell("parked", fault)
        self._halt()
        if given_up:
            self._give_up(given_up, remove)
        self.show()

    def _note(self, faults: Sequence[RowFault]) -> None:
        refused = self._store.note(faults)
        # Told in the log alone: the newest failure of the status is that of a row, which comes next.
        if refused is not None and refused != self._note_refused:
            _log.warning("%s", refused, extra={"reason": "DatabaseError"})
        self._note_refused = refused

    def _tell(self, what: str, fault: RowFault) -> None:
        level = logging.WARNING if len(self.parked) <= self._tuning.max_parked_keys else logging.DEBUG
        _log.log(level, "%s: %s", what, fault.message, extra={"reason": fault.reason, "row_id": fault.row.id})

    def _no_room(self, fault: RowFault, now: float) -> None:
        # Beyond every bound: the row is not held but met again in each read, which keeps its key's order. What good
        # rows are among the lowest still go through; it is no state to be in, and is shown.
        self._store.rewind(fault.row.id)
        self.full_until = now + self._tuning.row_retry_min_seconds
        self.crowded_until = now + 3 * self._tuning.row_retry_min_seconds
        self._status.database_is(
            ok=False,
            reason="DatabaseError",
            message=f"more than {counted(len(self.parked), 'row')} cannot be sent as they are and hold back the"
            f" rest; delete or mend them. The newest: {fault.message}",
        )

    # -- halted lanes

    def _halt(self) -> None:
        """Stop the lanes of the rows that failed too often, until the rows go through or are gone.

        If the session is lost over it, it comes before the next read.
        """
        if not self._to_halt:
            return
        lanes = self._store.lanes_of([fault.row.id for fault in self._to_halt])
        faults, self._to_halt = self._to_halt, []
        known = [(fault, lanes[fault.row.id]) for fault in faults if fault.row.id in lanes]
        self.parked.halt(known, self._clock())
        for fault, lane in known:
            self._tell(f"lane {lane} halted", fault)

    def to_read(self, owned: frozenset[int], limit: int) -> int:
        """Tell the store what to leave out, and return how many rows to read; 0 if there is nothing to read.

        A halted lane is tried again by its lowest row alone: what lies behind that must stay where it is.
        """
        self._halt()
        self._trial = self.parked.on_trial() if self.parked else None
        left_out = self.parked.halted() if self.parked else frozenset()
        if self._trial is not None:
            left_out, limit = owned - {self._trial[0]}, 1
        if left_out != self._left_out:
            self._store.leave_out(left_out)
            self._left_out = left_out
        return limit if owned - left_out else 0

    # -- dead letters

    def _give_up(self, letters: Sequence[DeadLetter], remove: Callable[[list[int]], None]) -> None:
        """Send the rows to the dead-letter topic, and settle those that it has."""
        now = self._clock()
        if self._topic_backoff.due(now):
            try:
                outcome = self._delivered(letters)
            except PublisherError as error:
                self._topic_backoff.failed(self._clock())
                self._topic_trouble = error.message
                _log.warning("%s; the rows stay parked", error.message, extra={"reason": error.reason})
            else:
                self._topic_backoff.succeeded()
                self._given_up(letters, outcome, remove)
                return
        for letter in letters:
            self._keep(letter.fault, self._topic_trouble)

    def _given_up(self, letters: Sequence[DeadLetter], outcome: Outcome, remove: Callable[[list[int]], None]) -> None:
        refused = {fault.row.id: fault.message for fault in outcome.faults}
        buried = [letter.fault for letter in letters if letter.fault.row.id not in refused]
        if buried:
            remove(outcome.acknowledged)
            # Later rows of these keys were read already, and may be read again now.
            self._store.rewind(outcome.acknowledged[0])
            self.parked.forget([fault.row for fault in buried])
        for fault in buried:
            self._status.dead_lettered_one(fault.reason)
            self._tell("sent to the dead-letter topic", fault)
        for letter in letters:
            if letter.fault.row.id in refused:
                self._keep(letter.fault, refused[letter.fault.row.id])

    def _keep(self, fault: RowFault, why: str) -> None:
        self.parked.annotate(fault.row, f"{fault.message}; and the dead-letter topic does not take it: {why}")

    def _delivered(self, letters: Sequence[DeadLetter]) -> Outcome:
        """Raises `PublisherError` when the topic does not take them in time, and then holds no letter any more."""
        if self._dead_letters is None:
            raise RuntimeError("there is no dead-letter topic")
        self._dead_letters.send(sorted(letters, key=lambda letter: letter.fault.row.id))
        give_up_at = self._clock() + _LETTERS_WITHIN_SECONDS
        while not self._dead_letters.wait(_WAIT_SLICE_SECONDS):
            self._status.tick()
            if not self._store.alive():
                self._dead_letters.close()
                raise StoreError("DatabaseUnreachable", "the session was ended while dead letters were in flight")
            if self._stop.is_set() or self._clock() >= give_up_at:
                self._dead_letters.close()
                raise PublisherError(
                    "BrokerUnreachable", f"nothing was acknowledged for {_LETTERS_WITHIN_SECONDS:.0f} s"
                )
        return self._dead_letters.outcome()

    # -- parked rows

    def seen(self, batch: Batch) -> None:
        """Take note of what a read returned."""
        if self.parked:
            self.parked.seen(batch, lane=None if self._trial is None else self._trial[0])
            self.show()

    @property
    def trying(self) -> bool:
        """Whether a halted lane is being tried again, so that nothing behind the row may be read."""
        return self._trial is not None

    def stays(self, batch: Batch) -> bool:
        """Whether the batch is what lies behind a row that was tried, and was gone: others may halt its lane still."""
        return self._trial is not None and bool(batch.rows) and batch.rows[0].id > self._trial[1]

    def settled(self, ids: Sequence[int]) -> None:
        """Take note of rows that were sent."""
        if self.parked:
            self.parked.settled(ids)
            self.show()

    def release_due(self) -> None:
        """Let go of the keys whose next attempt is due."""
        if self.parked:
            lowest = self.parked.release_due(self._clock())
            if lowest is not None:
                self._store.rewind(lowest)

    def lanes_went(self, owned: frozenset[int]) -> None:
        """Another relay has lanes of ours: what is parked there is its affair, and it will find out for itself.

        Raises `StoreError` if the session is lost meanwhile; then it must be called again.
        """
        ids = self.parked.ids()
        lanes = self._store.lanes_of(ids) if ids and owned else {}
        lowest = self.parked.keep({row_id for row_id, lane in lanes.items() if lane in owned})
        if lowest is not None:
            self._store.rewind(lowest)
        self.show()

    def show(self) -> None:
        """Tell the status board."""
        self._status.halted_lanes = tuple(sorted(self.parked.halted()))
        self._status.parked_are(total=len(self.parked), oldest=self.parked.oldest(10))

    def close(self) -> None:
        """Drop what was not acknowledged, and the connection: the next letter opens it again.

        While brokers are away it is of no use, and a client that nobody asks keeps all that it complains of.
        """
        if self._dead_letters is not None:
            self._dead_letters.close()
