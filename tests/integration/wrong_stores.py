"""Relays with well-known wrong reading schemes, to prove that the correctness test sees them fail.

Each store stands behind the same port as the real one and is run by the real engine and the real publisher, as a
process of its own: `python -m tests.integration.wrong_stores naive-cursor|skip-locked --config FILE`. Never use one
for anything else: they lose and reorder rows on purpose.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import psycopg

from outboxrelay.cli import read_config
from outboxrelay.config import RelayConfig
from outboxrelay.engine import Engine
from outboxrelay.health import HealthServer, routes
from outboxrelay.ports import Batch, Row, RowFault, Stop, StoreError
from outboxrelay.publishers.kafka import KafkaPublisher
from outboxrelay.report import Holder
from outboxrelay.status import StatusBoard
from outboxrelay.stop import StopSignal

_COLUMNS = (
    "id, convert_to(aggregateid, 'utf8'), convert_to(payload::text, 'utf8'), convert_to(type, 'utf8'),"
    " null::bytea, null::bytea, octet_length(payload::text)"
)

_PAUSE_SECONDS = 0.3


class _Store:
    """What both wrong stores share: a plain session, every lane, no locks between relays."""

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def session(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise StoreError("DatabaseUnreachable", "no session")
        return self._connection

    def open(self) -> None:
        self.close()
        database = self._config.database
        password = database.credentials.password_file
        assert password is not None
        self._connection = psycopg.connect(
            host=database.host,
            port=database.port,
            dbname=database.dbname,
            user=database.credentials.username_file.read_text(),
            password=password.read_text(),
            sslmode="require",
            autocommit=True,
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rebalance(self) -> frozenset[int]:
        return frozenset(range(self._config.lanes))

    def release(self) -> None:
        """There is nothing to give up."""

    def members(self) -> int:
        return 1

    def cleanup_trouble(self) -> None:
        """These stores keep nothing."""

    def held_back_by(self) -> Holder | None:
        return None

    def wake(self) -> None:
        """These stores poll."""

    def rest(self, stop: Stop, seconds: float) -> bool:
        stop.wait(seconds)
        return False

    def rewind(self, row_id: int) -> None:
        """These stores know no parked rows; the proof has none."""

    def note(self, faults: Sequence[RowFault]) -> str | None:
        raise RuntimeError(f"the proof has no faulty rows, but {len(faults)} are given")

    def alive(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        if held_keys or held_ids:
            raise RuntimeError("the proof has no parked rows")
        rows = self._next(limit)
        return Batch(rows=rows, complete=len(rows) < limit)

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        """Nothing is sent ahead: `read` asks for itself."""

    def fetch(self) -> None:
        """There is never an open question."""

    def start_settling(self, ids: Sequence[int]) -> None:
        """Nothing is begun ahead: `settle` does it all."""

    def leave_out(self, lanes: Collection[int]) -> None:
        """No row is ever at fault here."""

    def lanes_of(self, ids: Collection[int]) -> dict[int, int]:
        """No row is ever at fault here."""
        return dict.fromkeys(ids, 0)

    def drop(self) -> None:
        """There is never an open question."""

    def _next(self, limit: int) -> list[Row]:
        raise NotImplementedError

    def _rows(self, condition: str, parameters: Sequence[object]) -> list[Row]:
        statement = f"select {_COLUMNS} from outbox {condition}"
        return [Row(*values) for values in self.session.execute(statement.encode(), parameters)]


class NaiveCursorStore(_Store):
    """`id > last`: passes an open transaction and never comes back."""

    last = 0

    def _next(self, limit: int) -> list[Row]:
        rows = self._rows("where id > %s order by id limit %s", [self.last, limit])
        if rows:
            self.last = rows[-1].id
        return rows

    def settle(self, ids: Sequence[int]) -> None:
        self.session.execute("delete from outbox where id = any(%s)", [list(ids)])


class SkipLockedStore(_Store):
    """Claims rows with SKIP LOCKED: another worker sends a key's later rows while this one holds the earlier.

    Each tenth claim is followed by a pause, as any process may make one at any place. A pause from outside, by a
    signal, seldom falls between claim and produce, and only there does it show what cases.md RC-04 tells of.
    """

    _claims = 0

    def _next(self, limit: int) -> list[Row]:
        self.session.rollback()
        self.session.execute("begin")
        rows = self._rows("order by id limit %s for update skip locked", [limit])
        if not rows:
            self.session.rollback()
            return rows
        self._claims += 1
        if self._claims % 10 == 0:
            time.sleep(_PAUSE_SECONDS)
        return rows

    def settle(self, ids: Sequence[int]) -> None:
        self.session.execute("delete from outbox where id = any(%s)", [list(ids)])
        self.session.commit()


STORES: dict[str, type[NaiveCursorStore] | type[SkipLockedStore]] = {
    "naive-cursor": NaiveCursorStore,
    "skip-locked": SkipLockedStore,
}


def main(arguments: Sequence[str]) -> int:
    """Run one relay with a wrong store until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.wrong_stores", description=__doc__)
    parser.add_argument("store", choices=STORES)
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args(arguments)
    stop = StopSignal()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config, digest = read_config(options.config)
    pod = os.environ["POD_NAME"]
    board = StatusBoard(config, pod=pod, config_digest=digest)
    server = HealthServer(host=config.listen_host, port=config.listen_port, routes=routes(board, dead_after_seconds=60))
    server.start()
    Engine(
        store=STORES[options.store](config),
        publisher=KafkaPublisher(config, client_id=pod),
        tuning=config.tuning,
        status=board,
        stop=stop,
        clock=time.monotonic,
        rng=random.Random(),
    ).run()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
