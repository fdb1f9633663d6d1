"""How the informer ends: at once, whatever it is doing, and without another request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from kopf._cogs.clients import watching

from outboxrelay_operator import handlers
from outboxrelay_operator.handlers import Informer
from outboxrelay_operator.kube import Kind
from outboxrelay_operator.names import labels
from outboxrelay_operator.pairs import Key
from tests.wire.fake_apiserver import Object
from tests.wire.world import NAMESPACE, PATIENCE_SECONDS, World, outbox_relay, secret

Begin = Callable[[World], None]

BEGINNINGS: dict[str, tuple[Begin, str]] = {
    "asking what there is": (lambda world: world.server.mute.add("apis"), "/apis"),
    "listing": (lambda world: world.server.mute.add("outboxrelays"), "/outboxrelays?"),
    "being refused": (lambda world: world.server.forbidden.add(NAMESPACE), "/outboxrelays?"),
    "watching": (lambda _: None, "/outboxrelays?watch"),
}


@pytest.mark.parametrize(("begin", "request_"), BEGINNINGS.values(), ids=BEGINNINGS.keys())
async def test_it_asks_nothing_more_once_it_was_told_to_end(
    begin: Begin, request_: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """By its own stop flag kopf goes on for five seconds with what it was about, through a session that is closed."""
    begin(world)
    informer = Informer(namespace=NAMESPACE, notify=lambda *_: None, listed=lambda: None, clock=time.monotonic)
    informer.start()
    await world.until(lambda: world.server.count("GET", request_), f"a request for {request_}")
    informer.stop()
    # What is on its way arrives before anything that is sent later.
    await asyncio.sleep(0.1)
    asked = len(world.server.requests)
    await asyncio.to_thread(informer.join, PATIENCE_SECONDS)
    assert world.server.requests[asked:] == []
    assert "will re-authenticate" not in caplog.text


async def test_it_leaves_no_session_open_that_kopf_forgets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled in the wrong moment, kopf opens a session after it closed all of them."""
    before = _open_sessions()

    async def forget(_: object) -> None:
        return

    monkeypatch.setattr("kopf._cogs.clients.auth.APIContext.close", forget)
    informer = Informer(namespace=NAMESPACE, notify=lambda *_: None, listed=lambda: None, clock=time.monotonic)
    informer.start()
    await world.until(lambda: world.server.count("GET", "/outboxrelays?watch"), "a watch")
    assert _open_sessions() - before
    informer.stop()
    await asyncio.to_thread(informer.join, PATIENCE_SECONDS)
    assert _open_sessions() == before


async def test_it_begins_anew_although_another_watch_does_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf waits without any limit for a watch whose cancellation is lost, and so nobody is told of anything."""
    watch, lost = watching.continuous_watch, 0

    async def continuous_watch(**arguments: Any) -> AsyncIterator[Any]:
        nonlocal lost
        if arguments["resource"].plural == "deployments" and lost == 0:
            while lost < 2:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                lost += 1
            await asyncio.Event().wait()
        async for event in watch(**arguments):
            yield event
            if lost == 0:
                raise watching.WatchingError("etcd has another leader")

    monkeypatch.setattr(watching, "continuous_watch", continuous_watch)
    monkeypatch.setattr(handlers, "_ENDING_SECONDS", 0.5)
    monkeypatch.setattr(handlers, "_INSIST_SECONDS", 0.1)
    told: list[Key] = []
    informer = Informer(
        namespace=NAMESPACE, notify=lambda k, *_: told.append(k), listed=lambda: None, clock=time.monotonic
    )
    world.server.put("outboxrelays", outbox_relay())
    informer.start()
    await world.until(lambda: world.server.count("GET", "/outboxrelays?watch"), "another watch")
    informer.stop()
    await asyncio.to_thread(informer.join, PATIENCE_SECONDS)
    assert (lost, set(told)) == (2, {Key(NAMESPACE, "shop")})


async def test_it_tells_of_each_list_also_of_an_empty_one(world: World) -> None:
    """kopf hands on the objects alone, and what went meanwhile is none of them."""
    lists: list[None] = []
    informer = Informer(
        namespace=NAMESPACE, notify=lambda *_: None, listed=lambda: lists.append(None), clock=time.monotonic
    )
    informer.start()
    for number in (1, 2):
        await world.until(lambda n=number: world.server.count("GET", "?watch") == 2 * n, "both watches")  # type: ignore[misc]
        assert len(lists) == 2 * number
        # Something happened that the watches have not told of.
        world.server.put("secrets", secret())
        world.server.expire()
    informer.stop()
    await asyncio.to_thread(informer.join, PATIENCE_SECONDS)


async def test_it_hands_on_the_spec_of_a_deployment_once(world: World) -> None:
    """Most of what is told of a Deployment while its pods come up is the same each time, and costs a copy."""
    told: list[tuple[Kind, bool, int]] = []

    def notify(_: Key, kind: Kind, live: Object | None) -> None:
        assert live is not None
        told.append((kind, "spec" in live, (live.get("status") or {}).get("observedGeneration", 0)))

    owner = {"kind": "OutboxRelay", "name": "shop", "uid": "u", "controller": True}
    meta = {"namespace": NAMESPACE, "name": "pair", "labels": labels("shop"), "ownerReferences": [owner]}
    spec = {"replicas": 0, "template": {"metadata": {"annotations": {}}}}
    informer = Informer(namespace=NAMESPACE, notify=notify, listed=lambda: None, clock=time.monotonic)
    informer.start()
    await world.until(lambda: world.server.count("GET", "/deployments?watch"), "a watch")
    stored = world.server.put("deployments", {"metadata": meta, "spec": spec})
    await world.until(lambda: len(told) == 2, "the Deployment, and its status")
    world.server.put("deployments", stored | {"spec": spec | {"paused": True}})
    await world.until(lambda: len(told) == 4, "another spec, and its status")
    informer.stop()
    await asyncio.to_thread(informer.join, PATIENCE_SECONDS)
    kinds, with_spec, observed = zip(*told, strict=True)
    assert (set(kinds), with_spec, observed) == ({Kind.DEPLOYMENT}, (True, False, True, False), (0, 1, 1, 2))


def _open_sessions() -> set[aiohttp.ClientSession]:
    return {thing for thing in gc.get_objects() if type(thing) is aiohttp.ClientSession and not thing.closed}
