"""Leadership by a Lease: `decide` says what to do, the loop does it.

Other processes' clocks are never compared with ours: a lease is over when we have seen no change of it for its
duration, by our own monotonic clock. A leader that could not renew in time stops writing at once (`Fenced`) and
its process ends: everything starts again from what the cluster says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from outboxrelay_operator.complaints import Complaints
from outboxrelay_operator.kube import Kind, Kube, KubeError, Object, Objects

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """The proportions of client-go: 15, 10 and 2 seconds; another candidate leads after `lease` and one `retry`."""

    lease: float = 15.0
    """How long a Lease that does not change is respected; whole seconds."""

    @property
    def deadline(self) -> float:
        """How long after the newest renewal its holder still writes: it ends well before others may begin."""
        return self.lease * 2 / 3

    @property
    def retry(self) -> float:
        """Between two looks at the Lease."""
        return self.lease * 2 / 15

    @property
    def patience(self) -> float:
        """How long a look may take: after one over a connection that was lost there is time for another."""
        return self.deadline / 2


TIMING = Timing()


class NotLeadingError(Exception):
    """This process does not lead (any more) and must not write."""


class Step(Enum):
    """What to do with the Lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def decide(lease: Object | None, *, me: str, unchanged_for: float) -> Step:
    """What to do, given the Lease as read now and for how many seconds it has not changed while we looked."""
    if lease is None:
        return Step.CREATE
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity")
    if holder == me:
        return Step.RENEW
    if not holder or unchanged_for >= float(spec.get("leaseDurationSeconds") or TIMING.lease):
        return Step.TAKE
    return Step.WAIT


def next_lease(
    lease: Object | None, step: Step, *, me: str, namespace: str, name: str, seconds: float, now: datetime
) -> Object:
    """The Lease to write for a step; it keeps resourceVersion, so a concurrent writer makes the write fail."""
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    old: Object = (lease or {}).get("spec") or {}
    spec = old | {"holderIdentity": me, "leaseDurationSeconds": int(seconds), "renewTime": time}
    if step is not Step.RENEW:
        spec["acquireTime"] = time
        spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + (1 if step is Step.TAKE else 0)
    meta = (lease or {}).get("metadata") or {"name": name, "namespace": namespace}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


@dataclass(slots=True, kw_only=True)
class Election:
    """The candidate `me` in a namespace. `clock` is monotonic."""

    kube: Kube
    me: str
    namespace: str
    name: str
    """Of the Lease: one for each installation, since several may lie in one namespace."""

    clock: Callable[[], float]
    timing: Timing = TIMING
    renewed_at: float | None = None
    """When the Lease was last ours, by `clock`; None before and after."""

    well: bool = False
    """Whether the last look at the Lease succeeded: a candidate that may not look can never lead."""

    complaints: Complaints = field(default_factory=lambda: Complaints(logger))
    _version: str | None = None
    _changed_at: float = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process may write."""
        return self.renewed_at is not None and self.clock() - self.renewed_at < self.timing.deadline

    async def acquire(self) -> None:
        """Wait until this process leads."""
        waited = False
        while not self.leads:
            await self.attempt()
            if not self.leads:
                if not waited:
                    logger.info("Standing by: Lease %s/%s is not ours yet", self.namespace, self.name)
                    waited = True
                await asyncio.sleep(self.timing.retry)
        logger.info("Leading: Lease %s/%s is held by %s", self.namespace, self.name, self.me)

    async def hold(self) -> None:
        """Renew until the Lease is lost; then return."""
        while self.leads:
            await asyncio.sleep(self.timing.retry)
            await self.attempt()
        logger.error("Lease %s/%s is lost; this process ends and another one leads", self.namespace, self.name)

    async def release(self) -> None:
        """Let the next candidate lead at once."""
        if self.renewed_at is None:
            return
        self.renewed_at = None
        try:
            lease = await self.kube.get(Kind.LEASE, self.namespace, self.name)
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.me:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self.kube.replace(Kind.LEASE, lease)
        except KubeError as error:
            logger.warning("%s; the Lease runs out by itself", error)

    async def attempt(self) -> None:
        """Read the Lease once, and take or renew it if that is our turn. Never raises."""
        began = self.clock()
        try:
            async with asyncio.timeout(self.timing.patience):
                ours = await self._take_or_renew()
        except TimeoutError:
            self._complain(f"no answer about the Lease within {self.timing.patience:g} s")
        except KubeError as error:
            if error.status == 409:
                logger.debug("Another candidate was faster: %s", error)
                self._settle()
            else:
                self._complain(str(error))
        else:
            self._settle()
            # The Lease counts from when it was asked for, since the answer may have been long on its way.
            self.renewed_at = began if ours else None

    async def _take_or_renew(self) -> bool:
        """Whether the Lease is ours now."""
        lease = await self.kube.get(Kind.LEASE, self.namespace, self.name)
        self._note(lease)
        step = decide(lease, me=self.me, unchanged_for=self.clock() - self._changed_at)
        if step is Step.WAIT:
            return False
        body = next_lease(
            lease,
            step,
            me=self.me,
            namespace=self.namespace,
            name=self.name,
            seconds=self.timing.lease,
            now=datetime.now(UTC),
        )
        write = self.kube.create if step is Step.CREATE else self.kube.replace
        self._note(await write(Kind.LEASE, body))
        return True

    def _complain(self, text: str) -> None:
        self.well = False
        self.complaints.complain("the Lease", f"{text}; leadership is kept for {self.timing.deadline:g} s at most")

    def _settle(self) -> None:
        self.well = True
        self.complaints.settle("the Lease")

    def _note(self, lease: Object | None) -> None:
        version = None if lease is None else str(lease["metadata"].get("resourceVersion"))
        if version != self._version:
            self._version, self._changed_at = version, self.clock()


class Fenced:
    """A `Kube` that refuses to write while this process does not lead, also after it was stopped for a while."""

    def __init__(self, kube: Kube, leads: Callable[[], bool]) -> None:
        self._kube = kube
        self._leads = leads

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return await self._kube.get(kind, namespace, name)

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", cached: bool = False
    ) -> list[Object]:
        return await self._kube.list(kind, namespace, selector=selector, cached=cached)

    async def list_metadata(self, kind: Kind, namespace: str | None, *, selector: str = "") -> Objects:
        return await self._kube.list_metadata(kind, namespace, selector=selector)

    async def schema(self) -> Object | None:
        return await self._kube.schema()

    async def apply(self, body: Object, *, force: bool, subresource: str | None = None) -> Object:
        self._check()
        return await self._kube.apply(body, force=force, subresource=subresource)

    async def merge_patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object | None:
        self._check()
        return await self._kube.merge_patch(kind, namespace, name, body)

    async def create(self, kind: Kind, body: Object) -> Object:
        self._check()
        return await self._kube.create(kind, body)

    async def replace(self, kind: Kind, body: Object) -> Object:
        self._check()
        return await self._kube.replace(kind, body)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        self._check()
        await self._kube.delete(kind, namespace, name, uid=uid)

    def _check(self) -> None:
        if not self._leads():
            raise NotLeadingError("this process does not lead: nothing is written")
