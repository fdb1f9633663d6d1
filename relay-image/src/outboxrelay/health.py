"""The relay's HTTP side: /livez, /readyz, /metrics and /status.

Runs in threads that do nothing until asked: a busy second Python thread would starve the loop of the interpreter.
It only reads the status board; /status?look also waits a moment for a look at the table.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from outboxrelay import metrics
from outboxrelay.looking import Looker
from outboxrelay.status import StatusBoard

_REQUEST_TIMEOUT_SECONDS: Final = 5.0

_LOOK_SECONDS: Final = 1.5
"""How long to wait for a look that is under way: whoever asks gives up after 3 s."""


class Answer(NamedTuple):
    """What is sent back."""

    status: HTTPStatus
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[], Answer]]
"""The answer to a GET by path; with a query if that matters."""


def routes(board: StatusBoard, *, dead_after_seconds: float, looker: Looker | None = None) -> Routes:
    """The answers by path. `dead_after_seconds`: age of the last cycle at which /livez fails."""
    registry = metrics.registry(board)

    def livez() -> Answer:
        age = board.seconds_since_tick()
        if age > dead_after_seconds:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"no cycle was completed for {age:.0f} s\n")
        return _text(HTTPStatus.OK, "ok\n")

    def readyz() -> Answer:
        if board.ready:
            return _text(HTTPStatus.OK, "ok\n")
        return _text(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"database: {board.database.reason} {board.database.message}\n"
            f"broker: {board.broker.reason} {board.broker.message}\n",
        )

    def exposition() -> Answer:
        return Answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", metrics.render(registry))

    def status() -> Answer:
        return Answer(HTTPStatus.OK, "application/json", board.report().model_dump_json().encode())

    def status_and_look() -> Answer:
        look = None if looker is None else looker.newest(within=_LOOK_SECONDS)
        report = board.report().model_copy(update={"look": look})
        return Answer(HTTPStatus.OK, "application/json", report.model_dump_json().encode())

    return {
        "/livez": livez,
        "/readyz": readyz,
        "/metrics": exposition,
        "/status": status,
        "/status?look": status_and_look,
    }


def waiting_routes(wanted: str) -> Routes:
    """The answers while the configuration with the digest `wanted` has not arrived: alive, not ready."""
    return {
        "/livez": lambda: _text(HTTPStatus.OK, "ok\n"),
        "/readyz": lambda: _text(HTTPStatus.SERVICE_UNAVAILABLE, f"waiting for configuration {wanted}\n"),
    }


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode())


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        known = self.server.routes
        route = known.get(self.path) or known.get(self.path.split("?", 1)[0])
        answer = _text(HTTPStatus.NOT_FOUND, "not found\n") if route is None else route()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Probes come every few seconds; they are not worth a line."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], routes: Routes) -> None:
        self.routes = routes
        if ":" in address[0] or not address[0]:
            self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that went away in the middle is not worth a traceback."""


class HealthServer:
    """Serves the answers in the background from `start` to `stop`."""

    def __init__(self, *, host: str, port: int, routes: Routes) -> None:
        """Binds at once; raises OSError if the address cannot be had."""
        self._server = _Server((host, port), routes)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port in use, also if 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
