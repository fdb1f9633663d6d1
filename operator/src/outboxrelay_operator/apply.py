"""Carries out a plan: applies what differs, deletes what is no longer wanted, and keeps `Observed` true."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outboxrelay_operator.attempts import Attempt, Attempts, What
from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.desired.difference import difference
from outboxrelay_operator.kube import KINDS, Kind, Kube, KubeError
from outboxrelay_operator.observed import Object, Observed, controller_uid
from outboxrelay_operator.plan import Plan, applied_digest, name_taken

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What came of a plan."""

    refused: dict[str, Finding] = field(default_factory=dict)
    """What was not applied and will not be soon, by the pair's name."""

    error: KubeError | None = None
    """The first failure that may go away by itself."""

    retry_at: float | None = None
    """When the first of the objects that have to wait may be sent again."""

    def waits(self, attempt: Attempt, names: list[str]) -> None:
        """It is too early for another attempt at an object that these pairs need."""
        self.retry_at = min(self.retry_at or attempt.not_before, attempt.not_before)
        if attempt.finding is not None:
            self.refused |= dict.fromkeys(names, attempt.finding)


def differs(wanted: Object, live: Object | None) -> str | None:
    """Where an object is not as wanted; None if it is."""
    if live is None:
        return "it does not exist"
    if applied_digest(live) != applied_digest(wanted):
        return "what is wanted has changed"
    return difference(wanted, live)


def has_work(plan: Plan, observed: Observed, attempts: Attempts, *, now: float) -> bool:
    """Whether anything must be sent to the API server now."""
    if any(attempts.waiting(*_deletion(observed, kind, name), now=now) is None for kind, name in plan.unwanted):
        return True
    if any(_counts_differ(plan, observed, name) for name in plan.held):
        return True

    def due(wanted: Object, live: Object | None) -> bool:
        return differs(wanted, live) is not None and attempts.waiting(*_application(wanted), now=now) is None

    for wanted in plan.shared:
        if differs(wanted, observed.shared.get(wanted["kind"])) is not None:
            waiting = attempts.waiting(*_application(wanted), now=now)
            if waiting is None or waiting.failed:
                # Without it no Deployment is applied.
                return waiting is None
    return any(
        due(wanted, observed.of_kind(wanted["kind"]).get(name))
        for bodies in (plan.deployments, plan.budgets)
        for name, wanted in bodies.items()
    )


def _counts_differ(plan: Plan, observed: Observed, name: str) -> bool:
    live = observed.deployments.get(name)
    return live is not None and live["spec"].get("replicas", 1) != plan.replicas[name]


async def carry_out(
    kube: Kube, plan: Plan, observed: Observed, attempts: Attempts, *, applied: Callable[[str], None], now: float
) -> Outcome:
    """Never raises `KubeError`. `applied` is told the kind of each object that was sent; `now` is Unix time."""
    work = _Work(kube=kube, observed=observed, attempts=attempts, applied=applied, now=now)
    for kind, name in plan.unwanted:
        # What is merely left over is in nobody's way.
        await work.delete(kind, name, [name] if kind == "Deployment" and name in plan.making_room else [])
    if await work.all_shared(plan.shared, list(plan.deployments)):
        for name, wanted in plan.deployments.items():
            await work.deployment(name, wanted)
        for name, wanted in plan.budgets.items():
            # Rows flow without it, so a failure is no finding about the pair.
            await work.put(wanted, observed.budgets, name, [])
    for name in sorted(plan.held):
        if _counts_differ(plan, observed, name):
            await work.scale(name, plan.replicas[name])
    return work.outcome


@dataclass(slots=True, kw_only=True)
class _Work:
    kube: Kube
    observed: Observed
    attempts: Attempts
    applied: Callable[[str], None]
    now: float
    outcome: Outcome = field(default_factory=Outcome)

    async def delete(self, kind: str, name: str, names: list[str]) -> None:
        """Delete an object that must be gone before the pairs `names` can go on."""
        what, uid = _deletion(self.observed, kind, name)
        if (waiting := self.attempts.waiting(what, uid, now=self.now)) is not None:
            self.outcome.waits(waiting, names)
            return
        namespace = self.observed.owner.key.namespace
        try:
            await self.kube.delete(KINDS[kind], namespace, name, uid=uid)
        except KubeError as error:
            self._failed(what, uid, error, names, f"pair {name}: {error}" if names else str(error))
            return
        # Somebody's finalizer may keep it.
        self.attempts.made(what, uid, now=self.now)
        if kind in self.observed.shared:
            del self.observed.shared[kind]
        else:
            del self.observed.of_kind(kind)[name]
        logger.info("Deleted %s %s/%s: it is no longer needed", kind, namespace, name)

    async def all_shared(self, bodies: Sequence[Object], names: list[str]) -> bool:
        """Whether the Deployments may follow; what comes after one that fails is not applied."""
        for wanted in bodies:
            if not await self.put(wanted, self.observed.shared, wanted["kind"], names):
                return False
        return True

    async def put(self, wanted: Object, live: dict[str, Object], key: str, names: list[str]) -> bool:
        """Apply an object that is known as `live[key]`; whether the pairs `names`, which need it, may follow."""
        before = live.get(key)
        reason = differs(wanted, before)
        if reason is None:
            return True
        what, digest = _application(wanted)
        if (waiting := self.attempts.waiting(what, digest, now=self.now)) is not None:
            self.outcome.waits(waiting, names)
            return not waiting.failed
        try:
            live[key] = await self.kube.apply(wanted, force=before is not None)
        except KubeError as error:
            self._failed(what, digest, error, names, str(error))
            return False
        self._applied(wanted, reason)
        return True

    async def deployment(self, name: str, wanted: Object) -> None:
        live = self.observed.deployments.get(name)
        reason = differs(wanted, live)
        if reason is None:
            return
        what, digest = _application(wanted)
        if (waiting := self.attempts.waiting(what, digest, now=self.now)) is not None:
            self.outcome.waits(waiting, [name])
            return
        try:
            if live is None:
                # One that lost its labels is not listed; one of somebody else must not be taken over.
                live = await self.kube.get(Kind.DEPLOYMENT, wanted["metadata"]["namespace"], name)
                if live is not None and controller_uid(live) != self.observed.owner.uid:
                    finding = name_taken("Deployment", live)
                    self.outcome.refused[name] = finding
                    self.attempts.made(what, digest, now=self.now, failed=True, finding=finding)
                    return
            result = await self.kube.apply(wanted, force=live is not None)
        except KubeError as error:
            self._failed(what, digest, error, [name], f"pair {name}: {error}")
            return
        self.observed.took(result)
        self._applied(wanted, reason)

    async def scale(self, name: str, replicas: int) -> None:
        """Change the count of pods and nothing else."""
        live = self.observed.deployments[name]
        body = {"metadata": {"uid": live["metadata"]["uid"]}, "spec": {"replicas": replicas}}
        try:
            result = await self.kube.merge_patch(Kind.DEPLOYMENT, live["metadata"]["namespace"], name, body)
        except KubeError as error:
            self.outcome.error = self.outcome.error or error
            return
        if result is None:
            del self.observed.deployments[name]
            return
        self.observed.took(result)
        logger.info("Scaled Deployment %s/%s to %d", live["metadata"]["namespace"], name, replicas)

    def _failed(self, what: What, digest: str, error: KubeError, names: list[str], text: str) -> None:
        finding = Finding("ApplyRefused", text) if error.refused else None
        if finding is not None:
            self.outcome.refused |= dict.fromkeys(names, finding)
        self.attempts.made(what, digest, now=self.now, failed=True, finding=finding)
        self.outcome.error = self.outcome.error or error

    def _applied(self, wanted: Object, reason: str) -> None:
        what, digest = _application(wanted)
        kind, name = what
        namespace = self.observed.owner.key.namespace
        self.applied(kind)
        logger.info("Applied %s %s/%s: %s", kind, namespace, name, reason)
        if self.attempts.made(what, digest, now=self.now).contested:
            logger.warning(
                "%s %s/%s is changed back each time it is applied (%s): another operator, an autoscaler, a webhook or "
                "a GitOps tool; from now on it is applied once a minute",
                kind,
                namespace,
                name,
                reason,
            )


def _application(wanted: Object) -> tuple[What, str]:
    return (wanted["kind"], wanted["metadata"]["name"]), applied_digest(wanted) or ""


def _deletion(observed: Observed, kind: str, name: str) -> tuple[What, str]:
    live = observed.shared[kind] if kind in observed.shared else observed.of_kind(kind)[name]
    return (f"deletion of {kind}", name), str(live["metadata"]["uid"])
