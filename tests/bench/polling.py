"""Relays that poll, as peers to be measured against: faststream-outbox and pg-transactional-outbox.

Each is what its authors publish, with settings from its own pages (see `peers/`), in an environment of its own outside
the checkout. They keep their rows in tables of their own shape. Only the bench uses them.
"""

from __future__ import annotations

import hashlib
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from tests.bench.fetched import fetched, run
from tests.bench.table import Outbox
from tests.testbed.paths import cache_dir
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database
from tests.testbed.services.processes import ServiceProcess, remove, service_directory

PEERS: Final = Path(__file__).with_name("peers")


@dataclass(frozen=True, slots=True)
class Program:
    """What runs a peer."""

    command: Sequence[str]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class PollingPeer:
    """One peer: how it is started, and how rows get into its table and out of it."""

    name: str
    table: str
    scheme: str
    """Of the database's URL."""

    tls: str
    """The URL's parameter for TLS without a look at the certificate."""

    fill: str
    """SQL that takes the rows of the bench's template up to a number."""

    waiting: str
    """The condition for rows that it has not settled."""

    program: Callable[[], Program]

    def insert(self, connection: psycopg.Connection[tuple[object, ...]], outbox: Outbox, *, rows: int) -> None:
        """Insert the first rows of the template, in the transaction of `connection` if it has one."""
        connection.execute(self.fill.format(table=self.table, payload=outbox.payload_text).encode(), [rows])

    def settled(self, database: Database) -> bool:
        """Whether it is done with every row."""
        return not database.execute(f"select 1 from {self.table} where {self.waiting} limit 1")

    @contextmanager
    def running(self, *, database: Database, bootstrap_servers: str, topic: str) -> Iterator[ServiceProcess]:
        """The relay, started but not yet connected; its table is there soon, and gone at the end."""
        found, directory = self.program(), service_directory(self.table)
        url = f"{self.scheme}://{database.user}:{database.password}@{database.host}:{database.port}/{database.dbname}"
        process = ServiceProcess(
            name=self.table,
            directory=directory,
            command=[*found.command, f"{url}?{self.tls}", self.table, bootstrap_servers, topic],
            environment=found.environment,
        )
        try:
            process.start()
            yield process
        finally:
            process.kill()
            remove(directory)
            database.execute(f"drop table if exists {self.table} cascade")


def _environment(name: str, pins: Path) -> Path:
    """Where the environment with these pins is kept."""
    return cache_dir() / "bench-peers" / f"{name}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"


def _faststream() -> Program:
    pins = PEERS / "faststream-outbox.txt"

    def fill(directory: Path) -> None:
        venv.create(directory, with_pip=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--require-hashes", "-r", str(pins)], what=f"the packages of {pins.name} with pip")

    python = fetched(_environment("faststream-outbox", pins), fill) / "bin" / "python"
    return Program([str(python), str(PEERS / "faststream_relay.py")], {})


def _pg_transactional() -> Program:
    pins = PEERS / "package.json"

    def fill(directory: Path) -> None:
        (directory / pins.name).write_bytes(pins.read_bytes())
        flags = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
        run(
            [str(program("npm")), "install", "--prefix", str(directory), *flags],
            what="pg-transactional-outbox with npm",
        )

    modules = fetched(_environment("pg-transactional-outbox", pins), fill) / "node_modules"
    command = [str(program("node")), str(PEERS / "pg_transactional_outbox_relay.js")]
    return Program(command, {"NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"})


FASTSTREAM: Final = PollingPeer(
    name="faststream-outbox 0.19.0",
    table="faststream_outbox",
    scheme="postgresql+asyncpg",
    tls="ssl=require",
    fill="with filled as (insert into {table} (queue, payload, headers)"
    " select 'outbox', convert_to({payload}, 'utf8'), headers || jsonb_build_object('key', key)"
    " from template where n <= %s order by n)"
    " select pg_notify('outbox_{table}', 'outbox')",
    waiting="true",
    program=_faststream,
)

PG_TRANSACTIONAL: Final = PollingPeer(
    name="pg-transactional-outbox 0.5.7",
    table="transactional_outbox",
    scheme="postgresql",
    tls="sslmode=no-verify",
    # With the key as the segment the rows of a key keep their order; without, it was no faster.
    fill="insert into {table} (id, aggregate_type, aggregate_id, message_type, segment, payload, metadata)"
    " select gen_random_uuid(), 'order', key, 'OrderPlaced', key, {payload}::jsonb, headers"
    " from template where n <= %s order by n",
    waiting="processed_at is null",
    program=_pg_transactional,
)

POLLING: Final = {peer.name: peer for peer in (FASTSTREAM, PG_TRANSACTIONAL)}


def ready() -> None:
    """Fetch what is not there yet.

    Raises:
        ServiceError, MissingProgramError: it cannot be fetched.
    """
    for peer in POLLING.values():
        peer.program()
