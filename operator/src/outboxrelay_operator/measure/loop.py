"""Keeps one task for each PostgreSQL server that any resource names."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from outboxrelay_operator.conflicts import ServerId, server_id
from outboxrelay_operator.measure.server import MAX_SESSIONS, Connect, Report, ServerMeasurer
from outboxrelay_operator.measurements import PairId
from outboxrelay_operator.pairs import Key, Pair

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Server:
    measurer: ServerMeasurer
    pairs: dict[PairId, Pair] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Measurer(Protocol):
    """Keeps the memory supplied with fresh measurements of the pairs that it is told of."""

    def measure(self, key: Key, pairs: Iterable[Pair]) -> None:
        """From now on measure exactly these pairs of a resource."""

    def retry_soon(self, pairs: Iterable[Pair]) -> None:
        """Try refused logins of these pairs again at once: a Secret changed."""

    async def close(self) -> None:
        """Stop measuring and end every session."""


class DatabaseMeasurer:
    """Which pairs are measured, and the tasks that do it. Use on one event loop."""

    def __init__(
        self,
        *,
        connect: Connect,
        report: Report,
        interval: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
        chance: Callable[[], float] = random.random,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        """`max_sessions` are open to one server at a time, whoever uses it."""
        self._max_sessions = max_sessions
        self._connect = connect
        self._report = report
        self._interval = interval
        self._clock = clock
        self._wall = wall
        self._chance = chance
        self._servers: dict[ServerId, _Server] = {}
        self._pairs: dict[Key, dict[PairId, Pair]] = {}

    def measure(self, key: Key, pairs: Iterable[Pair]) -> None:
        """From now on measure exactly these pairs of a resource."""
        after = {PairId.of(pair): pair for pair in pairs}
        before = self._pairs.get(key, {})
        if after == before:
            return
        if after:
            self._pairs[key] = after
        else:
            self._pairs.pop(key, None)
        for pair_id in before:
            for server in self._servers.values():
                server.pairs.pop(pair_id, None)
        for pair_id, pair in after.items():
            server = self._server(server_id(pair))
            server.pairs[pair_id] = pair
            server.wake.set()

    def retry_soon(self, pairs: Iterable[Pair]) -> None:
        """Try refused logins of these pairs again at once: a Secret changed."""
        for name in {server_id(pair) for pair in pairs}:
            server = self._servers.get(name)
            if server is not None:
                server.measurer.retry_soon()
                server.wake.set()

    async def close(self) -> None:
        """Stop measuring and end every session."""
        tasks = [server.task for server in self._servers.values() if server.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._servers.clear()

    def _server(self, name: ServerId) -> _Server:
        server = self._servers.get(name)
        if server is None:
            measurer = ServerMeasurer(
                connect=self._connect,
                report=self._report,
                interval=self._interval,
                clock=self._clock,
                wall=self._wall,
                chance=self._chance,
                max_sessions=self._max_sessions,
            )
            server = self._servers[name] = _Server(measurer=measurer)
            server.task = asyncio.create_task(self._run(name, server), name=f"measure {_text(name)}")
        return server

    async def _run(self, name: ServerId, server: _Server) -> None:
        try:
            while server.pairs:
                server.wake.clear()
                began = self._clock()
                try:
                    await server.measurer.round(dict(server.pairs))
                except Exception:
                    logger.exception("Measuring %s failed unexpectedly; it is tried again", _text(name))
                # A spread of 10 % keeps servers from being measured in step.
                pause = self._interval * (0.95 + 0.1 * self._chance())
                # While resources come all the time, there must be a pause all the same: where there are more logins
                # than sessions, every round logs in anew, which costs both sides more than the measuring.
                rest = min(pause, self._clock() - began)
                await asyncio.sleep(rest)
                try:
                    async with asyncio.timeout(pause - rest):
                        await server.wake.wait()
                except TimeoutError:
                    continue
        finally:
            if self._servers.get(name) is server:
                del self._servers[name]
            await server.measurer.close()


def _text(name: ServerId) -> str:
    return f"{name[0]}:{name[1]}"
