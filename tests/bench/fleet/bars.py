"""The bars of scale, each measured in a world of its own kind. Nothing is judged here: figures only."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outboxrelay_operator.desired.relay_config import STATUS_PORT
from outboxrelay_operator.measure.session import APPLICATION_NAME
from outboxrelay_operator.names import OWNED_SELECTOR, selector
from tests.bench.fleet import fleet
from tests.bench.fleet.control_plane import ControlPlane
from tests.bench.fleet.operator import OperatorProcess
from tests.bench.fleet.requests import Request, RequestLog
from tests.testbed.api import Api, Object
from tests.testbed.paths import REPOSITORY
from tests.testbed.relays import relay, topic
from tests.testbed.services.eventually import eventually, pass_time
from tests.testbed.services.postgres import LocalPostgres
from tests.testbed.services.processes import ServiceProcess, remove, service_directory

PAIRS: Final = 2
"""Of each OutboxRelay of the fleet."""

_PATIENCE_SECONDS: Final = 1800.0
_SAMPLE_SECONDS: Final = 10.0
_SETTLING_SECONDS: Final = 240.0
_QUIET_SECONDS: Final = 25.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class World:
    """All that runs, and how to ask it."""

    postgres: LocalPostgres
    databases: fleet.Databases
    plane: ControlPlane
    operator: OperatorProcess
    api: Api
    requests: RequestLog

    def await_ready(self, count: int) -> float:
        """Seconds until so many OutboxRelays are known to be Ready and the operator has no work left."""
        began = time.monotonic()
        eventually(
            lambda: self._ready() >= count,
            seconds=_PATIENCE_SECONDS,
            what=f"{count} OutboxRelays to be Ready",
            # To answer costs the operator a good part of a second.
            interval_seconds=3.0,
            detail=lambda: f"end of the operator's log:\n{self.operator.log.read_text()[-2000:]}",
        )
        return time.monotonic() - began

    def _ready(self) -> int:
        told = self.operator.metrics()
        return 0 if told.total("outboxrelay_operator_queue_depth") else told.count("outboxrelay_ready", 1.0)

    def sessions(self) -> int:
        """Of the operator, to the server."""
        statement = "select count(*) from pg_stat_activity where application_name = %s"
        return int(self.postgres.superuser.execute(statement, [APPLICATION_NAME])[0][0])


@contextmanager
def world(*, crs: int, kwok: Path, profile: Path | None = None) -> Iterator[World]:
    """Everything but the fleet, which is to have `crs` OutboxRelays at the most."""
    with surroundings(crs=crs, kwok=kwok) as (postgres, databases, plane), _relays():
        api = Api(plane.cluster.kubeconfig)
        with OperatorProcess(kubeconfig=plane.operator_kubeconfig, profile=profile) as operator:
            eventually(
                lambda: operator.metrics().total("outboxrelay_operator_leader") == 1.0,
                seconds=_PATIENCE_SECONDS,
                what="the operator to lead",
            )
            yield World(postgres, databases, plane, operator, api, RequestLog(plane.audit_logs))


@contextmanager
def surroundings(*, crs: int, kwok: Path) -> Iterator[tuple[LocalPostgres, fleet.Databases, ControlPlane]]:
    """PostgreSQL with the fleet's tables, and a control plane with its namespaces and logins; no operator."""
    with (
        LocalPostgres(fsync=False, settings={"max_connections": "700", "listen_addresses": "*"}) as postgres,
        ControlPlane(kwok=kwok) as plane,
    ):
        databases = fleet.Databases(postgres, fleet=crs)
        api = Api(plane.cluster.kubeconfig)
        for body in databases.secrets():
            api.create(body)
        yield postgres, databases, plane


@contextmanager
def _relays() -> Iterator[None]:
    directory = service_directory("relays")
    process = ServiceProcess(
        name="relays",
        directory=directory,
        command=(sys.executable, "-m", "tests.bench.fleet.relays"),
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    process.start()
    try:
        process.await_ready(_relays_answer, seconds=_PATIENCE_SECONDS)
        yield
    finally:
        process.kill()
        remove(directory)


def _relays_answer() -> bool:
    try:
        socket.create_connection(("127.64.0.1", STATUS_PORT), timeout=5).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Created:
    """A fleet that was created at once."""

    seconds: float
    """From the first OutboxRelay sent to the last Deployment applied."""

    ready_seconds: float
    """And until all of them are Ready."""

    operator_cpu: float
    """Seconds, until the last Deployment was applied."""

    plane_cpu: float
    applied: tuple[float, ...]
    """When each Deployment was, in seconds since the start."""


def create_at_once(here: World, *, crs: int) -> Created:
    """Create the whole fleet as fast as the API server takes it."""
    bodies = [fleet.outbox_relay(number, here.databases.all) for number in range(crs)]
    here.requests.news()
    operator, plane, began, wall = here.operator.cpu_seconds(), sum_of(here), time.monotonic(), time.time()
    fleet.create(here.plane.cluster, bodies)
    applied: list[float] = []

    def all_applied() -> bool:
        applied.extend(request.at - wall for request in here.requests.news() if _applies_deployment(request))
        return len(applied) >= PAIRS * crs

    eventually(all_applied, seconds=_PATIENCE_SECONDS, what="all Deployments", interval_seconds=0.5)
    operator, plane = here.operator.cpu_seconds() - operator, sum_of(here) - plane
    here.await_ready(crs)
    found = len(here.api.list("Deployment", labels=OWNED_SELECTOR))
    if found != PAIRS * crs:
        raise RuntimeError(f"there are {found} Deployments for {crs} OutboxRelays")
    return Created(
        seconds=max(applied),
        ready_seconds=time.monotonic() - began,
        operator_cpu=operator,
        plane_cpu=plane,
        applied=tuple(applied),
    )


def sum_of(here: World) -> float:
    """CPU seconds of the whole control plane so far."""
    return sum(here.plane.cpu_seconds().values())


def _applies_deployment(request: Request) -> bool:
    return request.verb == "patch" and request.resource == "deployments" and request.code in (200, 201)


@dataclass(frozen=True, slots=True)
class Steady:
    """A time in which nothing changed."""

    seconds: float
    requests: tuple[Request, ...]
    operator_cpu: float
    """Share of one core."""

    plane_cpu: float
    """Share of one core."""

    resident: int
    peak: int
    """Bytes since the operator's start."""

    sessions: int
    """The most that were seen at once."""

    said: tuple[str, ...]
    """What is another in the statuses that were written."""

    @property
    def counted(self) -> list[Request]:
        """Without watches and the Lease."""
        return [request for request in self.requests if request.counts]

    @property
    def status_writes(self) -> int:
        return sum(request.resource == "outboxrelays/status" for request in self.requests)

    @property
    def applies(self) -> int:
        return sum(request.verb in _WRITES and request.resource != "outboxrelays/status" for request in self.counted)


_WRITES: Final = frozenset({"create", "update", "patch", "delete"})


def settle(here: World) -> float:
    """Let what was begun end: rates are known only after a while. Returns the seconds, at most some minutes."""
    began = written = time.monotonic()
    while (now := time.monotonic()) < min(began + _SETTLING_SECONDS, written + _QUIET_SECONDS):
        if any(request.verb in _WRITES and request.counts for request in here.requests.news()):
            written = now
        pass_time(1)
    return written - began


def stay(here: World, *, seconds: float) -> Steady:
    """Let nothing happen."""
    before = _statuses(here)
    here.requests.news()
    operator, plane, began = here.operator.cpu_seconds(), sum_of(here), time.monotonic()
    sessions = 0
    while (left := began + seconds - time.monotonic()) > 0:
        sessions = max(sessions, here.sessions())
        pass_time(min(left, _SAMPLE_SECONDS))
    took = time.monotonic() - began
    requests = tuple(here.requests.news())
    return Steady(
        seconds=took,
        requests=requests,
        operator_cpu=(here.operator.cpu_seconds() - operator) / took,
        plane_cpu=(sum_of(here) - plane) / took,
        resident=here.operator.resident_bytes(),
        peak=here.operator.peak_bytes(),
        sessions=sessions,
        said=tuple(_differences(before, _statuses(here))),
    )


def _statuses(here: World) -> Object:
    """The status of every OutboxRelay, by namespace/name."""
    found = here.api.list("OutboxRelay")
    return {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item.get("status") for item in found}


def _differences(before: object, after: object, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif before != after:
        yield f"{path}: {before} -> {after}"


def edit(here: World, *, crs: int, edits: int) -> list[float]:
    """Seconds from each of a number of spec edits, one after another, to the last Deployment applied."""
    chosen = random.Random(1)
    taken = []
    for _ in range(edits):
        number = chosen.randrange(crs)
        name, namespace = fleet.name_of(number), fleet.namespace_of(number)
        before = here.api.get("OutboxRelay", name, namespace=namespace)["spec"].get("replicas", 1)
        wanted = 3 - before
        owned = [item["metadata"]["name"] for item in _deployments(here, name, namespace)]
        began = time.monotonic()
        here.api.merge("OutboxRelay", name, {"spec": {"replicas": wanted}}, namespace=namespace)
        for deployment in owned:
            _await_replicas(here, namespace, deployment, wanted)
        taken.append(time.monotonic() - began)
    return taken


def _await_replicas(here: World, namespace: str, name: str, wanted: int) -> None:
    eventually(
        lambda: here.api.get("Deployment", name, namespace=namespace)["spec"]["replicas"] == wanted,
        seconds=_PATIENCE_SECONDS,
        what=f"Deployment {namespace}/{name} to follow an edit",
        interval_seconds=0.01,
    )


def _deployments(here: World, name: str, namespace: str) -> list[Object]:
    return here.api.list("Deployment", namespace=namespace, labels=selector(name))


@dataclass(frozen=True, slots=True)
class Restarted:
    """An operator that was stopped and started."""

    seconds: float
    """From the start of the process until every OutboxRelay is known to be Ready and nothing waits."""

    cpu: float
    requests: tuple[Request, ...]
    deployments_changed: int
    pods_replaced: int
    peak: int


def restart(here: World, *, crs: int) -> Restarted:
    """Stop the operator and start it again over a fleet that is well."""
    before = _generations(here), _pods(here)
    here.operator.stop()
    here.requests.news()
    here.operator.start()
    seconds = here.await_ready(crs)
    generations, pods = _generations(here), _pods(here)
    return Restarted(
        seconds=seconds,
        cpu=here.operator.cpu_seconds(),
        requests=tuple(here.requests.news()),
        deployments_changed=len(before[0] ^ generations),
        pods_replaced=len(before[1] ^ pods),
        peak=here.operator.peak_bytes(),
    )


def _generations(here: World) -> set[tuple[str, int]]:
    return {(item["metadata"]["uid"], item["metadata"]["generation"]) for item in here.api.list("Deployment")}


def _pods(here: World) -> set[str]:
    return {item["metadata"]["uid"] for item in here.api.list("Pod")}


@dataclass(frozen=True, slots=True)
class BlackHoles:
    """New OutboxRelays beside servers that do not answer."""

    ready_seconds: tuple[float, ...]
    """Of each from its creation to Ready."""


def black_holes(*, kwok: Path, servers: int, silent: int, fresh: int, say: Say) -> BlackHoles:
    """`silent` of `servers` accept connections and never say anything; `fresh` OutboxRelays come one by one."""
    with world(crs=0, kwok=kwok) as here, contextlib.ExitStack() as listeners:
        for number in range(silent):
            listener = listeners.enter_context(socket.socket())
            # All but these addresses lead to the one real server.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((_host(number, silent=True), _SILENT_PORT))
            listener.listen()
        bodies = [_single(here, number, silent=number < silent) for number in range(servers)]
        fleet.create(here.plane.cluster, bodies)
        here_ready = eventually(
            lambda: here.operator.metrics().count("outboxrelay_ready", 1.0) >= servers - silent,
            seconds=_PATIENCE_SECONDS,
            what="all OutboxRelays with a database to be Ready",
            interval_seconds=1.0,
        )
        assert here_ready
        unready = here.operator.metrics().count("outboxrelay_ready", 0.0)
        say(f"{servers - silent} databases answer, {silent} do not; {unready} OutboxRelays are not Ready")
        return BlackHoles(tuple(_time_to_ready(here, servers + number) for number in range(fresh)))


_SILENT_PORT: Final = 5999


def _host(number: int, *, silent: bool) -> str:
    return f"127.{90 if silent else 91}.{number // 250}.{number % 250 + 1}"


def _single(here: World, number: int, *, silent: bool) -> Object:
    """An OutboxRelay with one pair on a server of its own, as far as the operator can tell."""
    real = here.databases.all[number % fleet.DATABASES]
    table = f"single_{number}"
    real.execute(f"create table {table} (like outbox_like including all)")
    database = {
        "name": "app",
        "host": _host(number, silent=silent),
        "port": _SILENT_PORT if silent else real.port,
        "dbname": real.dbname,
        "credentialsSecretRef": {"name": f"app{number % fleet.DATABASES}"},
        "table": {"name": table},
    }
    return relay(
        fleet.name_of(number),
        namespace=fleet.namespace_of(number),
        databases=[database],
        topics=[topic("events", topic=f"team.events-{number}")],
    )


def _time_to_ready(here: World, number: int) -> float:
    body = _single(here, number, silent=False)
    began = time.monotonic()
    here.api.create(body)
    eventually(
        lambda: _is_ready(here, number),
        seconds=_PATIENCE_SECONDS,
        what=f"OutboxRelay {fleet.name_of(number)} to be Ready",
        interval_seconds=0.1,
    )
    return time.monotonic() - began


def _is_ready(here: World, number: int) -> bool:
    status = (
        here.api.get("OutboxRelay", fleet.name_of(number), namespace=fleet.namespace_of(number)).get("status") or {}
    )
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", ())
    )


def percentile(values: Sequence[float], share: float) -> float:
    """By the nearest rank: a value that was measured."""
    return sorted(values)[max(0, round(share * len(values)) - 1)]


def load_average() -> float:
    """Of the last minute: how many others wanted the cores."""
    return os.getloadavg()[0]
