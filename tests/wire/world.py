"""A whole operator over HTTP: the fake API server, something that plays Deployment controller and kubelet, relays
that answer /status, and the real `Operator` between them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes.aio.client
import pytest
import yaml
from aiohttp import web

from outboxrelay.report import RelayReport, SideState
from outboxrelay_operator.kube import HttpKube, Observer
from outboxrelay_operator.runtime import Operator
from outboxrelay_operator.settings import Settings
from tests.wire.fake_apiserver import FakeApiServer, Object

NAMESPACE = "shop"
STATUS_PORT = 8080
PATIENCE_SECONDS = 90.0
"""Only bounds what never comes: on a busy machine the informer alone may take half a minute to give up."""


def outbox_relay(name: str = "shop", *, dbname: str = "orders", **spec: Any) -> Object:
    """An OutboxRelay of one pair, defaulted as the real API server would."""
    return {
        "apiVersion": "outboxrelay.io/v1alpha1",
        "kind": "OutboxRelay",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            # Nothing listens there: what is known of the pair comes from its relays.
            "databases": [
                {
                    "name": "orders",
                    "host": "127.0.0.1",
                    "port": 9,
                    "dbname": dbname,
                    "credentialsSecretRef": {"name": "db"},
                }
            ],
            "kafka": {"bootstrapServers": ["kafka:9092"]},
            "topics": [{"name": "orders", "topic": "shop.orders"}],
        }
        | spec,
    }


def secret(name: str = "db", **values: str) -> Object:
    """A Secret; by default a whole login."""
    data = values or {"username": "relay", "password": "S3CR3T-CANARY"}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def well() -> dict[str, Any]:
    """What a relay that is well reports; tests change it in place."""
    side = SideState(ok=True, reason="Connected", since=0.0)
    return {"database": side, "broker": side, "sent_rows": 0, "parked_total": 0}


@dataclass
class Relays:
    """Plays the Deployment controller, the kubelet and the relays themselves: each pod has a loopback address."""

    server: FakeApiServer
    report: dict[str, Any] = field(default_factory=well)
    holding: bool = False
    """Whether new pods of a Deployment that was changed do not get ready."""

    runner: web.AppRunner | None = None
    _pods: dict[str, Object] = field(default_factory=dict)
    _next: int = field(default_factory=lambda: random.randrange(1, 2**15))

    async def run(self) -> None:
        """Give every Deployment its pods, until cancelled."""
        app = web.Application()
        app.router.add_get("/status", self._status)
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        try:
            while True:
                for where in [where for where in self.server.objects if where[0] == "deployments"]:
                    if where in self.server.objects:
                        await self._roll_out(self.server.objects[where])
                self._collect_garbage()
                await asyncio.sleep(0.02)
        finally:
            await self.runner.cleanup()

    async def _roll_out(self, deployment: Object) -> None:
        meta, wanted = deployment["metadata"], deployment["spec"]["replicas"]
        name = f"{meta['name']}-{meta['uid']}"
        template = deployment["spec"]["template"]["metadata"]
        old = name in self._pods and self._pods[name]["metadata"]["annotations"] != template["annotations"]
        if wanted and old and not self.holding:
            before = self._pods[name]
            self._drop(name)
            self._pods[name] = self.server.put("pods", before | {"metadata": before["metadata"] | template})
            old = False
        if wanted and name not in self._pods:
            assert self.runner is not None
            self._next += 1
            address = f"127.{80 + self._next // 2**14}.{self._next // 250 % 250}.{self._next % 250 + 1}"
            await web.TCPSite(self.runner, address, STATUS_PORT).start()
            if self.server.objects.get(("deployments", meta["namespace"], meta["name"])) is not deployment:
                # It was changed or deleted meanwhile.
                return
            body = {
                "metadata": {"namespace": meta["namespace"], "name": name, **template},
                "status": {
                    "phase": "Running",
                    "podIP": address,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            self._pods[name] = self.server.put("pods", body)
        elif not wanted and name in self._pods:
            self._drop(name)
        status = {
            "observedGeneration": meta["generation"],
            "replicas": wanted,
            "updatedReplicas": 0 if old else wanted,
            "readyReplicas": wanted,
        }
        if deployment.get("status") != status:
            self.server.put("deployments", deployment | {"status": status})

    def _collect_garbage(self) -> None:
        owners = {f"{body['metadata']['name']}-{body['metadata']['uid']}" for body in self.deployments()}
        for name in [name for name in self._pods if name not in owners]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        namespace = self._pods.pop(name)["metadata"]["namespace"]
        # A test that plays the end of a namespace has deleted it already.
        if ("pods", namespace, name) in self.server.objects:
            self.server.drop("pods", namespace, name)

    def deployments(self) -> list[Object]:
        """All Deployments there are."""
        return [body for (plural, _, _), body in self.server.objects.items() if plural == "deployments"]

    async def _status(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        [pod] = [pod for pod in self._pods.values() if pod["status"]["podIP"] == address]
        values: dict[str, Any] = {
            "pod": pod["metadata"]["name"],
            "pair": pod["metadata"]["labels"]["outboxrelay.io/pair"],
            "owner": "",
            "started_at": 0.0,
            "now": time.time(),
            "cycles": 1,
            "sent_bytes": 0,
            "rate_per_second": 0.0,
            "lanes": 16,
            "lanes_owned": tuple(range(16)),
            "members": 1,
            "parked": (),
            "row_faults": 0,
            "config_digest": "",
        }
        return web.json_response(text=RelayReport(**(values | self.report)).model_dump_json())


def settings(**changes: Any) -> Settings:
    """Settings of an operator that is quick."""
    values: dict[str, Any] = {
        "namespaces": (NAMESPACE,),
        "relay_image": "outboxrelay/relay:test",
        "relay_image_pull_policy": "IfNotPresent",
        "log_format": "text",
        "log_level": "info",
        "listen_port": 0,
        "pod_name": "operator-0",
        "pod_namespace": "system",
        "lease_name": "outboxrelay-operator",
        "secret_access": True,
        "lease_seconds": 15,
        "max_connections_per_server": 2,
        "max_relay_connections_per_server": None,
        "max_concurrent_rollouts": 10,
        "network": None,
        "measure_interval_seconds": 0.2,
        "resync_seconds": 3600.0,
    }
    return Settings(**(values | changes))


@dataclass
class World:
    """What tests look at and turn."""

    server: FakeApiServer
    relays: Relays

    def stored(self, plural: str, name: str, *, namespace: str = NAMESPACE) -> Object | None:
        """An object as stored now."""
        return self.server.objects.get((plural, namespace, name))

    def ready(self, name: str = "shop", *, namespace: str = NAMESPACE) -> tuple[str, str]:
        """Status and reason of a resource's Ready; empty texts before the first status."""
        body = self.stored("outboxrelays", name, namespace=namespace) or {}
        for condition in (body.get("status") or {}).get("conditions", ()):
            if condition["type"] == "Ready":
                return condition["status"], condition["reason"]
        return "", ""

    async def until(self, holds: Callable[[], object], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until something holds; `seconds` only bounds what never does."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"not within {seconds:g} s: {what}; Ready is {self.ready()}")

    async def until_calm(self, *, rounds: int) -> None:
        """Wait until so many rounds of measuring pass one after the other in which nothing is written."""
        writes, begin = -1, 0

        def calm() -> bool:
            nonlocal writes, begin
            before, writes = writes, self.server.count("PATCH", "")
            now = self.server.lists.count("pods")
            if writes != before:
                begin = now
            return now > begin + rounds

        await self.until(calm, f"{rounds} rounds without a write")

    async def until_ready(self, state: str, reason: str, name: str = "shop", *, namespace: str = NAMESPACE) -> None:
        """Wait for a status and reason of Ready."""
        await self.until(
            lambda: self.ready(name, namespace=namespace) == (state, reason), f"Ready of {name} is {state} {reason}"
        )


def kubeconfig(server: FakeApiServer, directory: Path, *, token: str) -> Path:
    """Write a kubeconfig for the fake API server."""
    entry = {"name": "fake", "cluster": {"server": server.url}, "user": {"token": token}}
    entry |= {"context": {"cluster": "fake", "user": "fake"}}
    path = directory / f"kubeconfig-{token}"
    path.write_text(yaml.dump({"current-context": "fake", "clusters": [entry], "users": [entry], "contexts": [entry]}))
    return path


@contextlib.asynccontextmanager
async def cluster(monkeypatch: pytest.MonkeyPatch, directory: Path) -> AsyncIterator[World]:
    """The fake API server and the relays, and a kubeconfig for the informer; no operator yet."""
    async with FakeApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(server, directory, token="t")))
        relays = Relays(server)
        playing = asyncio.create_task(relays.run())
        try:
            yield World(server, relays)
        finally:
            playing.cancel()
            # Without pods a test fails, too, but for no reason that anybody could see.
            with contextlib.suppress(asyncio.CancelledError):
                await playing


@contextlib.asynccontextmanager
async def operator(world: World, *, exit_code: int = 0, **changes: Any) -> AsyncIterator[asyncio.Task[int]]:
    """A running operator with changed settings; it is stopped at the end, and must then end with `exit_code`.

    Its informers have ended, too, when this does: one that lives on would ask the fake API server while that closes.
    """
    stop, others = asyncio.Event(), set(threading.enumerate())

    async def connect(*, observe: Observer) -> HttpKube:
        configuration = kubernetes.aio.client.Configuration(host=world.server.url)
        return HttpKube(kubernetes.aio.client.ApiClient(configuration), observe=observe)

    chosen = settings(**changes)
    process = Operator(
        settings=chosen,
        clock=time.monotonic,
        wall=time.time,
        chance=random.random,
        identity=f"{chosen.pod_name}_{random.random()}",
    )
    running = asyncio.create_task(process.run(connect=connect, stop=stop))
    try:
        yield running
    finally:
        stop.set()
        code = await running
        for thread in set(threading.enumerate()) - others:
            if thread.name.startswith("informer"):
                await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
                assert not thread.is_alive()
    assert code == exit_code
