"""Measures every pair of one PostgreSQL server, one after another, over at most two sessions.

1,000 resources against 20 servers cost 40 connections. A server that does not answer delays nobody else, since
each server has a task of its own; on it, one refused connection stands for all of the same round.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from outboxrelay.dberrors import Place, describe
from outboxrelay_operator.api.database import Database
from outboxrelay_operator.conflicts import TableId, table_id
from outboxrelay_operator.measure.history import IdHistory
from outboxrelay_operator.measure.session import MeasureError, Sample, Session, TableInfo, nobody_answers
from outboxrelay_operator.measure.sql import LOWEST_ID
from outboxrelay_operator.measure.tracking import LONGEST_SECONDS, Track, is_exact
from outboxrelay_operator.measurements import Backlog, Failure, Measurement, PairId
from outboxrelay_operator.pairs import Pair
from outboxrelay_operator.workqueue import Backoff

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SESSIONS = 2
GRACE_SECONDS = 15.0
"""How much later than planned the next measurement may come before this one is too old: the pause between two rounds,
and some more."""

EARLY = 0.1
"""How much of an interval a measurement may come before its time."""

RETRY = Backoff(first=1.0, longest=8.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class LoginId:
    """Which session serves a pair: everything that a connection depends on."""

    namespace: str
    database: Database
    """Without name and table, which do not matter to a connection."""

    @classmethod
    def of(cls, pair: Pair) -> LoginId:
        """The login of a pair."""
        bare = pair.database.model_copy(update={"name": "", "table": None})
        return cls(namespace=pair.key.namespace, database=bare)


Connect = Callable[[LoginId], Awaitable[Session]]
"""Reads the Secrets and opens a session. Raises `MeasureError`."""

Report = Callable[[PairId, Measurement], None]


@dataclass(slots=True)
class _Refused:
    error: MeasureError
    failures: int
    retry_at: float


@dataclass(slots=True)
class ServerMeasurer:
    """State and one round of measuring; the loop around it is elsewhere.

    `clock` is monotonic, `wall` is Unix time, `chance` is random between 0 and 1.
    """

    connect: Connect
    report: Report
    interval: float
    clock: Callable[[], float]
    wall: Callable[[], float]
    chance: Callable[[], float] = random.random
    max_sessions: int = MAX_SESSIONS
    """The most that are open at a time; a session beyond that takes the place of the one that was idle for longest."""

    _sessions: OrderedDict[LoginId, Session] = field(default_factory=OrderedDict)
    _refused: dict[LoginId, _Refused] = field(default_factory=dict)
    _tracks: dict[PairId, Track] = field(default_factory=dict)
    _histories: dict[TableId, IdHistory] = field(default_factory=dict)
    _began: float = 0.0
    _round_seconds: float = 0.0

    async def round(self, pairs: Mapping[PairId, Pair]) -> None:
        """Measure every pair that is due, and report each as soon as it is known."""
        self._began = self.clock()
        logins: dict[LoginId, dict[PairId, Pair]] = {}
        for pair_id, pair in pairs.items():
            logins.setdefault(LoginId.of(pair), {})[pair_id] = pair
        await self._forget(pairs, logins.keys())
        server_down: str | None = None
        # Rounds begin a little early or late; a pair that is due in a moment is due now.
        now = self.clock() + EARLY * self.interval
        for login in sorted(logins, key=self._troubles):
            due = {id_: pair for id_, pair in logins[login].items() if self._track(id_).next_look <= now}
            if not due:
                continue
            if server_down is not None and login not in self._sessions:
                self._fail(due, login, _unreachable(login, server_down))
                continue
            kept = login in self._sessions
            session = await self._session(login)
            if isinstance(session, MeasureError):
                self._fail(due, login, session)
                server_down = server_down or session.server_down
                continue
            await self._measure_login(login, session, due, kept=kept)
        self._round_seconds = self.clock() - self._began

    def _believe_until(self, next_look: float) -> float:
        """Unix time. Where a server has thousands of pairs, rounds take longer than the pause between them.

        A pair that is due a moment too late for one round has to wait for the next, and may be the last in that.
        """
        now = self.clock()
        a_round = min(LONGEST_SECONDS, max(self._round_seconds, now - self._began))
        return self.wall() + max(next_look - now, 0.0) + 2 * a_round + GRACE_SECONDS

    async def close(self) -> None:
        """End all sessions."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    def retry_soon(self) -> None:
        """Forget that logins were refused: a Secret changed."""
        for refused in self._refused.values():
            refused.retry_at = 0.0

    def _troubles(self, login: LoginId) -> tuple[bool, int]:
        """Order of a round: open sessions first, and a login that keeps failing after those that do not."""
        refused = self._refused.get(login)
        return login not in self._sessions, 0 if refused is None else refused.failures

    def _track(self, pair_id: PairId) -> Track:
        return self._tracks.setdefault(pair_id, Track())

    async def _session(self, login: LoginId) -> Session | MeasureError:
        session = self._sessions.get(login)
        if session is not None:
            self._sessions.move_to_end(login)
            return session
        refused = self._refused.get(login)
        if refused is not None and self.clock() < refused.retry_at:
            return refused.error
        while len(self._sessions) >= self.max_sessions:
            _, oldest = self._sessions.popitem(last=False)
            await oldest.close()
        try:
            session = await _expected(self.connect(login), login)
        except MeasureError as error:
            failures = 1 if refused is None else refused.failures + 1
            retry_at = self.clock() + RETRY.delay(failures, chance=self.chance())
            # What is remembered says nothing about the server as it is in a later round.
            remembered = MeasureError(error.reason, error.message, session_lost=error.session_lost)
            self._refused[login] = _Refused(error=remembered, failures=failures, retry_at=retry_at)
            return error
        self._refused.pop(login, None)
        self._sessions[login] = session
        return session

    async def _measure_login(self, login: LoginId, session: Session, due: Mapping[PairId, Pair], *, kept: bool) -> None:
        """`kept`: the session was idle since another round."""
        for pair_id, pair in due.items():
            began = self.clock()
            try:
                session, info = await self._inspected(login, session, pair, kept=kept)
                await _expected(self._measure(session, info, pair_id, pair, began=began), login)
            except MeasureError as error:
                self._fail({pair_id: pair}, login, error)
                if error.session_lost:
                    await self._drop(login)
                if login not in self._sessions:
                    fresh = await self._session(login)
                    if isinstance(fresh, MeasureError):
                        self._fail(due, login, fresh)
                        return
                    session = fresh
                    self._track(pair_id).next_look = 0.0
            kept = False

    async def _inspected(
        self, login: LoginId, session: Session, pair: Pair, *, kept: bool
    ) -> tuple[Session, TableInfo]:
        """What the catalogues say, and the session that has told: another one, if that one had ended by itself."""
        try:
            return session, await _expected(session.inspect(pair), login)
        except MeasureError as error:
            if not (kept and error.session_lost):
                raise
        # By a time limit of the server, or of something on the way, maybe: that is no failure of anybody.
        await self._drop(login)
        renewed = await self._session(login)
        if isinstance(renewed, MeasureError):
            raise renewed
        return renewed, await _expected(renewed.inspect(pair), login)

    async def _measure(self, session: Session, info: TableInfo, pair_id: PairId, pair: Pair, *, began: float) -> None:
        track = self._track(pair_id)
        floor = track.start(began)
        try:
            sample = await self._sample(session, pair, floor=floor, known_floor=track.floor)
        finally:
            track.looked(began=began, ended=self.clock(), swept=floor == LOWEST_ID, interval=self.interval)
        track.found(oldest_id=sample.oldest_id, highest_id=sample.highest_id)
        exact = is_exact(sample.counted)
        # A count that took too long found nothing out, but the oldest row is one.
        rows = int(sample.oldest_id is not None) if sample.counted is None else sample.counted
        if not exact and not pair.leftover:
            rows = max(rows, await session.estimate(pair, floor=track.floor))
        backlog = self._backlog(pair, info, sample, rows=rows, exact=exact, track=track)
        if pair.leftover and rows > 0:
            backlog = replace(backlog, routes=await session.routes(pair, floor=track.floor))
        self.report(pair_id, backlog)

    async def _sample(self, session: Session, pair: Pair, *, floor: int, known_floor: int) -> Sample:
        """Look from the floor; if that takes too long, from where the last look ended, then without counting."""
        for start, count in ((floor, True), (known_floor, True)):
            try:
                return await session.sample(pair, floor=start, count=count)
            except MeasureError as error:
                if not error.too_slow:
                    raise
                if start == known_floor:
                    break
        return await session.sample(pair, floor=known_floor, count=False)

    def _backlog(self, pair: Pair, info: TableInfo, sample: Sample, *, rows: int, exact: bool, track: Track) -> Backlog:
        history = self._histories.setdefault(table_id(pair), IdHistory())
        history.observe(clock=sample.clock, highest=sample.highest_id)
        lag, lag_exact = history.lag(oldest_id=sample.oldest_id, oldest_age=sample.oldest_age, clock=sample.clock)
        return Backlog(
            rows=rows,
            exact=exact,
            lag_seconds=lag,
            lag_exact=lag_exact,
            highest_id=history.highest,
            whole_table=pair.match.everything,
            index_missing=not info.index_on_id,
            at=self.wall(),
            believe_until=self._believe_until(track.next_look),
            connections=info.connections,
        )

    def _fail(self, pairs: Mapping[PairId, Pair], login: LoginId, error: MeasureError) -> None:
        refused = self._refused.get(login)
        for pair_id in pairs:
            next_look = max(self._track(pair_id).next_look, 0.0 if refused is None else refused.retry_at)
            believe_until = self._believe_until(max(next_look, self.clock() + self.interval))
            self.report(
                pair_id,
                Failure(reason=error.reason, message=error.message, at=self.wall(), believe_until=believe_until),
            )

    async def _drop(self, login: LoginId) -> None:
        session = self._sessions.pop(login, None)
        if session is not None:
            await session.close()

    async def _forget(self, pairs: Mapping[PairId, Pair], logins: Collection[LoginId]) -> None:
        """Drop what belongs to pairs that are no longer measured."""
        tables = {table_id(pair) for pair in pairs.values()}
        for login in [login for login in self._sessions if login not in logins]:
            await self._drop(login)
        self._refused = {login: refused for login, refused in self._refused.items() if login in logins}
        self._tracks = {pair_id: track for pair_id, track in self._tracks.items() if pair_id in pairs}
        self._histories = {table: history for table, history in self._histories.items() if table in tables}


async def _expected(work: Awaitable[T], login: LoginId) -> T:
    """What comes of some work; what nobody has thought of is a `MeasureError`, too, and no other pair's problem."""
    try:
        return await work
    except MeasureError:
        raise
    except Exception as error:
        place = Place(address=login.database.address, dbname=login.database.dbname)
        name, frames = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
        # Without its text, which may quote a row.
        logger.error("Measuring %s failed unexpectedly by %s; it is tried again\n%s", place.address, name, frames)  # noqa: TRY400
        hint = f"{name} while measuring; see the operator's log"
        raise MeasureError("DatabaseError", describe("DatabaseError", place, hint=hint), session_lost=True) from None


def _unreachable(login: LoginId, why: str) -> MeasureError:
    """In the words for this login: another one's, which was tried, may be none of its business."""
    return nobody_answers(Place(address=login.database.address, dbname=login.database.dbname), why)


def no_name_server(login: LoginId, hosts: Iterable[str]) -> MeasureError:
    """Nobody knows where the hosts are, and nobody says that they are nowhere."""
    return _unreachable(
        login, f"no name server answers the operator when it asks for {', '.join(hosts)}: check the DNS"
    )


def unknown_host(login: LoginId) -> MeasureError:
    """No name that a pod of the namespace would try has an address."""
    place = Place(address=login.database.address, dbname=login.database.dbname)
    hint = (
        f"the name {', '.join(login.database.servers)} does not exist for pods of namespace {login.namespace}: "
        "correct host, or create the Service"
    )
    return MeasureError("DatabaseUnreachable", describe("DatabaseUnreachable", place, hint=hint), session_lost=True)


def missing_credentials(login: LoginId, secret: str, problem: str) -> MeasureError:
    """A Secret is missing or cannot be used."""
    place = Place(address=login.database.address, dbname=login.database.dbname)
    hint = f"Secret {login.namespace}/{secret} {problem}"
    return MeasureError("CredentialsMissing", describe("CredentialsMissing", place, hint=hint), session_lost=False)
