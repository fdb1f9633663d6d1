"""Servers and logins beside one another: what does not answer costs the others no time, and no server has more than two
sessions of the operator."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from outboxrelay_operator.measure.loop import DatabaseMeasurer
from outboxrelay_operator.measure.server import LoginId
from outboxrelay_operator.measure.session import APPLICATION_NAME, Login, PostgresSession
from outboxrelay_operator.measurements import Backlog, Failure, Measurement, PairId
from outboxrelay_operator.pairs import Key
from tests.contract.operator.test_session import pairs
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table
from tests.unit.operator.builders import raw_topic

SILENT = 60
"""Servers that accept a connection and never say anything."""

ALIKE = 5
"""OutboxRelays with logins of their own to the server that is well."""

MANY = 50
"""OutboxRelays on one server."""

LOGINS = 4
EDITS = 4


@dataclass
class World:
    """A measurer of OutboxRelays that all use one server, and what it has reported."""

    database: Database
    watcher: psycopg.Connection[tuple[Any, ...]]
    reports: dict[PairId, list[Measurement]] = field(default_factory=dict)
    most_sessions: int = 0
    measurer: DatabaseMeasurer = field(init=False)

    def measure(self, name: str, *, login: str = "", topic: str = "orders", **database: Any) -> PairId:
        """Measure one pair of an OutboxRelay from now on, and no other of it; returns which it is."""
        # Another Secret: nobody shares a session with somebody else's login.
        values = {"credentialsSecretRef": {"name": login or name}} | database
        [pair] = pairs(self.database, raw_topic(topic), **values)
        pair = replace(pair, key=Key("shop", name))
        self.measurer.measure(pair.key, [pair])
        return PairId.of(pair)

    async def connect(self, login: LoginId) -> PostgresSession:
        database = self.database
        return await PostgresSession.open(Login(login.database, database.user, database.password, ca_file=None))

    def report(self, pair: PairId, measurement: Measurement) -> None:
        self.reports.setdefault(pair, []).append(measurement)
        if isinstance(measurement, Backlog):
            self.most_sessions = max(self.most_sessions, self.open_sessions())

    def open_sessions(self) -> int:
        """Of the operator, to this database."""
        [(count,)] = self.watcher.execute(
            "select count(*) from pg_stat_activity where application_name = %s and datname = current_database()",
            [APPLICATION_NAME],
        )
        return int(count)

    def newest(self, pair: PairId) -> Measurement | None:
        return self.reports.get(pair, [None])[-1]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@asynccontextmanager
async def measuring(database: Database) -> AsyncIterator[World]:
    """A world whose measurer is closed at the end."""
    world = World(database, database.connect())
    world.measurer = DatabaseMeasurer(
        connect=world.connect,
        report=world.report,
        interval=1.0,
        clock=time.monotonic,
        wall=time.time,
        chance=random.random,
        max_sessions=2,
    )
    try:
        yield world
    finally:
        await world.measurer.close()
        world.watcher.close()


async def test_os_03_sixty_silent_servers_do_not_delay_one_that_is_well(database: Database) -> None:
    """cases.md OS-03: what does not answer costs those that do neither time nor connections."""
    async with measuring(database) as world:
        with contextlib.ExitStack() as listeners:
            silent = []
            for number in range(SILENT):
                host = f"127.90.0.{number + 1}"
                listener = listeners.enter_context(socket.socket())
                listener.bind((host, database.port))
                listener.listen()
                silent.append(world.measure(f"silent-{number}", host=host))
            well = [world.measure(f"well-{number}") for number in range(ALIKE)]
            await world.until(lambda: all(len(world.reports.get(pair, ())) >= 5 for pair in well))
            assert all(isinstance(found, Backlog) for pair in well for found in world.reports[pair])
            assert world.most_sessions <= 2
            await world.until(lambda: all(pair in world.reports for pair in silent))
            await world.measurer.close()
        assert all(isinstance(found, Failure) for pair in silent for found in world.reports[pair])


async def test_os_03_resources_that_are_edited_all_the_time_cost_two_sessions(database: Database) -> None:
    """cases.md OS-03: with more logins than sessions; none of the sessions that an edit made useless stays open."""
    async with measuring(database) as world:
        for edit in range(EDITS):
            edited = [
                world.measure(f"r{number}", login=f"l{number % LOGINS}", topic=f"t{edit}") for number in range(MANY)
            ]
            await world.until(lambda edited=edited: any(pair in world.reports for pair in edited))  # type: ignore[misc]
        await world.until(lambda: all(pair in world.reports for pair in edited))
        assert all(isinstance(found, Backlog) for found in map(world.newest, edited))
        assert 1 <= world.most_sessions <= 2
        for number in range(MANY):
            world.measurer.measure(Key("shop", f"r{number}"), ())
        await world.until(lambda: world.open_sessions() == 0)


async def test_os_03_a_server_that_takes_no_more_connections_is_tried_again_later() -> None:
    """cases.md OS-03: those that have a session go on, and nobody is told of a wrong login."""
    with LocalPostgres(fsync=False, settings={"max_connections": "10"}) as server:
        database = server.create_database()
        create_outbox_table(database)
        async with measuring(database) as world:
            well = world.measure("well")
            await world.until(lambda: isinstance(world.newest(well), Backlog))
            with contextlib.ExitStack() as others:
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        others.enter_context(database.connect())
                late = world.measure("late")
                await world.until(lambda: len(world.reports.get(late, ())) >= 2)
                refused = world.newest(late)
                assert isinstance(refused, Failure)
                assert refused.reason == "DatabaseUnreachable"
                assert "the server takes no more connections" in refused.message
                seen = len(world.reports[well])
                await world.until(lambda: len(world.reports[well]) > seen + 2)
            await world.until(lambda: isinstance(world.newest(late), Backlog))
            assert all(isinstance(found, Backlog) for found in world.reports[well])
