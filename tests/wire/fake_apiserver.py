"""An API server over HTTP, as far as informers and the operator's client need one.

What it has of the real one: discovery, resource versions and generations, lists, watches with label selectors,
410 when a watch begins too long ago, server-side apply and merge patch (as merging), the status subresource,
preconditions on delete, optimistic locking on replace. What it has not: validation, defaulting, field ownership,
garbage collection, controllers. Those are tested on the real one.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Object = dict[str, Any]
Where = tuple[str, str, str]
"""Plural, namespace and name."""

_RESOURCES = {
    "v1": {
        "namespaces": "Namespace",
        "pods": "Pod",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "configmaps": "ConfigMap",
        "events": "Event",
    },
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "apps/v1": {"deployments": "Deployment"},
    "coordination.k8s.io/v1": {"leases": "Lease"},
    "outboxrelay.io/v1alpha1": {"outboxrelays": "OutboxRelay"},
}


@dataclass(frozen=True)
class Change:
    """One write, as watches see it."""

    version: int
    plural: str
    before: Object | None
    after: Object | None


@dataclass(frozen=True)
class Write:
    """A request that is no GET, and what became of it."""

    by: str
    """The bearer token."""

    method: str
    path: str
    status: int


class FakeApiServer:
    """Start with `async with`; talk to it as a client would, or by `put` and `drop` as somebody else."""

    def __init__(self) -> None:
        self.objects: dict[Where, Object] = {}
        self.requests: list[tuple[str, str]] = []
        """Method and path (with query) of every request."""

        self.writes: list[Write] = []
        """Every request that would change something, when it was answered."""

        self.lists: list[str] = []
        """Plurals that were listed, in order."""

        self.forbidden: set[str] = set()
        """Plurals that nobody may list or watch, and namespaces in which nothing may be done."""

        self.delivering = True
        """False: watches stay open and silent."""

        self.schema: Object | None = None
        """Of OutboxRelays, as OpenAPI; None: it is not published, and nothing is checked."""

        self.mute: set[str] = set()
        """Plurals, and first parts of paths, about which nothing is answered: requests and watches hang."""

        self.paged: set[str] = set()
        """Plurals about which something on the way answers, with status 200 and this page."""

        self.page = "<html>Please sign in</html>"

        self.history: list[Change] = []
        """Everything that was ever written."""

        self._changes: list[Change] = []
        self._version = 10
        self._oldest: defaultdict[str, int] = defaultdict(int)
        """Of each plural the version from which on its history is known."""

        self._uids = 0
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket
        self._pending: set[asyncio.Task[None]] = set()
        self._opened = 0
        self._frozen = 0
        """How many watches were opened, and how many of them are silent: the oldest."""

        self._watched_by: set[asyncio.Transport] = set()

    @property
    def url(self) -> str:
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aenter__(self) -> FakeApiServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(self._runner, self._listening).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        # What was accepted just now must become a connection first: asyncio forgets its socket, unclosed, if the server
        # closes in between (python/cpython#109564).
        asyncio.get_running_loop().remove_reader(self._listening)
        for _round in range(3):
            await asyncio.sleep(0)
        await self._runner.cleanup()

    def count(self, method: str, part: str) -> int:
        """How many requests there were with this method and this text in the path."""
        return sum(1 for its_method, path in self.requests if its_method == method and part in path)

    def put(self, plural: str, body: Object) -> Object:
        """Create or replace an object; returns what is stored."""
        body = deepcopy(body)
        meta = body["metadata"]
        where = (plural, meta["namespace"], meta["name"])
        before = self.objects.get(where)
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        if before is None:
            self._uids += 1
            meta.setdefault("uid", f"uid-{self._uids}")
            meta.setdefault("creationTimestamp", f"2026-01-01T00:00:{self._uids % 60:02}Z")
            meta["generation"] = 1
        else:
            old = before["metadata"]
            meta["uid"], meta["creationTimestamp"] = old["uid"], old["creationTimestamp"]
            meta["generation"] = old["generation"] + (before.get("spec") != body.get("spec"))
            if "status" in before:
                # As with every status subresource: who writes the rest does not touch it.
                body.setdefault("status", deepcopy(before["status"]))
        self.objects[where] = body
        self._tell(Change(self._version, plural, before, body))
        return deepcopy(body)

    def drop(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object."""
        before = self.objects.pop((plural, namespace, name))
        self._version += 1
        self._tell(Change(self._version, plural, before, None))

    def expire(self, *plurals: str) -> None:
        """Forget the history of these, or of all: their watches end with 410, as after a compaction of etcd."""
        forgotten = plurals or tuple(plural for kinds in _RESOURCES.values() for plural in kinds)
        self._oldest |= dict.fromkeys(forgotten, self._version)
        self._changes = [change for change in self._changes if change.plural not in forgotten]
        self._wake()

    def cut(self) -> None:
        """End every watch that is open, as a proxy does with connections that it finds too old."""
        for transport in self._watched_by:
            transport.abort()
        self._watched_by.clear()

    def freeze(self) -> None:
        """Every watch that is open stays so and is silent from now on, as behind a connection that was lost."""
        self._frozen = self._opened

    def _tell(self, change: Change) -> None:
        self._changes.append(change)
        self.history.append(change)
        self._wake()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._news:
                self._news.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        answer = await self._answer(request)
        if request.method != "GET":
            by = request.headers.get("Authorization", "").removeprefix("Bearer ")
            self.writes.append(Write(by, request.method, request.path, answer.status))
        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        while parts[0] in self.mute:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if parts[0] == "openapi":
            return self._openapi()
        discovery = _discovery(parts)
        if discovery is not None:
            return web.json_response(discovery)
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = None
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = (*parts, None, None)[:3]
        assert plural is not None
        while plural in self.mute:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if plural in self.paged:
            return web.Response(text=self.page, content_type="text/html")
        if namespace in self.forbidden:
            return _refuse(403, "Forbidden")
        if name is None:
            if request.method == "POST":
                return self._create(plural, await request.json())
            if plural in self.forbidden:
                return _refuse(403, "Forbidden")
            if request.query.get("watch"):
                return await self._watch(request, plural, namespace)
            return self._list(request, plural, namespace)
        assert namespace is not None
        return await self._object(request, (plural, namespace, name), subresource)

    def _openapi(self) -> web.Response:
        if self.schema is None:
            return _refuse(404, "NotFound")
        kind = {"group": "outboxrelay.io", "version": "v1alpha1", "kind": "OutboxRelay"}
        schema = self.schema | {"x-kubernetes-group-version-kind": [kind]}
        return web.json_response({"components": {"schemas": {"io.outboxrelay.v1alpha1.OutboxRelay": schema}}})

    def _create(self, plural: str, body: Object) -> web.Response:
        meta = body["metadata"]
        if (plural, meta["namespace"], meta["name"]) in self.objects:
            return _refuse(409, "AlreadyExists")
        return web.json_response(self.put(plural, body), status=201)

    def _list(self, request: web.Request, plural: str, namespace: str | None) -> web.Response:
        self.lists.append(plural)
        items = [
            body
            for (its_plural, its_namespace, _), body in self.objects.items()
            if its_plural == plural and namespace in (None, its_namespace) and _selected(request, body)
        ]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, plural: str, namespace: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        assert request.transport is not None
        self._watched_by.add(request.transport)
        self._opened += 1
        number = self._opened
        since = int(request.query["resourceVersion"])
        while True:
            async with self._news:
                if since < self._oldest[plural] and number > self._frozen:
                    error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                    await response.write(_line({"type": "ERROR", "object": error}))
                    return response
                for change in list(self._changes) if self.delivering and number > self._frozen else ():
                    if change.version > since:
                        since = change.version
                        for event in self._events(request, change, plural, namespace):
                            await response.write(_line(event))
                await self._news.wait()

    def _events(
        self, request: web.Request, change: Change, plural: str, namespace: str | None
    ) -> Iterator[dict[str, Any]]:
        body = change.after or change.before
        assert body is not None
        if change.plural != plural or namespace not in (None, body["metadata"]["namespace"]):
            return
        before = change.before is not None and _selected(request, change.before)
        after = change.after is not None and _selected(request, change.after)
        if before or after:
            yield {"type": "DELETED" if not after else "MODIFIED" if before else "ADDED", "object": body}

    async def _object(self, request: web.Request, where: Where, subresource: str | None) -> web.Response:
        found = self.objects.get(where)
        if request.method == "GET":
            return _refuse(404, "NotFound") if found is None else web.json_response(found)
        if request.method == "DELETE":
            return self._delete(where, found, await request.json())
        body = json.loads(await request.text())
        if request.method == "PUT":
            if found is None or body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                return _refuse(409, "Conflict")
            return web.json_response(self.put(where[0], body))
        if found is None and (subresource is not None or "apply" not in request.content_type):
            return _refuse(404, "NotFound")
        uid = body.get("metadata", {}).get("uid")
        if found is not None and uid not in (None, found["metadata"]["uid"]):
            return _refuse(409, "Conflict")
        if subresource is not None:
            assert found is not None
            if self.schema is not None and _undeclared(body[subresource], self.schema["properties"][subresource]):
                # What the real one answers; see tests/apiserver/test_older_crd.py.
                return _refuse(500, "field not declared in schema")
            # Server-side apply takes away what its manager no longer says; here there is only one.
            return web.json_response(self.put(where[0], found | {subresource: body[subresource]}))
        return web.json_response(self.put(where[0], _merged(found or {}, body)), status=200 if found else 201)

    def _delete(self, where: Where, found: Object | None, body: Object) -> web.Response:
        if found is None:
            return _refuse(404, "NotFound")
        if body["preconditions"]["uid"] != found["metadata"]["uid"]:
            return _refuse(409, "Conflict")
        self.drop(*where)
        return web.json_response({"kind": "Status", "metadata": {}, "status": "Success"})


def _discovery(parts: list[str]) -> dict[str, Any] | None:
    match parts:
        case ["api"]:
            return {"versions": ["v1"]}
        case ["apis"]:
            groups = [name.split("/") for name in _RESOURCES if "/" in name]
            return {
                "groups": [
                    {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}
                    for group, version in groups
                ]
            }
        case ["api", "v1"] | ["apis", _, _]:
            resources = _RESOURCES["/".join(parts[1:])]
            verbs = ["get", "list", "watch", "create", "patch", "update", "delete"]
            return {
                "resources": [
                    {
                        "name": plural,
                        "singularName": kind.lower(),
                        "kind": kind,
                        "namespaced": plural != "namespaces",
                        "verbs": verbs,
                    }
                    for plural, kind in resources.items()
                ]
            }
    return None


def _selected(request: web.Request, body: Object) -> bool:
    wanted = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if part)
    return wanted.items() <= (body["metadata"].get("labels") or {}).items()


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return new


def _undeclared(value: Any, schema: Object) -> bool:
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        return any(name not in fields or _undeclared(part, fields[name]) for name, part in value.items())
    return isinstance(value, list) and any(_undeclared(part, schema["items"]) for part in value)


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _refuse(status: int, reason: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": reason}, status=status
    )
