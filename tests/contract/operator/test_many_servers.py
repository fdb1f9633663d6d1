"""Servers beside one another: what does not answer costs those that do neither time nor connections (OS-03)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time

from outboxrelay_operator.measure.loop import DatabaseMeasurer
from outboxrelay_operator.measure.server import LoginId
from outboxrelay_operator.measure.session import APPLICATION_NAME, Login, PostgresSession
from outboxrelay_operator.measurements import Backlog, Failure, Measurement, PairId
from outboxrelay_operator.pairs import Key, Pair
from tests.contract.operator.test_session import pairs
from tests.testbed.services.postgres import Database

SILENT = 60
"""Servers that accept a connection and never say anything."""

ALIKE = 5
"""OutboxRelays with logins of their own to the server that is well."""


async def test_sixty_servers_that_are_silent_do_not_delay_one_that_is_well(database: Database) -> None:
    reports: dict[PairId, list[Measurement]] = {}
    sessions: list[int] = []

    async def connect(login: LoginId) -> PostgresSession:
        return await PostgresSession.open(Login(login.database, database.user, database.password, ca_file=None))

    def report(pair: PairId, measurement: Measurement) -> None:
        reports.setdefault(pair, []).append(measurement)
        if isinstance(measurement, Backlog):
            sessions.append(open_sessions(database))

    def measure(key: Key, pair: Pair) -> PairId:
        measurer.measure(key, [pair])
        return PairId(key, pair.name)

    measurer = DatabaseMeasurer(
        connect=connect,
        report=report,
        interval=1.0,
        clock=time.monotonic,
        wall=time.time,
        chance=random.random,
        max_sessions=2,
    )
    with contextlib.ExitStack() as listeners:
        silent = []
        for number in range(SILENT):
            host = f"127.90.0.{number + 1}"
            listener = listeners.enter_context(socket.socket())
            listener.bind((host, database.port))
            listener.listen()
            [pair] = pairs(database, host=host)
            silent.append(measure(Key("shop", f"silent-{number}"), pair))
        try:
            well = []
            for number in range(ALIKE):
                # Another Secret: nobody shares a session with somebody else's login.
                [pair] = pairs(database, credentialsSecretRef={"name": f"login-{number}"})
                well.append(measure(Key("shop", f"well-{number}"), pair))
            async with asyncio.timeout(60):
                while any(len(reports.get(pair, ())) < 5 for pair in well):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert all(isinstance(found, Backlog) for pair in well for found in reports[pair])
            assert max(sessions) <= 2
            async with asyncio.timeout(60):
                while any(pair not in reports for pair in silent):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await measurer.close()
    assert all(isinstance(found, Failure) for pair in silent for found in reports[pair])


def open_sessions(database: Database) -> int:
    """Of the operator, to this database."""
    [(count,)] = database.execute(
        "select count(*) from pg_stat_activity where application_name = %s and datname = current_database()",
        [APPLICATION_NAME],
    )
    return int(count)
