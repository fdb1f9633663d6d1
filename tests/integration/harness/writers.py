"""The writers of the correctness test: what services do to an outbox, with every bad habit that is allowed.

Row locks per key, a second table first (so that the transaction's xid is older than its lock), sleeps while
locks and xids are held, roll-backs, transactions over two keys. Each writer is a process with its own seed, and
logs only what committed.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import psycopg

from tests.integration.harness.checker import Committed
from tests.testbed.services.postgres import Database
from tests.testbed.services.table import PayloadType, create_outbox_table

KEYS = 20
OTHERS = 20
LONG_HOLD_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Habits:
    """What writers are given to. Shares are of transactions."""

    keys: int = KEYS
    favourite: float = 0.0
    """Share that writes one and the same key, whatever others it writes."""

    keyless: float = 0.0
    """Share that also writes a row without a key."""

    rolled_back: float = 0.05
    hold_seconds: float = 0.015
    """The longest usual time for which locks are held between two statements."""

    long_holds: float = 0.003
    """Share of such times that last `LONG_HOLD_SECONDS`."""


@dataclass(frozen=True, slots=True)
class WriterJob:
    """What one writer does."""

    database: Database
    payload: PayloadType
    transactions: int
    seed: int
    habits: Habits = Habits()


def prepare(database: Database, *, payload: PayloadType, keys: int = KEYS) -> None:
    """Create the outbox table anew with this type of payload, and the business tables."""
    database.execute("drop table if exists outbox")
    create_outbox_table(database, payload=payload)
    database.execute("create table aggregate (key text primary key, version int not null default 0)")
    database.execute("create table other (number int primary key, touched int not null default 0)")
    database.execute("insert into aggregate (key) select 'key-' || i from generate_series(0, %s - 1) i", [keys])
    database.execute("insert into other (number) select generate_series(0, %s - 1)", [OTHERS])


def write(job: WriterJob) -> list[Committed]:
    """Run the transactions of one writer; returns the rows that committed."""
    chance = random.Random(job.seed)
    log: list[Committed] = []
    with job.database.connect(autocommit=False) as connection:
        for _ in range(job.transactions):
            rows = _transaction(connection, job, chance)
            if chance.random() < job.habits.rolled_back:
                connection.rollback()
            else:
                connection.commit()
                log.extend(rows)
    return log


def _transaction(
    connection: psycopg.Connection[tuple[object, ...]], job: WriterJob, chance: random.Random
) -> list[Committed]:
    if chance.random() < 0.4:
        # Locks are taken in one order everywhere, `other` first, so that writers wait but never deadlock.
        connection.execute("update other set touched = touched + 1 where number = %s", [chance.randrange(OTHERS)])
    _hold(chance, job.habits)
    rows: list[Committed] = []
    for number in _keys(chance, job.habits):
        version = lock_key(connection, f"key-{number}")
        _hold(chance, job.habits)
        rows.append(insert(connection, job.payload, chance, key=f"key-{number}", version=version))
        _hold(chance, job.habits)
    if chance.random() < job.habits.keyless:
        rows.append(insert(connection, job.payload, chance, key=None, version=0))
    return rows


def _keys(chance: random.Random, habits: Habits) -> list[int]:
    several = 2 if habits.keys > 1 and chance.random() < 0.1 else 1
    favourite = {0} if chance.random() < habits.favourite else set()
    return sorted({*chance.sample(range(habits.keys), k=several), *favourite})


def lock_key(connection: psycopg.Connection[Any], key: str) -> int:
    """Lock a key until the end of the transaction; returns the number of its next version."""
    row = connection.execute(
        "update aggregate set version = version + 1 where key = %s returning version", [key]
    ).fetchone()
    assert row is not None
    return int(row[0])


def insert(
    connection: psycopg.Connection[Any],
    payload_type: PayloadType,
    chance: random.Random,
    *,
    key: str | None,
    version: int,
    note: str | None = None,
) -> Committed:
    """Insert one row, unlike any other; what it will be once the transaction has committed."""
    text = chance.choice(NOTES) if note is None else note
    document = json.dumps({"key": key, "version": version, "note": text, "n": chance.random()})
    value: object = document
    as_bytes = "payload" if payload_type == "bytea" else "convert_to(payload::text, 'utf8')"
    if payload_type == "bytea":
        value = bytes(chance.randrange(256) for _ in range(20)) + document.encode()
    cursor = connection.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload, headers)"
        f" values ('order', %s, 'OrderChanged', %s::{payload_type}, %s) returning id, {as_bytes}".encode(),
        [key, value, json.dumps({"trace": f"{key}/{version}"})],
    )
    row = cursor.fetchone()
    assert row is not None
    row_id, payload = row
    assert isinstance(row_id, int)
    assert isinstance(payload, bytes)
    return Committed(row_id=row_id, key=key, version=version, payload=payload)


def backlog(database: Database, payload_type: PayloadType, *, rows: int, keys: int) -> list[Committed]:
    """Insert many small rows at once, the keys in turn; `prepare` made the keys, and nobody has written yet."""
    document = f"jsonb_build_object('key', i %% {keys}, 'version', i / {keys} + 1, 'backlog', true)::text"
    stored = f"convert_to({document}, 'utf8')" if payload_type == "bytea" else f"({document})::{payload_type}"
    as_bytes = "payload" if payload_type == "bytea" else "convert_to(payload::text, 'utf8')"
    with database.connect(autocommit=False) as connection:
        connection.execute(b"update aggregate set version = %s / %s + 1 where version = 0", [rows, keys])
        inserted = connection.execute(
            "insert into outbox (aggregatetype, aggregateid, type, payload)"
            f" select 'order', 'key-' || i %% {keys}, 'Backlog', {stored} from generate_series(0, %s - 1) i"
            f" returning id, aggregateid, {as_bytes}".encode(),
            [rows],
        ).fetchall()
    return [
        Committed(row_id=row_id, key=key, version=number // keys + 1, payload=payload)
        for number, (row_id, key, payload) in enumerate(inserted)
    ]


NOTES = ("", "plain", "quote ' and \" and \\", "naïve Straße", "emoji 🚚📦", "tab\tnew\nline", "a" * 2000)


def _hold(chance: random.Random, habits: Habits) -> None:
    """Keep what the transaction holds for a moment; now and then for a long one."""
    time.sleep(LONG_HOLD_SECONDS if chance.random() < habits.long_holds else chance.random() * habits.hold_seconds)


class Writers:
    """The running writers."""

    def __init__(self, futures: Sequence[Future[list[Committed]]], *, expected: int) -> None:
        self._futures = futures
        self.expected = expected

    def done(self) -> bool:
        """Whether all writers have ended."""
        return all(future.done() for future in self._futures)

    def committed(self) -> list[Committed]:
        """Wait for the writers and return all rows that committed."""
        return [row for future in self._futures for row in future.result(timeout=300)]


@contextmanager
def writing(
    database: Database,
    *,
    payload: PayloadType,
    seed: int,
    processes: int = 12,
    transactions: int = 250,
    habits: Habits | None = None,
    pool: Executor | None = None,
) -> Iterator[Writers]:
    """Run writers beside the block; `prepare` must have been called.

    `pool`: where they run. Each has a process of its own by default; threads start faster.
    """
    jobs = [
        WriterJob(
            database=database,
            payload=payload,
            transactions=transactions,
            seed=seed * 1000 + number,
            habits=habits or Habits(),
        )
        for number in range(processes)
    ]
    with pool or ProcessPoolExecutor(max_workers=processes, mp_context=get_context("spawn")) as workers:
        yield Writers([workers.submit(write, job) for job in jobs], expected=processes * transactions)
