"""Leaders that are stopped, and watches that a proxy spoils: what was changed meanwhile is seen all the same.

Covers OS-01 (a watch that is silent, or cut again and again) and OS-05 (a leader that was paused writes nothing when
it goes on). The operator that is paused is a process of its own, as it is in a pod.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from outboxrelay_operator import handlers, runtime
from outboxrelay_operator.names import pair_name
from tests.testbed.services.processes import free_port
from tests.wire.world import NAMESPACE, PATIENCE_SECONDS, World, kubeconfig, operator, outbox_relay, secret

LEASE = ("leases", "system", "outboxrelay-operator")
LEASE_SECONDS = 6


def pair(name: str) -> str:
    return pair_name(relay=name, database="orders", topic="orders")


@asynccontextmanager
async def operator_process(world: World, directory: Path, *, name: str) -> AsyncIterator[Process]:
    """An operator in a process of its own, whose requests carry its name as token; it is killed at the end."""
    environment = {
        "HOME": str(directory),
        "PATH": os.defpath,
        "KUBECONFIG": str(kubeconfig(world.server, directory, token=name)),
        "OUTBOXRELAY_NAMESPACES": NAMESPACE,
        "OUTBOXRELAY_LEASE_SECONDS": str(LEASE_SECONDS),
        "OUTBOXRELAY_LISTEN_PORT": "0",
        "OUTBOXRELAY_MEASURE_INTERVAL_SECONDS": "1",
        "OUTBOXRELAY_RESYNC_SECONDS": "10",
        "POD_NAME": name,
        "POD_NAMESPACE": "system",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "outboxrelay_operator", env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def holder(world: World) -> str:
    """The pod that leads."""
    lease = world.server.objects.get(LEASE) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]


async def test_os_05_a_paused_leader_writes_nothing_when_it_goes_on(world: World, tmp_path: Path) -> None:
    """cases.md OS-05: stopped in the middle of a pass, and the answer that it waited for is out of date by then."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator_process(world, tmp_path, name="first") as first:
        await world.until_ready("True", "Flowing")
        async with operator_process(world, tmp_path, name="second"):
            await world.until(lambda: world.server.count("GET", "outboxrelays?watch") == 2, "the second to stand by")
            world.server.mute.add("deployments")
            passes = begun(world)
            world.server.put("outboxrelays", outbox_relay(replicas=2))
            await world.until(lambda: begun(world) > passes, "the pass that will be stopped")
            os.kill(first.pid, signal.SIGSTOP)
            try:
                world.server.mute.clear()
                await world.until(lambda: holder(world) == "second", "the other one to lead")
                world.server.put("outboxrelays", outbox_relay(replicas=3))
                await world.until(lambda: replicas(world) == 3, "the newer edit to be carried out")
                await world.until_ready("True", "Flowing")
                resumed = len(world.server.writes)
            finally:
                os.kill(first.pid, signal.SIGCONT)
            assert await first.wait() == 1
            written = [write for write in world.server.writes[resumed:] if write.by == "first"]
            # It may have been stopped between reading the Lease and renewing it; that is refused.
            assert [write for write in written if "/leases/" not in write.path or write.status != 409] == []
            assert replicas(world) == 3
            assert holder(world) == "second"
            assert world.server.objects[LEASE]["spec"]["leaseTransitions"] == 1


def begun(world: World) -> int:
    """How many passes have read the Deployments of a resource."""
    return sum("/deployments?" in path and "instance" in path for _, path in world.server.requests)


def replicas(world: World, name: str = "shop") -> int | None:
    """Of the Deployment of a resource's only pair."""
    found = world.stored("deployments", pair(name))
    return None if found is None else found["spec"]["replicas"]


Spoil = Callable[[World], None]

SPOILS: dict[str, Spoil] = {
    "410": lambda world: world.server.expire(),
    "cut": lambda world: world.server.cut(),
    "silent": lambda world: world.server.freeze(),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
async def test_os_01_changes_are_seen_through_watches_that_a_proxy_spoils(
    spoil: Spoil, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases.md OS-01. Nothing is waited for but the watch: resyncs are an hour away."""
    monkeypatch.setattr(handlers, "SILENT_WATCH_SECONDS", 1.0)

    world.server.put("secrets", secret())
    async with operator(world):
        await world.until(lambda: world.server.count("GET", "outboxrelays?watch"), "a watch")
        for count in (1, 2, 3):
            spoil(world)
            world.server.put("outboxrelays", outbox_relay(replicas=count))
            await world.until(lambda count=count: replicas(world) == count, "the change to be carried out")  # type: ignore[misc]
        await world.until_ready("True", "Flowing")
        await world.until_calm(rounds=3)
        reads = world.server.count("GET", f"/namespaces/{NAMESPACE}/outboxrelays/shop")
        spoil(world)
        world.server.drop("deployments", NAMESPACE, pair("shop"))
        await world.until(lambda: replicas(world) == 3, "the Deployment to come back")
        assert world.server.count("GET", f"/namespaces/{NAMESPACE}/outboxrelays/shop") > reads


@pytest.mark.parametrize("plurals", [(), ("deployments",)], ids=["every watch", "that of Deployments"])
@pytest.mark.parametrize("others", [("other",), ()], ids=["another is left", "none is left"])
async def test_os_01_a_deployment_that_went_between_two_lists_comes_back(
    others: tuple[str, ...], plurals: tuple[str, ...], world: World
) -> None:
    """cases.md OS-01: no list tells what is gone, and resyncs are an hour away."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    for name in others:
        world.server.put("outboxrelays", outbox_relay(name, dbname=f"{name}s"))
    async with operator(world):
        for name in ("shop", *others):
            await world.until_ready("True", "Flowing", name)
        await world.until_calm(rounds=3)
        world.server.delivering = False
        world.server.drop("deployments", NAMESPACE, pair("shop"))
        world.server.expire(*plurals)
        world.server.delivering = True
        await world.until(lambda: replicas(world) == 1, "the Deployment to come back")


async def test_os_01_a_resource_that_no_watch_tells_of_is_found(world: World) -> None:
    """cases.md OS-01: also if the watch is lost for good and does not know it."""
    world.server.put("secrets", secret())
    async with operator(world, resync_seconds=2.0):
        await world.until(lambda: world.server.count("GET", "outboxrelays?watch"), "a watch")
        world.server.delivering = False
        world.server.put("outboxrelays", outbox_relay())
        await world.until_ready("True", "Flowing")
        world.server.put("outboxrelays", outbox_relay(replicas=2))
        await world.until(lambda: replicas(world) == 2, "the edit to be carried out")


@pytest.mark.parametrize("page", ["<html>Please sign in</html>", "{}", "[]", "null"])
async def test_os_01_an_answer_that_is_none_ends_nothing(page: str, world: World) -> None:
    """cases.md OS-01: a proxy or a load balancer answers instead of the API server for a while."""
    world.server.page = page
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world, resync_seconds=1.0):
        await world.until_ready("True", "Flowing")
        for plural in ("leases", "configmaps"):
            world.server.paged.add(plural)
            asked = world.server.count("GET", f"/{plural}")
            await world.until(lambda p=plural, n=asked: world.server.count("GET", f"/{p}") > n + 1, "two such answers")  # type: ignore[misc]
            world.server.paged.clear()
        world.server.put("outboxrelays", outbox_relay(replicas=2))
        await world.until(lambda: replicas(world) == 2, "the edit to be carried out")


@pytest.mark.parametrize("resources", [0, 1])
async def test_os_01_who_hears_nothing_is_started_again(
    resources: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases.md OS-01: neither watch nor resync, while everything else (leadership, pods, databases) goes on."""
    monkeypatch.setattr(runtime, "SILENCE_SECONDS", 6.0)
    port = free_port()

    async def alive() -> tuple[int, str]:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/livez") as answer:
            return answer.status, await answer.text()

    world.server.put("secrets", secret())
    for _ in range(resources):
        world.server.put("outboxrelays", outbox_relay())
    async with operator(world, resync_seconds=1.0, listen_port=port):
        await world.until(lambda: world.server.lists.count("outboxrelays") > 3, "some resyncs")
        assert await alive() == (200, "ok")
        world.server.mute.add("outboxrelays")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await alive())[0] == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert answer[0] == 503
        assert answer[1].startswith("resync: ")
        world.server.mute.clear()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await alive())[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
