"""Runs one schedule with real writers, relays, PostgreSQL and Kafka, and says what broke the delivery contract.

Repeats are bounded by what happened: each crash of a relay, each ended session and each end beside a broker that
hangs accounts for one batch, of rows that were unsent then. Nothing else accounts for any.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.contract.relay.settings import POLICIES, prepare_policy, relay_role
from tests.integration.harness.checker import Committed, Verdict, check
from tests.integration.harness.consumer import read_all
from tests.integration.harness.relay import OUTBOXRELAY, Pair, RelayProcess, relay_config, relaying
from tests.integration.harness.writers import Writers, backlog, insert, lock_key, prepare, writing
from tests.integration.property.schedule import Schedule, Step
from tests.testbed.services.eventually import DeadlineExceededError, eventually
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import LocalPostgres

LIMIT_BYTES = 20_000
"""max.message.bytes of the topic as long as rows are at fault."""

WITHIN_SECONDS = 120.0

OBSTACLES = ("raise", "raise at the end", "keep some")
_OBSTACLE = """
create table obstacle (way text);
create function obstruct() returns trigger language plpgsql security definer as $$ begin
    if exists (select from public.obstacle where way = tg_argv[0]) then raise exception 'not now'; end if;
    if old.id % 2 = 0 and exists (select from public.obstacle where way = 'keep some') then return null; end if;
    return case tg_op when 'DELETE' then old else new end;
end $$;
create trigger obstruct before delete or update on outbox for each row execute function obstruct('raise');
create constraint trigger obstruct_late after delete or update on outbox deferrable initially deferred
    for each row execute function obstruct('raise at the end');
"""
"""What keeps rows from being settled as long as the table says so: to make a trigger waits for those who write."""


@dataclass(frozen=True, slots=True)
class Services:
    """What all schedules of a session share."""

    postgres: LocalPostgres
    kafka: LocalKafka


@dataclass(slots=True)
class Result:
    """What became of one schedule."""

    rows: int = 0
    kills: int = 0
    lost: int = 0
    reordered: int = 0
    repeats: int = 0
    problems: list[str] = field(default_factory=list)


def run(
    schedule: Schedule,
    services: Services,
    *,
    command: Sequence[str] = (str(OUTBOXRELAY), "run"),
    within_seconds: float = WITHIN_SECONDS,
) -> Result:
    """Run it from an empty table to an empty table.

    Args:
        command: what to run instead of the relay, to prove that a wrong one is found out.
        within_seconds: how long rows may be left once nothing is in their way; then they are lost.
    """
    with _Course.prepared(schedule, services, command=command) as course:
        try:
            course.run(within_seconds)
        except AssertionError as error:
            course.result.problems.append(str(error))
        return course.result


class _Course:
    """One schedule under way."""

    def __init__(
        self, schedule: Schedule, services: Services, *, pair: Pair, dead: Topic, command: Sequence[str]
    ) -> None:
        self._schedule = schedule
        self._kafka = services.kafka
        self._pair = pair
        self._dead = dead
        self._command = command
        self._owner = pair.database.connect()
        self._chance = random.Random(schedule.seed)
        self._relays: list[RelayProcess] = []
        self._paused: list[RelayProcess] = []
        self._open: list[tuple[psycopg.Connection[Any], Committed]] = []
        self._committed: list[Committed] = []
        self._at_fault: list[Committed] = []
        self._hanging = False
        self._refusing = False
        self._stood_still = False
        self._repeatable: set[int] = set()
        self._most_repeats = 0
        self.result = Result()

    @classmethod
    @contextmanager
    def prepared(cls, schedule: Schedule, services: Services, *, command: Sequence[str]) -> Iterator[Self]:
        """With a database, topics and a configuration of its own, which are gone afterwards."""
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outboxrelay-property-")))
            database = services.postgres.create_database()
            stack.callback(services.postgres.drop_database, database)
            prepare(database, payload=schedule.payload, keys=schedule.habits.keys)
            unsent = prepare_policy(database, schedule.policy)
            if any(step.kind == "refuse" for step in schedule.steps):
                database.execute(_OBSTACLE)
            faults = any(step.kind == "fault" for step in schedule.steps)
            topic = services.kafka.create_topic(
                partitions=schedule.partitions, configs={"max.message.bytes": str(LIMIT_BYTES)} if faults else None
            )
            dead = services.kafka.create_topic()
            pair = Pair(
                database=database,
                topic=topic,
                config=relay_config(
                    database=relay_role(database, schedule.policy),
                    bootstrap_servers=services.kafka.bootstrap_servers,
                    topic=topic.name,
                    directory=directory,
                    lanes=schedule.lanes,
                    retention=POLICIES[schedule.policy],
                    on_error={"policy": schedule.on_error}
                    | ({"topic": dead.name} if schedule.on_error == "DeadLetter" else {}),
                    tuning={
                        "batch_rows": schedule.batch_rows,
                        "rebalance_seconds": schedule.rebalance_seconds,
                        "full_sweep_seconds": schedule.full_sweep_seconds,
                        "reconnect_max_seconds": 1.0,
                        "row_retry_min_seconds": 0.3,
                        "row_retry_max_seconds": 1.0,
                    },
                ),
                directory=directory,
                unsent=unsent,
            )
            stack.enter_context(relaying(pair))
            course = cls(schedule, services, pair=pair, dead=dead, command=command)
            stack.callback(course._close)
            yield course
            for each in (topic, dead):
                services.kafka.delete_topic(each)

    def _close(self) -> None:
        """Whatever happened, nobody else's broker hangs."""
        if self._hanging:
            self._kafka.resume()
        for connection, _ in self._open:
            connection.close()
        self._owner.close()

    def run(self, within_seconds: float) -> None:
        """All of it: see `run`."""
        schedule = self._schedule
        if schedule.backlog:
            self._committed += backlog(
                self._pair.database, schedule.payload, rows=schedule.backlog, keys=schedule.habits.keys
            )
        self._scale(schedule.relays)
        for relay in self._relays:
            # There may be fewer lanes than relays.
            relay.await_report(lambda report: report.members, what="a place among the relays", seconds=60)
        with writing(
            self._pair.database,
            payload=schedule.payload,
            seed=schedule.seed,
            processes=schedule.writers,
            transactions=schedule.transactions,
            habits=schedule.habits,
            pool=ThreadPoolExecutor(schedule.writers),
        ) as writers:
            due = schedule.backlog
            for step in schedule.steps:
                due += step.after_rows
                self._await_drawn(due, writers)
                self._happen(step)
            self._committed += writers.committed()
        self._mend()
        left = self._carry(within_seconds)
        if not left:
            self._end()
        self._judge(left)

    def _await_drawn(self, rows: int, writers: Writers) -> None:
        eventually(lambda: writers.done() or self._drawn() >= rows, seconds=120, what=f"{rows} ids drawn")

    def _drawn(self) -> int:
        return int(self._owner.execute("select last_value from outbox_id_seq").fetchone()[0])  # type: ignore[index]

    # -- what happens

    def _happen(self, step: Step) -> None:
        steps: dict[str, Callable[[int], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "resume": lambda _: self._resume(),
            "roll": self._roll,
            "scale": lambda number: self._scale(1 + number % 3),
            "end-sessions": lambda _: self._end_sessions(),
            "hang-broker": lambda _: self._hang(),
            "go-on-broker": lambda _: self._go_on(),
            "open": lambda _: self._open_transaction(),
            "commit": lambda _: self._end_transaction(commits=True),
            "roll-back": lambda _: self._end_transaction(commits=False),
            "fault": self._fault,
            "refuse": self._refuse,
            "allow": lambda _: self._allow(),
        }
        steps[step.kind](step.number)

    def _start(self) -> None:
        self._relays.append(self._pair.relay(command=self._command))

    def _kill(self, number: int) -> None:
        relay = self._relays.pop(number % len(self._relays))
        if relay in self._paused:
            self._paused.remove(relay)
        else:
            # Or it would go on while one looks at what it has in flight; afterwards others may have its lanes.
            relay.pause()
        self._accounts_for(1)
        relay.kill()
        self.result.kills += 1
        self._start()

    def _pause(self, number: int) -> None:
        relay = self._relays[number % len(self._relays)]
        if relay not in self._paused:
            relay.pause()
            self._paused.append(relay)
            self._stood_still = True

    def _resume(self) -> None:
        while self._paused:
            self._paused.pop().resume()

    def _roll(self, number: int) -> None:
        self._terminate(self._relays.pop(number % len(self._relays)))
        self._start()

    def _scale(self, wanted: int) -> None:
        while len(self._relays) < wanted:
            self._start()
        while len(self._relays) > wanted:
            self._terminate(self._relays.pop(0))

    def _terminate(self, relay: RelayProcess) -> None:
        if relay in self._paused:
            self._paused.remove(relay)
            relay.resume()
        # A signal that comes before Python has its handler is no orderly end.
        eventually(relay.catches_sigterm, seconds=60, what=f"{relay.name} to be up")
        if self._hanging or self._refusing:
            self._accounts_for(1)
        status = relay.terminate()
        if self._refusing:
            # What it read and sent in the meantime could not be settled either.
            self._repeatable |= self._ids(self._left)
        if status != 0:
            self.result.problems.append(f"{relay.name} ended with status {status} after SIGTERM: {relay.log_tail()}")

    def _end_sessions(self) -> None:
        user = (self._pair.directory / "username").read_text()
        ending = self._owner.execute("select pid from pg_stat_activity where usename = %s", [user]).fetchall()
        pids = [pid for (pid,) in ending]
        self._accounts_for(len(self._relays))
        # At once, and again when they have ended: what is read in between is in one of the two.
        self._repeatable |= self._ids(
            f"select pg_terminate_backend(pid) from unnest(array{pids}::int[]) pid; {self._left}"
        )
        eventually(
            lambda: not self._owner.execute("select 1 from pg_stat_activity where pid = any(%s)", [pids]).fetchall(),
            seconds=60,
            what="end of the relays' sessions",
            interval_seconds=0.005,
        )
        self._repeatable |= self._ids(self._left)

    def _hang(self) -> None:
        if not self._hanging:
            self._kafka.pause()
            self._hanging = self._stood_still = True

    def _go_on(self) -> None:
        if self._hanging:
            self._kafka.resume()
            self._hanging = False

    def _open_transaction(self) -> None:
        connection = self._pair.database.connect(autocommit=False)
        # Keys of its own, or all writers of a key might wait for a step that waits for them.
        key = f"late-{len(self._open)}-{self._drawn()}"
        row = insert(connection, self._schedule.payload, self._chance, key=key, version=1)
        self._open.append((connection, row))

    def _end_transaction(self, *, commits: bool) -> None:
        if not self._open:
            return
        connection, row = self._open.pop(0)
        if commits:
            assert row.key is not None
            self._committed.append(row)
            self._committed.append(insert(connection, self._schedule.payload, self._chance, key=row.key, version=2))
            connection.commit()
        connection.close()

    def _fault(self, number: int) -> None:
        key = f"key-{number % self._schedule.habits.keys}"
        with self._pair.database.connect(autocommit=False) as connection:
            version = lock_key(connection, key)
            big = "".join(f"{self._chance.random()}" for _ in range(LIMIT_BYTES // 10))
            row = insert(connection, self._schedule.payload, self._chance, key=key, version=version, note=big)
        self._at_fault.append(row)

    def _refuse(self, number: int) -> None:
        self._owner.execute("insert into obstacle values (%s)", [OBSTACLES[number % len(OBSTACLES)]])
        self._refusing = True

    def _allow(self) -> None:
        if self._refusing:
            self._owner.execute("delete from obstacle")
            self._refusing = False

    # -- repeats

    def _accounts_for(self, relays: int) -> None:
        """So many relays lose the batch that they have in flight now, and the one before if it is being removed."""
        self._repeatable |= self._ids(self._left)
        self._most_repeats += 2 * relays * self._schedule.batch_rows

    @property
    def _left(self) -> str:
        return f"select id from outbox where {self._pair.unsent}"

    def _ids(self, statements: str) -> set[int]:
        """What the last of the statements, which go to the server in one piece, returns."""
        cursor = self._owner.execute(statements.encode())
        while cursor.nextset():
            pass
        return {row_id for (row_id,) in cursor.fetchall()}

    # -- the end

    def _mend(self) -> None:
        while self._open:
            self._end_transaction(commits=True)
        self._go_on()
        self._resume()
        self._allow()
        if not self._at_fault or self._schedule.on_error == "DeadLetter":
            return
        if self._schedule.mend == "raise":
            self._kafka.configure_topic(self._pair.topic, max_message_bytes="1048588")
            return
        ids = [row.row_id for row in self._at_fault]
        self._owner.execute("delete from outbox where id = any(%s)", [ids])

    def _carry(self, seconds: float) -> str:
        """Wait until nothing is left; what is left in the end, in words."""
        try:
            self._pair.await_empty(seconds=seconds)
        except DeadlineExceededError as error:
            return str(error)
        return ""

    def _end(self) -> None:
        while self._relays:
            self._terminate(self._relays.pop())

    def _judge(self, left: str) -> None:
        result = self.result
        self._pair.end()
        letters = read_all(self._kafka, self._dead)
        buried = {letter.payload for letter in letters}
        delivered = read_all(self._kafka, self._pair.topic)
        sent = {message.payload for message in delivered}
        committed = [
            *self._committed,
            *(row for row in self._at_fault if row.payload in sent or self._must_arrive(row, buried)),
        ]
        verdict: Verdict = check(committed=committed, delivered=delivered)
        result.rows = verdict.committed
        result.lost = len(verdict.lost)
        result.reordered = len(verdict.reordered)
        result.repeats = verdict.repeats
        result.problems += verdict.problems(
            repeatable=self._repeatable, most_repeats=self._most_repeats, stood_still=self._stood_still
        )
        if len(letters) > len(buried) + self._most_repeats:
            result.problems.append(f"{len(letters)} letters about {len(buried)} rows")
        if left:
            result.problems.append(left)

    def _must_arrive(self, row: Committed, buried: set[bytes | None]) -> bool:
        """Whether a row that was at fault has to be in the topic."""
        if self._schedule.on_error == "DeadLetter":
            return row.payload not in buried
        return self._schedule.mend == "raise"
