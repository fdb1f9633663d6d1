"""Starts and ends the operator's parts in the right order; decides nothing about resources."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outboxrelay_operator.complaints import Complaints
from outboxrelay_operator.connections import Connections
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.desired.relay_config import STATUS_PORT
from outboxrelay_operator.fleet import Fleet, Novelty
from outboxrelay_operator.gather import complete, survey
from outboxrelay_operator.handlers import Informer
from outboxrelay_operator.health import Check, HealthServer
from outboxrelay_operator.installed import InstalledSchema
from outboxrelay_operator.kube import HttpKube, Kind, Kube, KubeError
from outboxrelay_operator.leader import Election, Fenced, NotLeadingError, Timing
from outboxrelay_operator.measure.credentials import Connector
from outboxrelay_operator.measure.loop import DatabaseMeasurer, Measurer
from outboxrelay_operator.measure.pods import PodWatch
from outboxrelay_operator.measure.relays import RelayMeasurer
from outboxrelay_operator.measure.resolve import Resolver, look_up, settings_of_this_machine
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.metrics import Metrics
from outboxrelay_operator.observed import Object, Observed, Versions, parse
from outboxrelay_operator.pairs import Key
from outboxrelay_operator.reconcile import Reconciler
from outboxrelay_operator.rollouts import Rollouts
from outboxrelay_operator.secret_reader import SecretReader
from outboxrelay_operator.settings import Settings
from outboxrelay_operator.workqueue import WorkQueue
from outboxrelay_operator.writer import Writer

logger = logging.getLogger(__name__)

WORKERS = 8
DRAIN_SECONDS = 10.0
INFORMER_SECONDS = 2.0
SILENCE_SECONDS = 180.0
"""How long the queue or the API server may be silent before the process counts as dead."""

RETRY_SECONDS = 5.0
"""Until the API server is asked again for what the operator cannot do without."""

GATHER_SECONDS = 0.5
"""How long to wait for more news: so one status tells of a whole round of measurements, or of several pods."""

SHOWN_FIELDS = 10

Connect = Callable[..., Awaitable[HttpKube]]


@dataclass(slots=True, kw_only=True)
class Operator:
    """One operator process. `clock` is monotonic, `wall` is Unix time, `chance` is random between 0 and 1."""

    settings: Settings
    clock: Callable[[], float]
    wall: Callable[[], float]
    chance: Callable[[], float]
    identity: str

    async def run(self, *, connect: Connect, stop: asyncio.Event) -> int:
        """Run until `stop` is set (0), or until leadership is lost (1)."""
        queue: WorkQueue[Key] = WorkQueue(clock=self.clock, chance=self.chance)
        fleet = Fleet(clock=self.clock)
        installed = InstalledSchema()
        rollouts = Rollouts(limit=self.settings.max_concurrent_rollouts)
        metrics = Metrics(
            statuses=lambda: fleet.statuses,
            queue_depth=lambda: queue.depth,
            rollouts_queued=lambda: rollouts.queued,
            fields_missing=lambda: len(installed.missing),
        )
        kube = await connect(observe=metrics.requested)
        loop, listed = asyncio.get_running_loop(), asyncio.Event()

        def changed(key: Key, kind: Kind, live: Object | None) -> None:
            news = (fleet.told_of_deployment if kind is Kind.DEPLOYMENT else fleet.told_of_relay)(key, live)
            if news is Novelty.STATE:
                # While pods come up, more of it follows.
                queue.add_after(key, GATHER_SECONDS)
            elif news is Novelty.CHANGE:
                # What somebody wants comes before what there is to report.
                queue.add(key, urgent=True)

        informers = [
            Informer(
                namespace=namespace,
                notify=lambda key, kind, live: _call(loop, lambda: changed(key, kind, live)),
                listed=lambda: _call(loop, listed.set),
                clock=self.clock,
            )
            for namespace in self._scopes
        ]
        election = Election(
            kube=kube,
            me=self.identity,
            namespace=self.settings.pod_namespace,
            name=self.settings.lease_name,
            clock=self.clock,
            timing=Timing(lease=float(self.settings.lease_seconds)),
        )
        parts = _Parts(
            queue=queue,
            fleet=fleet,
            metrics=metrics,
            kube=kube,
            rollouts=rollouts,
            installed=installed,
            election=election,
            informers=informers,
            listed=listed,
        )
        health = HealthServer(
            port=self.settings.listen_port,
            live=self._checks(parts),
            ready=lambda: election.well and any(informer.ready for informer in informers),
            registry=metrics.registry,
        )
        await health.start()
        try:
            return await self._until_stopped(parts, stop)
        finally:
            for informer in informers:
                informer.stop()
            await asyncio.gather(*(asyncio.to_thread(informer.join, INFORMER_SECONDS) for informer in informers))
            await health.close()
            await kube.close()

    def _checks(self, parts: _Parts) -> tuple[Check, ...]:
        """What /livez asks: a process that hears of nothing any more is started again (OS-01)."""
        queue, fleet, kube, election = parts.queue, parts.fleet, parts.kube, parts.election

        def since(moment: Callable[[], float]) -> Callable[[], float]:
            return lambda: self.clock() - moment() if election.leads else 0.0

        return (
            Check("work queue", since(lambda: queue.last_tick), SILENCE_SECONDS),
            Check("resync", since(lambda: fleet.last_read), 2 * self.settings.resync_seconds + SILENCE_SECONDS),
            Check("watching", lambda: min(informer.failing_for for informer in parts.informers), SILENCE_SECONDS),
            Check("API server", lambda: self.clock() - kube.last_answer, SILENCE_SECONDS),
        )

    async def _until_stopped(self, parts: _Parts, stop: asyncio.Event) -> int:
        stopping = asyncio.create_task(stop.wait(), name="signal")
        working = asyncio.create_task(self._lead(parts), name="lead")
        try:
            await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                logger.info("Stopping: a signal was received")
                return 0
            working.result()
            return 1
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.gather(stopping, working, return_exceptions=True)
            await parts.election.release()

    async def _lead(self, parts: _Parts) -> None:
        """Watch, wait for leadership, work; returns when leadership is lost."""
        await self._usable(parts.kube)
        for informer in parts.informers:
            informer.start()
        await parts.election.acquire()
        parts.metrics.leading(True)
        holding = asyncio.create_task(parts.election.hold(), name="lease")
        working = asyncio.create_task(self._work(parts), name="work")
        try:
            ended, _ = await asyncio.wait({holding, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            parts.metrics.leading(False)
            await _cancel(working, holding)

    async def _usable(self, kube: Kube) -> None:
        """Wait until all that is watched can be listed in one namespace at least; say once what is missing."""
        complaints = Complaints(logger)
        while True:
            usable = [await self._listable(kube, namespace, complaints) for namespace in self._scopes]
            if any(usable):
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _listable(self, kube: Kube, namespace: str | None, complaints: Complaints) -> bool:
        listable = True
        for kind in (Kind.OUTBOX_RELAY, Kind.DEPLOYMENT, Kind.POD):
            about = f"listing {kind.plural} of {namespace or 'the cluster'}"
            try:
                await kube.list(kind, namespace, selector="outboxrelay.io/none=none")
                complaints.settle(about)
            except KubeError as error:
                listable = False
                remedy = "install the CRD and the RBAC rules of the chart" if error.refused else "it is tried again"
                complaints.complain(about, f"{error}; {remedy}")
        return listable

    @property
    def _scopes(self) -> tuple[str | None, ...]:
        return self.settings.namespaces or (None,)

    async def _work(self, parts: _Parts) -> None:
        """What only the leader does."""
        fenced = Fenced(parts.kube, lambda: parts.election.leads)
        queue, fleet = parts.queue, parts.fleet
        memory = Memory(changed=lambda key: queue.add_after(key, GATHER_SECONDS))
        reader = SecretReader(fenced, clock=self.clock)
        resolver = Resolver(
            own_namespace=self.settings.pod_namespace, settings=settings_of_this_machine(), lookup=look_up
        )
        looking = None if self.settings.secret_access else RelayMeasurer(report=memory.measured)
        measurer: Measurer = looking or DatabaseMeasurer(
            connect=Connector(reader, resolver),
            report=memory.measured,
            interval=self.settings.measure_interval_seconds,
            clock=self.clock,
            wall=self.wall,
            chance=self.chance,
            max_sessions=self.settings.max_connections_per_server,
        )
        pods = PodWatch(
            kube=fenced,
            namespaces=self.settings.namespaces,
            memory=memory,
            interval=self.settings.measure_interval_seconds,
            wall=self.wall,
            port=STATUS_PORT,
            looking=looking,
        )
        reconciler = Reconciler(
            kube=fenced,
            fleet=fleet,
            secrets=reader if self.settings.secret_access else None,
            memory=memory,
            measurer=measurer,
            writer=Writer(kube=fenced, pod=self.settings.pod_name, fitting=parts.installed.fitting),
            metrics=parts.metrics,
            image=RelayImage(name=self.settings.relay_image, pull_policy=self.settings.relay_image_pull_policy),
            rollouts=parts.rollouts,
            connections=Connections(per_server=self.settings.max_relay_connections_per_server),
            network=self.settings.network,
            wake=queue.add_after,
            pressed=lambda: queue.pressed,
            wall=self.wall,
        )
        complaints = Complaints(logger)
        await self._learn_schema(parts, complaints)
        parts.rollouts.expect(await self._list(parts, complaints))
        watching_pods = asyncio.create_task(pods.run(), name="pods")
        comparing = asyncio.create_task(self._resync(parts, complaints), name="resync")
        workers = [
            asyncio.create_task(self._worker(queue, reconciler, parts.metrics), name=f"worker {number}")
            for number in range(WORKERS)
        ]
        try:
            await asyncio.gather(watching_pods, comparing, *workers)
        except asyncio.CancelledError:
            queue.close()
            await asyncio.wait(workers, timeout=DRAIN_SECONDS)
            raise
        finally:
            await _cancel(watching_pods, comparing, *workers)
            await measurer.close()

    async def _resync(self, parts: _Parts, complaints: Complaints) -> None:
        """Find what no watch told of, and read that again."""
        pause, retry = self._resync_pause(), 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await parts.listed.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            parts.listed.clear()
            await self._learn_schema(parts, complaints)
            well = all([await self._compare(parts, namespace, complaints) for namespace in self._scopes])
            retry = max(RETRY_SECONDS, 2 * retry) if not well else 0.0
            pause = min(self._resync_pause(), retry or math.inf)

    def _resync_pause(self) -> float:
        return self.settings.resync_seconds * (0.5 + 0.5 * self.chance())

    async def _compare(self, parts: _Parts, namespace: str | None, complaints: Complaints) -> bool:
        """Read again what is not as remembered; returns whether the API server was able to say."""
        about = f"comparing the OutboxRelays of {namespace or 'the cluster'} with what is remembered"
        versions: Mapping[Key, Versions] = {}
        try:
            versions = await survey(parts.kube, namespace)
            complaints.settle(about)
        except KubeError as error:
            complaints.complain(about, f"{error}; {'each of them is read' if error.refused else 'it is tried again'}")
            if not error.refused:
                return False
        parts.fleet.answered()
        for key in parts.fleet.differing(namespace, versions):
            parts.fleet.invalidate(key)
            parts.queue.add(key)
        return True

    async def _learn_schema(self, parts: _Parts, complaints: Complaints) -> None:
        """Compare the installed CRD with what this operator knows: OL-11, HP-02."""
        about = "the installed CustomResourceDefinition"
        try:
            parts.installed.learn(await parts.kube.schema())
        except KubeError as error:
            complaints.complain(f"reading {about}", f"{error}; whether it is older than this operator is not known")
            return
        complaints.settle(f"reading {about}")
        missing = parts.installed.missing
        if not missing:
            complaints.settle(about)
            return
        named = ", ".join(missing[:SHOWN_FIELDS])
        more = f" and {len(missing) - SHOWN_FIELDS} more" if len(missing) > SHOWN_FIELDS else ""
        complaints.complain(
            about,
            f"{about} is older than this operator: it lacks {named}{more}, which can neither be set nor told; apply "
            "the newer crds/outboxrelays.yaml (Helm does not upgrade it)",
        )

    async def _list(self, parts: _Parts, complaints: Complaints) -> list[Key]:
        """Know every resource before the first is worked on: who is older decides conflicts. Returns all."""
        parts.fleet.listing()
        parts.listed.clear()
        found: list[Key] = []
        for namespace in self._scopes:
            about = f"listing OutboxRelays of {namespace or 'the cluster'}"
            try:
                relays = await parts.kube.list(Kind.OUTBOX_RELAY, namespace)
                complaints.settle(about)
            except KubeError as error:
                if error.refused:
                    parts.fleet.answered()
                complaints.complain(about, f"{error}; it is listed again, and served as soon as it can be watched")
                continue
            parts.fleet.answered()
            found += [Key(relay["metadata"]["namespace"], relay["metadata"]["name"]) for relay in relays]
            await self._remember(parts, namespace, relays)
        parts.fleet.listed()
        for key in found:
            parts.queue.add(key)
        return found

    @staticmethod
    async def _remember(parts: _Parts, namespace: str | None, relays: list[Object]) -> None:
        """What is not remembered after this, the first pass of each resource reads."""
        observed: list[Observed] = []
        for relay in relays:
            try:
                one = parse(relay)
                parts.fleet.claim(one)
            except Exception:
                # One resource must not keep all others from being served; its own passes tell what is wrong.
                key = f"{relay['metadata']['namespace']}/{relay['metadata']['name']}"
                logger.exception("OutboxRelay %s cannot be understood; it is tried again", key)
                continue
            if not relay["metadata"].get("deletionTimestamp"):
                observed.append(one)
        try:
            await complete(parts.kube, namespace, observed)
        except KubeError as error:
            logger.warning("%s; the objects of each OutboxRelay are read instead", error)
            return
        for one in observed:
            parts.fleet.saw(one)

    async def _worker(self, queue: WorkQueue[Key], reconciler: Reconciler, metrics: Metrics) -> None:
        while (key := await queue.take()) is not None:
            began, failed = self.clock(), True
            try:
                await reconciler.reconcile(key)
                failed = False
            except (KubeError, NotLeadingError) as error:
                logger.warning("OutboxRelay %s: %s; it is tried again", key, error)
            except Exception:
                logger.exception("OutboxRelay %s: the pass failed unexpectedly; it is tried again", key)
            finally:
                queue.done(key, failed=failed)
                metrics.passed(self.clock() - began, failed=failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    queue: WorkQueue[Key]
    fleet: Fleet
    metrics: Metrics
    kube: HttpKube
    rollouts: Rollouts
    installed: InstalledSchema
    election: Election
    informers: list[Informer]
    listed: asyncio.Event
    """Set when a watch begins anew: what went since it ended is told by none."""


def _call(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """From another thread; at the very end the loop may be gone already."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
