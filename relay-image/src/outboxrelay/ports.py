"""The two ports of the engine: where outbox rows come from and where messages go.

The docstrings are the contract: every implementation, also the fakes of the tests, is held to it by one
shared suite. Nothing here may import a database driver or a broker client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from outboxrelay.report import BrokerReason, DatabaseReason, Holder, RowFaultReason, WakeReason

Header = tuple[str, str | bytes | None]
"""Name and value of a message header; the relay itself only gives bytes or None."""


class Row(NamedTuple):
    """One outbox row, as read. `payload` is byte for byte what the table holds; None is SQL NULL.

    `size` is the row's weight in bytes as the database reckons it. Where it is above the configured
    `max_row_bytes`, all but id, key and what says where the row goes was not fetched and is None; so is a key that
    alone is above it. Later rows of such a key need not be held back: each of them is too large as well. A row whose
    content the database cannot return comes as one that is above it, too.
    """

    id: int
    key: bytes | None
    payload: bytes | None
    type: bytes | None
    headers: bytes | None
    message_id: bytes | None
    size: int


class WideRow(Row):
    """A row with further columns behind its fields: those of `outboxrelay.extras`, in that order."""

    __slots__ = ()

    @property
    def narrow(self) -> Row:
        """The fields alone."""
        return Row._make(self[:7])

    def _replace(self, **changes: Any) -> WideRow:
        """As of a named tuple; the further columns stay."""
        return tuple.__new__(WideRow, (*self.narrow._replace(**changes), *self[7:]))


class Batch(NamedTuple):
    """What one read returned."""

    rows: list[Row]
    """Ascending by id."""

    complete: bool
    """True if nothing that was asked for was left behind for the sake of the row or byte bound."""

    size: int = 0
    """Bytes of all rows together."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """One row that could not be sent although the broker is well."""

    row: Row
    reason: RowFaultReason
    message: str


class Outcome(NamedTuple):
    """What became of the rows handed to `Publisher.publish`.

    A row that is in none of these lists was held back behind a faulty row of its key.
    """

    acknowledged: list[int]
    """Ids, ascending, which every in-sync replica has."""

    faults: list[RowFault]

    put_back: Sequence[int] = ()
    """Ids, ascending, that were not tried since it would have taken too long; nothing is wrong with these rows."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row at fault that shall leave the table by way of the dead-letter topic."""

    fault: RowFault
    attempts: int
    """How often it failed."""


class Wake(NamedTuple):
    """How new rows are known of, where they are to be announced."""

    ok: bool
    """Whether they are announced, so that asking for them is only a net."""

    reason: WakeReason
    message: str
    """For people: what is wrong, what that means, and what to do; empty if all is well."""


class Stop(Protocol):
    """The request to end."""

    def is_set(self) -> bool:
        """Whether the loop shall end."""

    def wait(self, timeout: float, *, also: int | None = None) -> bool:
        """Sleep up to `timeout` seconds, or until the request comes; returns `is_set`.

        `also`: a file descriptor; the sleep also ends when there is something to read from it.
        """


class StoreError(Exception):
    """The database cannot be used now; the session, and with it every lane, is gone.

    `message` names host, database and table, and what to do. It holds neither password nor payload.
    """

    def __init__(self, reason: DatabaseReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class SettleRefusedError(Exception):
    """Rows cannot all be removed yet, since somebody or something keeps them; session and lanes stay.

    `message` names host, database and table, and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PublisherError(Exception):
    """The broker cannot be used now: an infrastructure fault, never charged to a row.

    After it the publisher holds no message of ours any more: what was not acknowledged is read again from
    the database.
    """

    def __init__(self, reason: BrokerReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class OutboxStore(Protocol):
    """Reads and settles the rows of one pair, over one session that also holds the lanes' locks.

    Every method raises `StoreError` when the session is lost or the database refuses; the caller then
    opens again. No transaction stays open between two calls (hard rule 5).
    """

    def open(self) -> None:
        """Start a session and prove that the table can be used. Owns no lane afterwards."""

    def close(self) -> None:
        """End the session, and with it every lock. Never raises."""

    def rebalance(self) -> frozenset[int]:
        """Take or give lanes towards a fair share, ceil(lanes / members), and return those owned now.

        Only to be called while no row is published but unsettled: a lane may change hands only when none of its
        rows is in flight. Raises `StoreError` with reason `Conflict` while another resource's relay works
        on the same table and topic.
        """

    def release(self) -> None:
        """Give up every lane and the membership, but keep the session; `rebalance` takes them again."""

    def members(self) -> int:
        """Live relays of this pair as seen by the last `rebalance`, this one included."""

    def cleanup_trouble(self) -> str | None:
        """Why rows that were kept long enough stay, or go the hard way, as of the last `rebalance`; None if neither.

        It keeps nothing from being sent.
        """

    def held_back_by(self) -> Holder | None:
        """Who keeps dead rows from being cleared away, as of the last `rebalance`; looked at now and then only."""

    def wake(self) -> Wake | None:
        """How new rows are known of, as seen by the last `rebalance`; None if nobody asked for more than polling."""

    def rest(self, stop: Stop, seconds: float) -> bool:
        """Sleep up to `seconds`, until the request to end, or until rows are announced; True if they are.

        Rows that were announced after the last question was put count, also if that was before the call. It may end
        early for other reasons. Only to be called while no question is open, and of use only while `wake` is ok.
        """

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        """The lowest ids of the owned lanes, at most `limit` and within the byte bound (but at least one).

        Rows of `held_keys` and the rows `held_ids` (parked rows that have no key) are left out; neither collection
        may be changed afterwards. Because a row that
        becomes visible late may have a lower id than rows settled long ago, this is never a question for ids above
        the last one (hard rule 1). Only to be called when every row of the batch before was settled or handed back
        by `rewind`, or is parked.
        """

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        """Put the question of `read` without waiting: the next `read` returns its answer, whatever it is called with.

        `in_flight` are the ids (ascending) that were read and have no outcome yet; they are left out, and nothing else
        below them is. Before the answer is published they must have an outcome, and be settled unless they are at
        fault; if any of their keys is to be held, the question must be dropped.
        """

    def fetch(self) -> None:
        """Make the answer to an open question ready for `read`, if there is one: to be called while there is time."""

    def drop(self) -> None:
        """Forget an open question, if there is one; so do `rebalance`, `release`, `ask` and `close`.

        The caller was given none of its rows.
        """

    def leave_out(self, lanes: Collection[int]) -> None:
        """From now on, and until it is called again, `read` and `ask` leave out these lanes, whoever owns them.

        Drops an open question. Rows of lanes that were left out before are found again without a `rewind`.
        """

    def lanes_of(self, ids: Collection[int]) -> dict[int, int]:
        """The lane of each of these rows; without those that are gone."""

    def rewind(self, row_id: int) -> None:
        """Let the next read start at or before `row_id`.

        Required for a row that was read and not settled, and for a row whose key is no longer held:
        the store remembers that it has handed such rows out, and may otherwise not look there again before
        its next full sweep.
        """

    def start_settling(self, ids: Sequence[int]) -> None:
        """Begin what `settle` with the same ids must finish; rows may be published meanwhile.

        Until then only `alive`, `close` and a `read` whose question is open may be called. If that question was
        refused, the `read` returns no rows and is not complete: to raise would end the session, and have the rows that
        are being removed sent again.
        """

    def settle(self, ids: Sequence[int]) -> None:
        """Remove exactly these ids (ascending) after the broker acknowledged them (hard rule 3).

        When this returns the removal is visible to every other session. Rows that are gone already are no
        error. After a `StoreError` the outcome is unknown, and the rows are read again if they are still there.
        Raises `SettleRefusedError` if rows are left, all of them or some; the same call must be made again.
        """

    def note(self, faults: Sequence[RowFault]) -> str | None:
        """Write down beside these rows why they cannot be sent, if the table has a place for it.

        They stay unsent. Rows that somebody has locked may be left out, and those that a constraint or trigger refuses
        to change; the next failure notes them again. Returns the refusal, for people, as of `SettleRefusedError`.
        """

    def alive(self) -> bool:
        """Whether the session is still there, without a round trip if possible. Never raises."""


class Publisher(Protocol):
    """Sends rows to one topic and tells exactly which of them the broker has."""

    def open(self) -> None:
        """Connect and prove that the topic can be written to; raises `PublisherError`."""

    def close(self) -> None:
        """Drop everything that was not acknowledged, in bounded time. Never raises."""

    def publish(self, rows: Sequence[Row], *, halfway: Callable[[], None] | None = None) -> None:
        """Hand the rows over in order, keeping back later rows of a key whose earlier row is at fault.

        The rows of one key reach the topic in the order given, without a gap. `halfway` is called once while some of
        them are handed over and some are not, or later. Raises `PublisherError`, and what `halfway` raises; the caller
        then closes.
        """

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until everything handed over has an outcome.

        False: not yet (call again, never publish again). Raises `PublisherError`.
        """

    def outcome(self) -> Outcome:
        """After `wait` returned True: what became of the batch, which is then forgotten.

        Raises `PublisherError` if any row failed for a reason that is not the row's own: then none of the
        batch may be settled.
        """

    def check(self) -> None:
        """Prove that broker and topic still answer, and take up a login that has changed; raises `PublisherError`.

        Only to be called while nothing that was handed over is without an outcome.
        """

    def trouble(self) -> tuple[BrokerReason, str] | None:
        """What the client last complained of while `wait` does not end; None if it did not. Never raises."""

    def partitions(self) -> int | None:
        """Partitions of the topic, if known."""


class DeadLetters(Protocol):
    """Sends rows at fault to the dead-letter topic, with their faults in headers.

    Opens by itself at the first `send`, so that a dead-letter topic which is missing keeps no good row back. After a
    `PublisherError` it is closed and holds nothing.
    """

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Hand them over: at most one row of a key, each with the payload it has. Raises `PublisherError`."""

    def wait(self, timeout_seconds: float) -> bool:
        """As `Publisher.wait`."""

    def outcome(self) -> Outcome:
        """As `Publisher.outcome`; a row that this topic does not take either is a fault of its own."""

    def close(self) -> None:
        """As `Publisher.close`."""
