"""Asking the relay pods: what cannot be listed is not taken for nothing, and a pod sends the operator nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from outboxrelay.report import Look
from outboxrelay_operator.display import timestamp
from outboxrelay_operator.kube import Kind, Kube, KubeError, Object
from outboxrelay_operator.measure.pods import PodWatch, pod_state
from outboxrelay_operator.measure.relays import RelayMeasurer
from outboxrelay_operator.measurements import Backlog, Measurement, PairId
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.names import PAIR_LABEL
from tests.unit.operator.builders import KEY, NOW, pair, report
from tests.unit.operator.test_relays import WAITING

PAIR = PairId(KEY, "p")
POD: Object = {
    "metadata": {"name": "p-1", "namespace": KEY.namespace, "uid": "u", "labels": {PAIR_LABEL: "p"}},
    "status": {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


class Pods:
    """The one call that `PodWatch` makes of `Kube`."""

    def __init__(self) -> None:
        self.error: KubeError | None = None
        self.pod = POD

    async def list(self, kind: Kind, namespace: str | None, *, selector: str, cached: bool) -> list[Object]:
        assert (kind, namespace, bool(selector), cached) == (Kind.POD, KEY.namespace, True, True)
        if self.error is not None:
            raise self.error
        return [self.pod]


@asynccontextmanager
async def server(answer: Callable[[web.Request], web.StreamResponse]) -> AsyncIterator[int]:
    """A relay pod on loopback whose /status is `answer`; yields its port."""
    visited: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        visited.append(request.path)
        return answer(request)

    application = web.Application()
    application.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield int(runner.addresses[0][1])
        assert set(visited) <= {"/status"}
    finally:
        await runner.cleanup()


def watch(
    kube: Pods, port: int, looking: RelayMeasurer | None = None, *, wall: Callable[[], float] = lambda: NOW
) -> tuple[PodWatch, Memory]:
    memory = Memory(changed=lambda _key: None)
    memory.watch(KEY, [PAIR])
    pods = PodWatch(
        kube=cast("Kube", kube),
        namespaces=[KEY.namespace],
        memory=memory,
        interval=5.0,
        wall=wall,
        port=port,
        looking=looking,
    )
    return pods, memory


async def test_what_is_kept_of_a_pod_until_the_next_list_is_what_is_read() -> None:
    kube = Pods()
    kube.pod = POD | {"spec": {"containers": [{"name": "relay"}]}}
    kube.pod["metadata"] = POD["metadata"] | {"annotations": {"a": "long" * 100}, "managedFields": [{}]}
    async with aiohttp.ClientSession() as http:
        pods, memory = watch(kube, 9)
        await pods.refresh(http)
        [kept] = pods._listed[KEY.namespace]
    assert [pod.name for pod in memory.pods(PAIR)] == ["p-1"]
    assert kept == {"metadata": POD["metadata"] | {"annotations": {}}, "status": POD["status"]}


async def test_a_chosen_pod_also_looks() -> None:
    queries: list[str] = []

    def answer(request: web.Request) -> web.StreamResponse:
        queries.append(request.query_string)
        return web.Response(text=report(look=Look(at=NOW, repeat_seconds=1.0, waiting=WAITING)).model_dump_json())

    told: list[Measurement] = []
    looking = RelayMeasurer(report=lambda _, found: told.append(found))
    async with server(answer) as port, aiohttp.ClientSession() as http:
        pods, _ = watch(Pods(), port, looking)
        await pods.refresh(http)
        looking.measure(KEY, [replace(pair(), name="p")])
        await pods.refresh(http)
    assert queries == ["", "look"]
    assert [found.rows for found in told if isinstance(found, Backlog)] == [3]


async def test_pods_that_cannot_be_listed_are_those_of_before() -> None:
    kube = Pods()
    body = report(rate_per_second=7.0).model_dump_json()
    async with server(lambda _: web.Response(text=body)) as port, aiohttp.ClientSession() as http:
        pods, memory = watch(kube, port)
        broken = kube.error = KubeError("listing", status=500, reason="InternalError", message="etcd is away")
        await pods.refresh(http)
        assert memory.rates(PAIR, now=NOW).sent is None, "nobody has looked yet"
        kube.error = None
        await pods.refresh(http)
        assert memory.rates(PAIR, now=NOW).sent == 7.0
        kube.error = broken
        await pods.refresh(http)
        assert [pod.name for pod in memory.pods(PAIR)] == ["p-1"]
        assert memory.rates(PAIR, now=NOW).sent == 7.0


async def test_a_redirect_is_not_followed() -> None:
    def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"http://{request.host}/admin"})

    async with server(elsewhere) as port, aiohttp.ClientSession() as http:
        pods, memory = watch(Pods(), port)
        await pods.refresh(http)
        [pod] = memory.pods(PAIR)
        assert pod.report is None


def _container(**state: Any) -> Object:
    return POD | {"status": POD["status"] | {"containerStatuses": [state]}}


LOG = """{"level": "info", "message": "starting"}
{"level": "critical", "message": "cannot use configuration: lanes is 0"}
"""


def _between_crashes(*, seconds: float, ready: bool) -> Object:
    ended = {"exitCode": 2, "message": LOG, "finishedAt": timestamp(NOW - seconds)}
    return {"state": {"running": {}}, "ready": ready, "lastState": {"terminated": ended}}


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        ({"state": {"running": {}}}, None),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, None),
        ({"state": {"terminated": {"exitCode": 0}}}, None),
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            ("ImagePullBackOff", "no such image"),
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                "lastState": {"terminated": {"exitCode": 2, "message": LOG}},
            },
            ("CrashLoopBackOff", "cannot use configuration: lanes is 0"),
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                "lastState": {"terminated": {"exitCode": 137}},
            },
            ("CrashLoopBackOff", "back-off 10s restarting"),
        ),
        (
            {"state": {"terminated": {"exitCode": 2, "message": "Traceback\nValueError: bad row {'card': 4111}\n"}}},
            ("Exited", "code 2"),
        ),
        ({"state": {"terminated": {"exitCode": 2, "message": '["a list"]'}}}, ("Exited", "code 2")),
        ({"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}, ("Exited", "code 137 (OOMKilled)")),
        ({"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}, ("Exited", "code 1")),
        (_between_crashes(seconds=300, ready=False), ("Exited", "code 2 cannot use configuration: lanes is 0")),
        (_between_crashes(seconds=300, ready=True), None),
        (_between_crashes(seconds=3600, ready=False), None),
        # Of a container that was lost with its node; of such a time the API server says null.
        (
            {
                "state": {"waiting": {"reason": "ContainerCreating"}},
                "ready": False,
                "lastState": {"terminated": {"exitCode": 137, "startedAt": None, "finishedAt": None}},
            },
            None,
        ),
        (
            {"state": {"terminated": {"exitCode": 2, "message": '{"message": "' + "m" * 5000 + '"}'}}},
            ("Exited", "code 2 " + "m" * 293),
        ),
    ],
)
def test_why_a_container_does_not_run(container: dict[str, Any], problem: tuple[str, str] | None) -> None:
    assert pod_state(_container(**container), None, believe_until=NOW, now=NOW).problem == problem


def test_a_pod_that_no_node_takes() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    body = POD | {"status": {"phase": "Pending", "conditions": [unscheduled]}}
    assert pod_state(body, None, believe_until=NOW, now=NOW).problem == ("Unschedulable", "0/3 nodes")


async def test_an_answer_that_fails_leaves_the_one_of_before_until_it_is_too_old() -> None:
    """On a busy node one is late now and then: no reason to write a status that knows less, and one more after it."""
    kube, now, well = Pods(), [NOW], [True]

    def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=report().model_dump_json()) if well[0] else web.Response(status=503)

    async with server(answer) as port, aiohttp.ClientSession() as http:
        pods, memory = watch(kube, port, wall=lambda: now[0])

        async def reported(after: float) -> bool:
            now[0] += after
            await pods.refresh(http)
            [pod] = memory.pods(PAIR)
            return pod.fresh_report(now[0]) is not None

        assert await reported(0)
        well[0] = False
        assert await reported(10)
        assert await reported(10)
        assert not await reported(1)
        well[0] = True
        assert await reported(5)
        well[0] = False
        kube.pod = POD | {"status": POD["status"] | {"phase": "Failed"}}
        assert not await reported(1), "it runs no more"
