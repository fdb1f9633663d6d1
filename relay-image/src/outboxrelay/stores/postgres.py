"""The outbox table in PostgreSQL, read and settled over one session that also holds the locks.

Why the order of a key holds. Writers of one key take the key's lock before their id is drawn, so when a row of a key
is visible, every row of that key with a lower id was committed before it and is visible too. A batch is the lowest ids
there are, so for each key it holds the lowest rows that were not sent. The next batch is read only after this one was
acknowledged and settled, and again from the floor, not from the last id: a row with a lower id that became visible in
between belongs to another transaction, and may well be the predecessor of a row not yet read.

The next batch may be read while this one is in flight (`ask`), since it leaves out the very ids in flight and nothing
else below them: for each key it again holds the lowest rows that were not sent. It must not be published before the
outcome of this one is known.

One session does everything: whoever lost the session has lost the lanes, and cannot remove a row any more either.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import psycopg
from psycopg import errors, pq
from psycopg.types.numeric import Int8

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of
from outboxrelay.ports import Batch, Row, RowFault, SettleRefusedError, Stop, StoreError, Wake, WideRow
from outboxrelay.readable import readable
from outboxrelay.report import Holder
from outboxrelay.stores.care import Care
from outboxrelay.stores.encoding import UNCONVERTIBLE
from outboxrelay.stores.errors import note_refusal, place, refusal, refuses_rows, translate
from outboxrelay.stores.floor import Floor
from outboxrelay.stores.holders import holding_vacuum_back, locking, words
from outboxrelay.stores.lookout import SLOW_READ_SECONDS, Lookout
from outboxrelay.stores.opened import Opened, Question, Removal, begin, begins_the_same
from outboxrelay.stores.piece import Piece
from outboxrelay.stores.session import Connection, connect
from outboxrelay.stores.sharing import EvenShare
from outboxrelay.stores.sql import BEYOND_BOUND, KEY, SNAPSHOT, Shape, Weigh
from outboxrelay.stores.standing import standing
from outboxrelay.stores.statement import Statement, array
from outboxrelay.stores.table import table_oid

_make_row: Callable[[Sequence[Any]], Row] = functools.partial(tuple.__new__, Row)
_make_wide_row: Callable[[Sequence[Any]], Row] = functools.partial(tuple.__new__, WideRow)


_LONGEST_NOTE: Final = 1000

_OF_A_ROW: Final = (errors.ProgramLimitExceeded, errors.OutOfMemory, errors.InternalError_, errors.DataCorrupted)
"""What the server says of a value that it cannot turn into text, or cannot read at all."""

_CAREFUL: Final[tuple[Weigh, ...]] = ("looked into", "not at all")

_CLEANING_LANE: Final = 0
"""Whoever owns this lane cleans up for all: two at a time would only be in each other's way."""


class PostgresStore:
    """`OutboxStore` over psycopg."""

    def __init__(self, config: RelayConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._connection: Connection | None = None
        self._opened: Opened | None = None
        self._extras = extras_of(config)
        self._make_row = _make_wide_row if self._extras else _make_row
        self._floor = Floor()
        self._lookout = Lookout(self._floor, clock=clock, full_sweep_seconds=config.tuning.full_sweep_seconds)
        self._left_out: frozenset[int] = frozenset()
        self._held_back_by: Holder | None = None
        self._cleanup_trouble: str | None = None
        self._holders_at = float("-inf")
        self._text_refused = False
        """Whether the server could not turn a text into UTF-8; from the next session on they come as they are."""
        self._share = EvenShare(rows=config.tuning.batch_rows, size=config.tuning.batch_bytes)
        self._care = Care(rows=config.tuning.batch_rows)
        self._piece = Piece(rows=config.tuning.batch_rows, seconds=config.tuning.statement_timeout_seconds)
        self._held: tuple[Collection[bytes], bytes] = ((), b"{}")

    def open(self) -> None:
        """See `OutboxStore.open`."""
        self.close()
        self._connection = connect(self._config)
        try:
            self._opened = begin(self._connection, self._config, clock=self._clock, text_refused=self._text_refused)
        except psycopg.Error as error:
            raise self._lost(error, "looking at the table") from None
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """See `OutboxStore.close`."""
        connection, self._connection = self._connection, None
        self._opened = None
        self._held = ((), b"{}")
        self._lookout.begin_anew()
        if connection is not None:
            connection.close()

    def rebalance(self) -> frozenset[int]:
        """See `OutboxStore.rebalance`."""
        self.drop()
        session = self._session()
        try:
            taken = session.membership.share()
            self._look_around(session)
            if session.listener is not None:
                session.listener.look()
            self._clean_up(session)
        except psycopg.Error as error:
            raise self._lost(error, "sharing the lanes") from None
        except StoreError:
            self.close()
            raise
        if taken:
            # Rows of a new lane may lie anywhere. The next read takes its snapshot after the locks were granted.
            self._lookout.begin_anew()
        return session.membership.owned

    def release(self) -> None:
        """See `OutboxStore.release`."""
        self.drop()
        try:
            self._session().membership.leave()
        except psycopg.Error as error:
            raise self._lost(error, "giving up the lanes") from None
        self._lookout.begin_anew()

    def members(self) -> int:
        """See `OutboxStore.members`."""
        return 0 if self._opened is None else self._opened.membership.members

    def cleanup_trouble(self) -> str | None:
        """See `OutboxStore.cleanup_trouble`."""
        return self._cleanup_trouble

    def _clean_up(self, session: Opened) -> None:
        if session.cleanup is None or _CLEANING_LANE not in session.membership.owned:
            return
        try:
            if session.cleanup.run(session.connection):
                complaint = session.cleanup.complaint
                self._cleanup_trouble = None if complaint is None else f"{complaint} ({place(self._config)})"
        except psycopg.Error as error:
            if not self.alive():
                raise
            session.cleanup.failed()
            attempt = "removing rows that were kept long enough"
            failure = translate(error, config=self._config, attempt=attempt)
            self._cleanup_trouble = f"{failure.message}; the table grows meanwhile"

    def held_back_by(self) -> Holder | None:
        """See `OutboxStore.held_back_by`."""
        return self._held_back_by

    def wake(self) -> Wake | None:
        """See `OutboxStore.wake`."""
        if self._config.table.wake == "Poll":
            return None
        if self._opened is None or self._opened.listener is None:
            return Wake(ok=False, reason="Starting", message="there is no session")
        return self._opened.listener.state()

    def rest(self, stop: Stop, seconds: float) -> bool:
        """See `OutboxStore.rest`."""
        session = self._session()
        listener = session.listener
        if listener is None:
            stop.wait(seconds)
            return False
        if not listener.announced():
            stop.wait(seconds, also=session.connection.pgconn.socket)
            if not self.alive():
                raise StoreError("DatabaseUnreachable", f"the session to {place(self._config)} was ended while idle")
        return listener.announced()

    def _look_around(self, session: Opened) -> None:
        """What need not be looked at often: who holds vacuum back, and whether the table is as it was."""
        connection = session.connection
        at_least = self._config.tuning.held_back_seconds
        if self._clock() - self._holders_at < at_least / 3:
            return
        self._holders_at = self._clock()
        self._require_the_same(session)
        try:
            found = holding_vacuum_back(connection, at_least=at_least, limit=1)
        except errors.InsufficientPrivilege:
            # Some installations hide the views of other sessions from applications. Rows go on without them.
            found = []
        self._held_back_by = found[0] if found else None

    def _require_the_same(self, session: Opened, *, triggers: bool = True) -> None:
        """Raises `StoreError` if the statements of the session were made for something else than there is now.

        `triggers`: it matters which there are.
        """
        try:
            now = standing(session.connection, self._config)
            change = session.standing.change(now if triggers else now._replace(may_stay=session.standing.may_stay))
        except psycopg.Error as error:
            raise self._lost(error, "looking at the table") from None
        if change is not None:
            self.close()
            raise StoreError("DatabaseError", f"looking at the table ({place(self._config)}) found {change}")

    def _refused_for_good(self, session: Opened, error: psycopg.Error) -> bool:
        """Whether rows cannot be changed, and a new session would not help."""
        return self.alive() and refuses_rows(error, begins_the_same=lambda: begins_the_same(session, self._config))

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        """See `OutboxStore.ask`."""
        self.drop()
        sweeping = self._lookout.sweep_if_due()
        try:
            self._lookout.look(self._session())
        except psycopg.Error as error:
            raise self._lost(error, "looking at who writes to the table") from None
        self._ask(limit, held_keys=held_keys, held_ids=held_ids, in_flight=in_flight)
        question = self._session().asked
        if question is not None:
            question.sweeping = sweeping

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        """See `OutboxStore.read`."""
        began = self._clock()
        session = self._session()
        ahead = session.asked is not None
        if not ahead:
            self.ask(limit=limit, held_keys=held_keys, held_ids=held_ids, in_flight=())
        while (batch := self._take(session)) is None:
            # The very first row needs more than an even share of the bytes, or some row keeps all from being read.
            in_flight: Sequence[int] = ()
            if session.removal is not None:
                self._removed(session, session.removal)
                in_flight = session.removal.ids
            self._ask(limit, held_keys=held_keys, held_ids=held_ids, in_flight=in_flight, exact=True)
        seconds = self._clock() - began
        if batch.complete and not ahead and seconds > SLOW_READ_SECONDS:
            try:
                self._lookout.look_further(session, seconds)
            except psycopg.Error as error:
                raise self._lost(error, "looking for the end of the table") from None
        return batch

    def fetch(self) -> None:
        """See `OutboxStore.fetch`."""
        session = self._session()
        self._receive(session)
        self._make(session)

    def drop(self) -> None:
        """See `OutboxStore.drop`."""
        if self._opened is not None and self._opened.asked is not None:
            self._receive(self._opened)
            self._opened.asked = None

    def _ask(
        self,
        limit: int,
        *,
        held_keys: Collection[bytes],
        held_ids: Collection[int],
        in_flight: Sequence[int],
        exact: bool = False,
    ) -> None:
        """Send the question for the next rows."""
        session = self._session()
        shape, parameters = self._question(held_keys=held_keys, held_ids=held_ids, in_flight=in_flight)
        weigh, limit = self._weighing(limit, exact=exact)
        shape = replace(shape, weigh=weigh)
        if weigh == "share":
            share = min(self._share.bytes_of(limit), self._config.tuning.max_row_bytes)
            parameters["share"] = b"%d" % share
        else:
            parameters["bytes"] = b"%d" % self._config.tuning.batch_bytes
            parameters["max_row"] = b"%d" % self._config.tuning.max_row_bytes
        parameters["limit"] = b"%d" % limit
        if session.listener is not None:
            session.listener.forget()
        refused = self._refused(session, session.statements.read(shape), parameters, "reading rows")
        session.asked = Question(limit=limit, weigh=weigh, answer=refused)
        if refused is not None:
            self._failed(session.asked, refused)

    def _weighing(self, limit: int, *, exact: bool) -> tuple[Weigh, int]:
        """How to weigh the next rows, and how many of them to ask for."""
        careful = self._care.limit(self._share.exact_limit(limit), start=self._floor.start)
        if careful is not None:
            return ("not at all" if self._care.blind else "looked into"), careful
        quick = None if exact else self._share.quick_limit(limit)
        return ("reckoned", self._share.exact_limit(limit)) if quick is None else ("share", quick)

    def _receive(self, session: Opened) -> None:
        """Wait for the answer to the open question, so that something else can be asked."""
        question = session.asked
        if question is None or question.answer is not None:
            return
        began = self._clock()
        try:
            question.answer = session.questions.answer()
        except psycopg.Error as error:
            self._failed(question, error)
            if not self.alive():
                raise self._lost(error, "reading rows") from None
            # Refused, but the session lives: whoever takes the answer is told.
            question.answer = error
        if question.sweeping:
            # Over dead rows that an old snapshot keeps from being cleared away it takes longer from time to time.
            self._lookout.spread_sweeps(self._clock() - began)

    def _make(self, session: Opened) -> None:
        """Make Python's rows of an answer that was received; what is wrong with it is for whoever takes it."""
        if session.asked is not None and not isinstance(session.asked.answer, psycopg.Error):
            self._load(session)

    def _load(self, session: Opened) -> list[Row]:
        """The rows of the open question, once received; the first of them is the snapshot."""
        question = session.asked
        if question is None or question.answer is None:
            raise RuntimeError("no question was asked")
        if isinstance(question.answer, psycopg.Error):
            self._text_refused = self._text_refused or isinstance(question.answer, UNCONVERTIBLE)
            raise self._lost(question.answer, "reading rows") from None
        if question.rows is None:
            session.loader.set_pgresult(question.answer, format=pq.Format.BINARY)
            question.rows = session.loader.load_rows(0, question.answer.ntuples, self._make_row)
            if session.texts is not None and session.texts.change:
                positions = session.statements.texts()
                question.rows = [self._make_row(list(session.texts.into_utf8(row, positions))) for row in question.rows]
        return question.rows

    def _take(self, session: Opened) -> Batch | None:
        """The answer as a batch; None if the question has to be asked again, exactly."""
        self._receive(session)
        if session.asked is not None and isinstance(session.asked.answer, psycopg.Error):
            if isinstance(session.asked.answer, _OF_A_ROW) and session.asked.weigh != "not at all":
                session.asked = None
                return None
            if session.removal is not None:
                # It would end the session, and the removal with it. Once that is finished, the question is put again.
                session.asked = None
                return Batch(rows=[], complete=False)
        return self._batch(session)

    def _batch(self, session: Opened) -> Batch | None:
        """As `_take`, of an answer that was received."""
        rows = self._load(session)
        question, session.asked = session.asked, None
        if question is None or not rows or rows[0].size != SNAPSHOT:
            raise RuntimeError("the read did not start with its snapshot")
        xmin = rows.pop(0).id
        sizes = [row.size for row in rows]
        within = BEYOND_BOUND not in sizes
        complete = within and len(rows) < question.limit
        if not within:
            fitting = sizes.index(BEYOND_BOUND)
            del rows[fitting:], sizes[fitting:]
        self._weighed(question, rows, within=within, complete=complete)
        if not rows and not within:
            return None
        if self._floor.looks_below():
            self._floor.found_below(row.id for row in rows)
        self._floor.read(xmin=xmin, last_id=rows[-1].id if rows else None, complete=complete)
        if question.rewound is not None:
            self._floor.rewind(question.rewound)
        return Batch(rows=rows, complete=complete, size=sum(sizes))

    def _weighed(self, question: Question, rows: Sequence[Row], *, within: bool, complete: bool) -> None:
        """What the answer says about the reads to come."""
        sizes = [row.size for row in rows]
        if question.weigh != "share":
            self._share.weighed(sizes, within=within)
        elif within:
            self._share.fitted(sizes)
        else:
            self._share.exceeded()
        if question.weigh in _CAREFUL:
            most = self._config.tuning.max_row_bytes
            too_large = max((row.id for row in rows if row.size > most), default=None)
            self._care.passed(len(rows), too_large=too_large, complete=complete)
        elif question.weigh == "reckoned" and not (rows or within):
            self._care.failed(question.limit, careful=False)

    def _failed(self, question: Question, error: psycopg.Error) -> None:
        """A read brought nothing: from now on with care, and in the end without the content of the row."""
        self._care.failed(question.limit, careful=question.weigh in _CAREFUL)
        if isinstance(error, _OF_A_ROW) and question.weigh == "looked into" and question.limit == 1:
            self._care.refused()

    def _question(
        self, *, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> tuple[Shape, dict[str, bytes]]:
        parameters: dict[str, bytes] = {"start": b"%d" % self._floor.start}
        wanted = self._session().membership.owned - self._left_out
        all_lanes = len(wanted) == self._config.lanes
        if not all_lanes:
            parameters["owned"] = array(sorted(wanted))
        if held_keys:
            parameters["held_keys"] = self._held_literal(held_keys)
        if held_ids:
            parameters["held_ids"] = array(held_ids)
        flying: Literal["nothing", "run", "list"] = "nothing"
        if in_flight:
            parameters["first"], parameters["last"] = b"%d" % in_flight[0], b"%d" % in_flight[-1]
            flying = "run" if _dense(in_flight) else "list"
            if flying == "list":
                parameters["in_flight"] = array(in_flight)
        shape = Shape(all_lanes=all_lanes, held_keys=bool(held_keys), held_ids=bool(held_ids), in_flight=flying)
        return shape, parameters

    def _held_literal(self, keys: Collection[bytes]) -> bytes:
        """A bytea[] literal; made once for each collection, since many keys may be held for long."""
        if self._held[0] is not keys:
            # In an array literal a backslash is written twice.
            session = self._session()
            texts = session.texts if KEY in session.statements.texts() else None
            stored = keys if texts is None else [texts.stored(key) for key in keys]
            self._held = keys, ("{" + ",".join([f'"\\\\x{key.hex()}"' for key in stored]) + "}").encode()
        return self._held[1]

    def leave_out(self, lanes: Collection[int]) -> None:
        """See `OutboxStore.leave_out`."""
        self.drop()
        before, self._left_out = self._left_out, frozenset(lanes)
        if before - self._left_out:
            # The floor was raised over rows of these lanes. What is known of transactions holds for them as well.
            self._floor.sweep()

    def lanes_of(self, ids: Collection[int]) -> dict[int, int]:
        """See `OutboxStore.lanes_of`."""
        self.drop()
        session = self._session()
        try:
            session.questions.ask(session.statements.lanes_of(), {"ids": array(ids)})
            return dict(session.questions.rows())
        except psycopg.Error as error:
            raise self._lost(error, "looking for the lanes of rows") from None

    def rewind(self, row_id: int) -> None:
        """See `OutboxStore.rewind`."""
        self._floor.rewind(row_id)
        question = None if self._opened is None else self._opened.asked
        if question is not None:
            question.rewound = row_id if question.rewound is None else min(row_id, question.rewound)

    def start_settling(self, ids: Sequence[int]) -> None:
        """See `OutboxStore.start_settling`."""
        self._remove(self._session(), ids)

    def _remove(self, session: Opened, ids: Sequence[int], *, start: int = 0) -> Removal:
        """Tell the server to remove these rows, from the position `start` on."""
        # The server answers one question at a time, and brings the next rows first.
        self._receive(session)
        piece = self._piece.of(ids, start=start)
        if _dense(piece):
            statement = session.statements.settle_range()
            parameters = {"first": b"%d" % piece[0], "last": b"%d" % piece[-1]}
        else:
            statement, parameters = session.statements.settle_list(), {"ids": array(piece)}
        began = self._clock()
        refused = self._refused(session, statement, parameters, "removing acknowledged rows")
        session.removal = Removal(ids, piece, began=began, outcome=refused)
        return session.removal

    def _refused(
        self, session: Opened, statement: Statement, parameters: Mapping[str, bytes], attempt: str
    ) -> psycopg.Error | None:
        """Put a question, and return why it was refused: to be prepared, it may have to wait for a lock in vain.

        The session lives then. To end it here would send what is in flight once more.
        """
        try:
            session.questions.ask(statement, parameters)
        except psycopg.Error as error:
            if not self.alive():
                raise self._lost(error, attempt) from None
            return error
        return None

    def settle(self, ids: Sequence[int]) -> None:
        """See `OutboxStore.settle`."""
        if not ids:
            return
        session = self._session()
        removal = session.removal or self._remove(session, ids)
        if removal.ids != ids:
            raise RuntimeError("other rows are being removed")
        # While the server removes these rows, the next ones are made into Python's.
        self._make(session)
        give_up_at = removal.began + self._config.tuning.statement_timeout_seconds
        gone = 0
        while True:
            self._finish(session, removal)
            gone += len(removal.piece)
            if gone == len(ids):
                break
            if self._clock() >= give_up_at:
                # Whoever waits for the rows has other duties as well.
                raise SettleRefusedError(f"{self._slow()}; {gone} of {len(ids)} are settled")
            removal = self._remove(session, ids, start=gone)
        self._lookout.settled(ids[-1])

    def _finish(self, session: Opened, removal: Removal) -> None:
        """Wait until one piece is gone."""
        removed = self._removed(session, removal)
        session.removal = None
        piece = removal.piece
        try:
            if isinstance(removed, psycopg.Error):
                raise removed
            left = 0
            if removed < len(piece):
                # Gone already, as a rule. But a trigger may keep rows without a word, and they would be sent for ever.
                session.questions.ask(session.statements.left(), {"ids": array(piece)})
                (left,) = session.questions.only()
        except (errors.QueryCanceled, errors.LockNotAvailable) as error:
            if not self.alive():
                raise self._lost(error, "removing acknowledged rows") from None
            self._piece.took_too_long(len(piece))
            # To give the session up would send the whole batch again, and again, for as long as the lock is held.
            raise SettleRefusedError(f"{self._slow()}; look into pg_locks{self._locked_by()}") from None
        except psycopg.Error as error:
            if not self._refused_for_good(session, error):
                raise self._lost(error, "removing acknowledged rows") from None
            # What keeps the rows may be mended by a new column, of which this session knows nothing.
            self._require_the_same(session, triggers=False)
            raise SettleRefusedError(refusal(error, config=self._config)) from None
        if left:
            # Of a trigger that is new: with policy Keep each attempt would make one more copy.
            self._require_the_same(session)
            raise SettleRefusedError(
                f"removing acknowledged rows failed ({place(self._config)}): {left} of {len(piece)} are still there"
                f" after the {self._config.retention.verb}; look for a trigger or rule that keeps them as they are;"
                " nothing more is sent until then, and no row is lost or sent again"
            )
        self._piece.took(self._clock() - removal.began, rows=len(piece), gone=removed)

    def _slow(self) -> str:
        return (
            f"removing acknowledged rows ({place(self._config)}) takes longer than"
            f" {self._config.tuning.statement_timeout_seconds:g} s: another session locks some of them, a trigger or a"
            " foreign key without an index is slow, or the server is overloaded"
        )

    def _removed(self, session: Opened, removal: Removal) -> int | psycopg.Error:
        """Wait for what became of the rows being removed, so that something else can be asked."""
        if removal.outcome is None:
            try:
                removal.outcome = session.questions.affected()
            except psycopg.Error as error:
                removal.outcome = error
        return removal.outcome

    def note(self, faults: Sequence[RowFault]) -> str | None:
        """See `OutboxStore.note`."""
        session = self._session()
        if session.note is None:
            return None
        self._receive(session)
        refused: str | None = None
        for fault in faults:
            message = f"{fault.reason}: {fault.message}"[:_LONGEST_NOTE]
            try:
                session.connection.execute(session.note, {"id": Int8(fault.row.id), "message": message})
            except (errors.QueryCanceled, errors.LockNotAvailable):
                if not self.alive():
                    raise StoreError("DatabaseUnreachable", f"the session to {place(self._config)} was ended") from None
                break
            except psycopg.Error as error:
                if not self._refused_for_good(session, error):
                    raise self._lost(error, "noting why rows cannot be sent") from None
                refused = note_refusal(error, config=self._config)
        return refused

    def alive(self) -> bool:
        """See `OutboxStore.alive`."""
        connection = self._connection
        if connection is None or connection.closed:
            return False
        pgconn = connection.pgconn
        try:
            # Only notices or the end of the session make an idle socket readable. The server's farewell is read first;
            # that nothing more will come shows only when the socket is read again.
            while pgconn.status == pq.ConnStatus.OK and readable(pgconn.socket, within=0):
                pgconn.consume_input()
            if self._opened is not None and self._opened.listener is not None:
                # A busy relay hears much and asks little: it must not pile up.
                self._opened.listener.announced()
        except (psycopg.Error, OSError, ValueError):
            return False
        return pgconn.status == pq.ConnStatus.OK

    def _session(self) -> Opened:
        if self._opened is None:
            raise StoreError("DatabaseUnreachable", f"there is no session to {place(self._config)}")
        return self._opened

    def _lost(self, error: psycopg.Error, attempt: str) -> StoreError:
        """The session is of no more use: end it, so that its locks are free at once."""
        translated = translate(error, config=self._config, attempt=attempt)
        if isinstance(error, errors.QueryCanceled | errors.LockNotAvailable):
            translated = StoreError(translated.reason, translated.message + self._locked_by())
        self.close()
        return translated

    def _locked_by(self) -> str:
        """Who has the whole table locked, to be added to a message; empty if nobody is found."""
        if self._connection is None or not self.alive():
            return ""
        try:
            oid = table_oid(self._connection, self._config)
            found = [] if oid is None else locking(self._connection, oid)
        except psycopg.Error:
            return ""
        return "".join(f"; the table is locked by {words(holder)}" for holder in found)


def _dense(ids: Sequence[int]) -> bool:
    """Whether ascending ids are all those between the first and the last.

    Only distinct ids make a dense run: without a unique index an id may come twice, and hide a gap.
    """
    return ids[-1] - ids[0] + 1 == len(set(ids))
