"""/livez, /readyz and /metrics, answered by the same event loop that does the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must have happened lately."""

    name: str
    age: Callable[[], float]
    """Seconds since it happened."""

    limit: float


def failing(checks: Sequence[Check]) -> list[str]:
    """What did not happen for too long."""
    return [f"{check.name}: {check.age():.0f} s ago" for check in checks if check.age() > check.limit]


class HealthServer:
    """Listens on all addresses; the kubelet and Prometheus come from outside of the pod."""

    def __init__(self, *, port: int, live: Sequence[Check], ready: Callable[[], bool], registry: CollectorRegistry):
        self._port = port
        self._live = live
        self._ready = ready
        self._registry = registry
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port, also when a free one was asked for."""
        addresses = self._runner.addresses if self._runner else []
        return int(addresses[0][1]) if addresses else 0

    async def start(self) -> None:
        """Raises `OSError` if the port is taken."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host=None, port=self._port).start()

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _request: web.Request) -> web.Response:
        problems = failing(self._live)
        return web.Response(status=503 if problems else 200, text="\n".join(problems) or "ok")

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "not watching yet")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
