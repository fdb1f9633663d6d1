"""What the client does with answers that are no answer yet."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outboxrelay_operator.kube import HttpKube, Kind, KubeError

BODY = {"kind": "Deployment", "metadata": {"namespace": "shop", "name": "orders"}}
Answer = tuple[int, dict[str, str]]


class Overloaded:
    """An API server that gives these answers, and then what was asked for."""

    configuration = SimpleNamespace(host="http://server")

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests = 0
        self.slept: list[float] = []

    async def update_params_for_auth(self, *_: object) -> None:
        return

    async def call_api(self, *_: object, **__: object) -> Any:
        self.requests += 1
        status, headers = self.answers.pop(0) if self.answers else (200, {})

        async def read() -> bytes:
            return json.dumps(BODY if status == 200 else {"reason": "TooManyRequests"}).encode()

        return SimpleNamespace(status=status, headers=headers, read=read)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def kube(self) -> HttpKube:
        return HttpKube(cast("Any", self), observe=lambda *_: None, sleep=self.sleep)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_api_server_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_asks(status: int) -> None:
    server = Overloaded((status, {"Retry-After": "1"}), (status, {"Retry-After": "3600"}))
    assert await server.kube().get(Kind.DEPLOYMENT, "shop", "orders") == BODY
    assert server.slept == [1, 10]


async def test_it_is_not_asked_for_ever() -> None:
    server = Overloaded(*[(429, {"Retry-After": "1"})] * 9)
    with pytest.raises(KubeError):
        await server.kube().get(Kind.DEPLOYMENT, "shop", "orders")
    assert (server.requests, server.slept) == (3, [1, 1, 1])


async def test_a_write_is_not_repeated_by_itself() -> None:
    """Before the next attempt somebody has to look who leads now."""
    server = Overloaded((429, {"Retry-After": "1"}))
    with pytest.raises(KubeError) as caught:
        await server.kube().apply(BODY, force=True)
    assert (caught.value.status, server.requests, server.slept) == (429, 1, [1])


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}])
async def test_who_says_nothing_of_a_time_is_asked_again_by_whoever_asked(headers: dict[str, str]) -> None:
    server = Overloaded((503, headers))
    with pytest.raises(KubeError):
        await server.kube().get(Kind.DEPLOYMENT, "shop", "orders")
    assert (server.requests, server.slept) == (1, [])


async def test_who_leads_is_asked_for_without_a_pause() -> None:
    """The Lease runs out meanwhile, and is looked at every other second anyhow."""
    server = Overloaded((429, {"Retry-After": "9"}))
    with pytest.raises(KubeError):
        await server.kube().get(Kind.LEASE, "shop", "outboxrelay")
    assert (server.requests, server.slept) == (1, [])
