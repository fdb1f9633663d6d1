"""A broker that has just started, as KRaft brokers are for a moment: it answers, but knows of no broker any more.

While it catches up it still lists itself as it was before, then it is fenced and lists nobody, then it is unfenced.
This one stands on the port of a stopped broker and speaks just enough of the Kafka protocol for the first two steps:
ApiVersions, and Metadata version 1 (https://kafka.apache.org/protocol), whose first answer on a connection lists the
broker, and the later ones nobody. librdkafka 2.12 to 2.16 then forgets all its brokers, and after one to a dozen
such answers it never asks again (https://github.com/confluentinc/librdkafka/issues/5301).
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
import time
from types import TracebackType
from typing import Self

_API_VERSIONS, _METADATA = 18, 3
_UNSUPPORTED_VERSION, _LEADER_NOT_AVAILABLE = 35, 5

# API key, lowest and highest version: what a client checks before it uses a feature.
_APIS = ((0, 3, 7), (_METADATA, 1, 1), (_API_VERSIONS, 0, 0), (22, 0, 1), (32, 1, 1))


def _api_versions(version: int) -> bytes:
    # A version we do not know is answered in the format of version 0, with what we do know.
    error = 0 if version == 0 else _UNSUPPORTED_VERSION
    return struct.pack(">hi", error, len(_APIS)) + b"".join(struct.pack(">hhh", *api) for api in _APIS)


def _metadata(topic: bytes, *, port: int, listed: bool) -> bytes:
    host, rack = b"127.0.0.1", -1
    broker = struct.pack(f">iih{len(host)}sih", 1, 1, len(host), host, port, rack) if listed else struct.pack(">i", 0)
    controller, topics, partitions = -1, 1, 0
    head = broker + struct.pack(">ii", controller, topics)
    return head + struct.pack(f">hh{len(topic)}s?i", _LEADER_NOT_AVAILABLE, len(topic), topic, False, partitions)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def handle(self) -> None:
        listed = True
        while (size := self.rfile.read(4)) and len(size) == 4:
            request = self.rfile.read(int.from_bytes(size, "big"))
            key, version, correlation = struct.unpack_from(">hhi", request)
            if key == _API_VERSIONS:
                body = _api_versions(version)
            elif key == _METADATA:
                body = _metadata(self.server.topic, port=self.server.server_address[1], listed=listed)
                self.server.denied += not listed
                self.server.asked_at = time.monotonic()
                listed = False
            else:
                return
            answer = struct.pack(">i", correlation) + body
            self.wfile.write(len(answer).to_bytes(4, "big") + answer)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, topic: bytes) -> None:
        self.topic = topic
        self.denied = 0
        self.asked_at = time.monotonic()
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle of a request is nothing new."""


class StartingBroker:
    """Answers on `port` until the end of the `with` block."""

    def __init__(self, *, port: int, topic: str) -> None:
        self._server = _Server(port, topic.encode())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def denied(self) -> int:
        """How often a client was told that there is no broker."""
        return self._server.denied

    @property
    def quiet_seconds(self) -> float:
        """Time since anybody asked for brokers."""
        return time.monotonic() - self._server.asked_at

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in self._server.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=10)
