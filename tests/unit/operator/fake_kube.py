"""An API server in memory, as far as the operator's own logic needs one: uids, versions, 404, 409, merging."""

from __future__ import annotations

import asyncio
import itertools
from copy import deepcopy
from typing import Any

from outboxrelay_operator.kube import Kind, KubeError, Object, Objects

Where = tuple[Kind, str, str]

_KINDS = {kind.value[2]: kind for kind in Kind}


class FakeKube:
    """Implements `Kube`. Label selectors are understood as far as equality goes."""

    def __init__(self) -> None:
        self.objects: dict[Where, Object] = {}
        self.writes: list[tuple[str, str, str]] = []
        """Verb, kind (with subresource) and name of every write."""

        self.asked: list[str] = []
        """Names in all requests about one object, also those that fail."""

        self.lists: list[tuple[str, bool]] = []
        """Kind of every list, and whether it might come from the watch cache."""

        self.fail_with: KubeError | None = None
        """Every request fails like this."""

        self.refuse: dict[str, KubeError] = {}
        """Writes to objects of this name fail like this."""

        self.unreadable: dict[str, KubeError] = {}
        """Reads of single objects of this name fail like this."""

        self.answering: asyncio.Event | None = None
        """Reads of single objects wait for this."""

        self.answers: dict[Where, Object] = {}
        """What a read answers once instead of the truth: as if it were a moment late."""

        self._applied: dict[Where, Object] = {}
        self._versions = itertools.count(1)

    def put(self, kind: Kind, body: Object) -> Object:
        """Store an object as somebody else would; returns what is stored."""
        meta = body.setdefault("metadata", {})
        where = (kind, meta["namespace"], meta["name"])
        old = self.objects.get(where)
        number = next(self._versions)
        meta["resourceVersion"] = str(number)
        meta.setdefault("uid", f"uid-{number}" if old is None else old["metadata"]["uid"])
        if old is not None and old.get("spec") == body.get("spec"):
            meta["generation"] = old["metadata"].get("generation", 1)
        else:
            meta["generation"] = 1 if old is None else old["metadata"].get("generation", 1) + 1
        self.objects[where] = body
        return body

    def drop(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object as somebody else would."""
        del self.objects[kind, namespace, name]

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        self._check()
        self.asked.append(name)
        if self.answering is not None:
            await self.answering.wait()
        if name in self.unreadable:
            raise self.unreadable[name]
        where = (kind, namespace, name)
        if where in self.answers:
            return self.answers.pop(where)
        return deepcopy(self.objects.get(where))

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", cached: bool = False
    ) -> list[Object]:
        self._check()
        self.lists.append((kind.value[2], cached))
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        return [
            deepcopy(body)
            for (its_kind, its_namespace, _), body in self.objects.items()
            if its_kind is kind
            and namespace in (None, its_namespace)
            and wanted.items() <= (body["metadata"].get("labels") or {}).items()
        ]

    async def list_metadata(self, kind: Kind, namespace: str | None, *, selector: str = "") -> Objects:
        return [body["metadata"] for body in await self.list(kind, namespace, selector=selector)]

    async def schema(self) -> Object | None:
        return None

    async def apply(self, body: Object, *, force: bool, subresource: str | None = None) -> Object:
        kind, meta = _KINDS[body["kind"]], body["metadata"]
        self._check(meta["name"])
        self.writes.append(("apply", body["kind"] + (f"/{subresource}" if subresource else ""), meta["name"]))
        old = self.objects.get((kind, meta["namespace"], meta["name"]))
        if subresource is not None:
            if old is None:
                raise KubeError("applying", status=404, reason="NotFound", message="not found")
            return deepcopy(self.put(kind, old | {subresource: deepcopy(body[subresource])}))
        if old is not None and not force:
            raise KubeError("applying", status=409, reason="Conflict", message="another manager")
        where = (kind, meta["namespace"], meta["name"])
        left = _without_given_up(old or {}, before=self._applied.get(where, {}), now=body)
        self._applied[where] = deepcopy(body)
        return deepcopy(self.put(kind, _merged(left, deepcopy(body))))

    async def merge_patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object | None:
        self._check(name)
        self.writes.append(("patch", kind.value[2], name))
        old = self.objects.get((kind, namespace, name))
        return None if old is None else deepcopy(self.put(kind, _merged(old, deepcopy(body))))

    async def create(self, kind: Kind, body: Object) -> Object:
        meta = body["metadata"]
        self._check(meta["name"])
        self.writes.append(("create", kind.value[2], meta["name"]))
        if (kind, meta["namespace"], meta["name"]) in self.objects:
            raise KubeError("creating", status=409, reason="AlreadyExists", message="exists")
        return deepcopy(self.put(kind, deepcopy(body)))

    async def replace(self, kind: Kind, body: Object) -> Object:
        meta = body["metadata"]
        self._check(meta["name"])
        self.writes.append(("update", kind.value[2], meta["name"]))
        old = self.objects.get((kind, meta["namespace"], meta["name"]))
        if old is None or old["metadata"]["resourceVersion"] != meta.get("resourceVersion"):
            raise KubeError("updating", status=409, reason="Conflict", message="modified")
        return deepcopy(self.put(kind, deepcopy(body)))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        self._check(name)
        self.writes.append(("delete", kind.value[2], name))
        old = self.objects.get((kind, namespace, name))
        if old is not None and old["metadata"]["uid"] != uid:
            raise KubeError("deleting", status=409, reason="Conflict", message="another uid")
        self.objects.pop((kind, namespace, name), None)

    def _check(self, name: str | None = None) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        if name is not None:
            self.asked.append(name)
        if name in self.refuse:
            raise self.refuse[name]


def _without_given_up(old: Object, *, before: Object, now: Object) -> Object:
    """As server-side apply does: what was applied before and is not any more goes, what others added stays."""
    kept = {key: value for key, value in old.items() if key in now or key not in before}
    for key, value in kept.items():
        if all(isinstance(part, dict) for part in (value, before.get(key), now.get(key))):
            kept[key] = _without_given_up(value, before=before[key], now=now[key])
    return kept


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return new
