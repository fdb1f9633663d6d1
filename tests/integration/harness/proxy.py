"""A TCP proxy on loopback that can fail like a network: cut, refuse, go silent, or break at a certain request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.testbed.services.processes import free_port

CHUNK = 64 * 1024


class Proxy:
    """Forwards 127.0.0.1:`port` to 127.0.0.1:`target`; runs in a thread of its own until the `with` block ends."""

    def __init__(self, *, target: int, answers: Callable[[], Callable[[bytes], bytes]] = lambda: bytes) -> None:
        """`answers` makes, for each connection, what is put between its server and its client."""
        self.port = free_port()
        self.connections = 0
        self._target = target
        self._answers = answers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._open: asyncio.Event | None = None
        self._cut_at: Callable[[bytes], bool] | None = None
        self._refusing = False
        self.cuts = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def silence(self) -> None:
        """Forward nothing any more, as a network that drops packets; connections stay open."""
        self._loop.call_soon_threadsafe(self._gate.clear)

    def speak(self) -> None:
        """Forward again, also what was held."""
        self._loop.call_soon_threadsafe(self._gate.set)

    def cut(self) -> None:
        """Close every connection now."""
        self._run(self._cut())

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections as soon as they come."""
        self._refusing = refusing

    def cut_at(self, condition: Callable[[bytes], bool]) -> None:
        """Once, cut everything instead of forwarding the first request bytes for which `condition` is true."""
        self._cut_at = condition

    @property
    def _gate(self) -> asyncio.Event:
        assert self._open is not None
        return self._open

    def _run(self, coroutine: object) -> None:
        assert asyncio.iscoroutine(coroutine)
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    async def _start(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._gate.set()
        await self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, upstream_writer}
        pumps = {
            asyncio.ensure_future(self._pump(reader, upstream_writer)),
            asyncio.ensure_future(self._pump(upstream_reader, writer, answers=self._answers())),
        }
        self._tasks |= pumps
        try:
            # The end of one direction is the end of both; no protocol here uses half-closed connections.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._tasks -= pumps
            for end in (writer, upstream_writer):
                end.transport.abort()
            self._writers -= {writer, upstream_writer}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: Callable[[bytes], bytes] | None = None,
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._gate.wait()
                if answers is None and self._cut_at is not None and self._cut_at(data):
                    self._cut_at = None
                    self.cuts += 1
                    await self._cut()
                    return
                writer.write(data if answers is None else answers(data))
                await writer.drain()
