"""Lists the relay pods and asks each for its report. Broker and topic are known from these reports alone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
from pydantic import ValidationError

from outboxrelay.report import RelayReport
from outboxrelay_operator.complaints import Complaints
from outboxrelay_operator.display import unix
from outboxrelay_operator.kube import Kind, Kube, KubeError, Object
from outboxrelay_operator.measure.relays import RelayMeasurer
from outboxrelay_operator.measurements import PodState
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.names import OWNED_SELECTOR, PAIR_LABEL, SECRETS_ANNOTATION, TEMPLATE_DIGEST_ANNOTATION

logger = logging.getLogger(__name__)

_AT_ONCE = 32
_TIMEOUT = aiohttp.ClientTimeout(total=3, connect=2)
_REPORT_BYTES = 256 * 1024
_PODS_PER_SECOND = 100
_LABELS = frozenset({PAIR_LABEL})
_ANNOTATIONS = frozenset({SECRETS_ANNOTATION, TEMPLATE_DIGEST_ANNOTATION})
_CONDITIONS = frozenset({"PodScheduled", "Ready"})
_HARMLESS_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
_MESSAGE = 300
_CRASH_LOOP_SECONDS = 600.0
"""Kubernetes waits for at most five minutes before it starts a container again, and then that may run for a while."""


class PodWatch:
    """The pods of all relays, refreshed every `interval` seconds, less often the more there are."""

    def __init__(
        self,
        *,
        kube: Kube,
        namespaces: Sequence[str],
        memory: Memory,
        interval: float,
        wall: Callable[[], float],
        port: int,
        looking: RelayMeasurer | None = None,
    ) -> None:
        """`looking` chooses pods that also look at their tables, where the operator reads no Secrets."""
        self._kube = kube
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._memory = memory
        self._interval = interval
        self._wall = wall
        self._port = port
        self._looking = looking
        self._listed: dict[str | None, list[Object]] = {}
        self._reports: dict[str, tuple[RelayReport, float]] = {}
        """The newest report of each pod by uid, and until when it is believed if none follows."""

        self._permits = asyncio.Semaphore(_AT_ONCE)
        self._complaints = Complaints(logger)

    async def run(self) -> None:
        """Until cancelled."""
        # Thousands of connections that wait for the next round cost more than to open them anew.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as http:
            while True:
                count = 0
                try:
                    count = await self.refresh(http)
                except Exception:
                    logger.exception("Asking the relays failed unexpectedly; it is tried again")
                await asyncio.sleep(max(self._interval, count / _PODS_PER_SECOND))

    async def refresh(self, http: aiohttp.ClientSession) -> int:
        """List the pods, ask each, and hand the result over; returns how many there are."""
        for namespace in self._namespaces:
            about = f"listing the relay pods of {namespace or 'the cluster'}"
            try:
                listed = await self._kube.list(Kind.POD, namespace, selector=OWNED_SELECTOR, cached=True)
                self._listed[namespace] = [_essence(pod) for pod in listed]
                self._complaints.settle(about)
            except KubeError as error:
                self._complaints.complain(about, f"{error}; what its relays report is missing until this works")
        if not self._listed:
            return 0
        # Pods that could not be listed now are taken to be those of last time: "none" would be a lie.
        pods = [pod for namespace in self._namespaces for pod in self._listed.get(namespace, ())]
        pause = max(self._interval, len(pods) / _PODS_PER_SECOND)
        believe = 3 * pause + 5
        look = frozenset() if self._looking is None else self._looking.choose(pods)
        answers = await asyncio.gather(*(self._report(http, pod, look=pod["metadata"]["uid"] in look) for pod in pods))
        now = self._wall()
        self._reports = dict(self._believed(pods, answers, now=now, believe=believe))
        by_pair: defaultdict[tuple[str, str], list[PodState]] = defaultdict(list)
        for pod in pods:
            meta = pod["metadata"]
            pair = (meta.get("labels") or {}).get(PAIR_LABEL, "")
            report, believe_until = self._reports.get(meta["uid"], (None, now + believe))
            state = pod_state(pod, report, believe_until=believe_until, now=now)
            by_pair[meta["namespace"], pair].append(state)
        self._memory.pods_listed(
            {pair: tuple(states) for pair, states in by_pair.items()},
            now=now,
            never_listed=frozenset(name for name in self._namespaces if name is not None and name not in self._listed),
        )
        if self._looking is not None:
            self._looking.take(pods, answers, now=now, pause=pause)
        return len(pods)

    def _believed(
        self, pods: Sequence[Object], answers: Sequence[RelayReport | None], *, now: float, believe: float
    ) -> Iterator[tuple[str, tuple[RelayReport, float]]]:
        """The newest report of each pod: one answer that is late, as on a busy node, says nothing of the relay."""
        for pod, answer in zip(pods, answers, strict=True):
            uid = pod["metadata"]["uid"]
            if answer is not None:
                yield uid, (answer, now + believe)
            elif uid in self._reports and now <= self._reports[uid][1] and _address(pod) is not None:
                yield uid, self._reports[uid]

    async def _report(self, http: aiohttp.ClientSession, pod: Object, *, look: bool) -> RelayReport | None:
        address = _address(pod)
        if address is None:
            return None
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/status{'?look' if look else ''}"
        try:
            async with self._permits, http.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                return RelayReport.model_validate_json(await _bounded(response))
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            logger.debug("No report from relay %s: %s", name, type(error).__name__)
            return None


def _address(pod: Object) -> str | None:
    """Where a relay can be asked; None if none runs."""
    status = pod.get("status") or {}
    return status.get("podIP") or None if status.get("phase") == "Running" else None


def _essence(pod: Object) -> Object:
    """What is read of a pod: all of them are kept until the next list."""
    meta, status = pod["metadata"], pod.get("status") or {}
    return {
        "metadata": {
            **{name: meta[name] for name in ("namespace", "name", "uid", "deletionTimestamp") if name in meta},
            "labels": _chosen(meta.get("labels"), _LABELS),
            "annotations": _chosen(meta.get("annotations"), _ANNOTATIONS),
        },
        "status": {
            **{name: status[name] for name in ("phase", "podIP", "containerStatuses") if name in status},
            "conditions": [one for one in status.get("conditions") or () if one["type"] in _CONDITIONS],
        },
    }


def _chosen(values: Object | None, names: frozenset[str]) -> Object:
    return {name: value for name, value in (values or {}).items() if name in names}


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, but no more of it than a report can be."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(16 * 1024):
        body += chunk
        if len(body) > _REPORT_BYTES:
            raise aiohttp.ClientPayloadError("the report is too large")
    return bytes(body)


def pod_state(pod: Object, report: RelayReport | None, *, believe_until: float, now: float) -> PodState:
    """What Kubernetes says about a pod, together with its report."""
    meta, status = pod["metadata"], pod.get("status") or {}
    annotations = meta.get("annotations") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    return PodState(
        name=meta["name"],
        uid=meta["uid"],
        ready=conditions.get("Ready", {}).get("status") == "True",
        terminating=bool(meta.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        problem=_problem(status, conditions, now=now),
        template_digest=annotations.get(TEMPLATE_DIGEST_ANNOTATION, ""),
        secrets_annotation=annotations.get(SECRETS_ANNOTATION, ""),
        report=report,
        report_believe_until=believe_until,
    )


def _problem(status: Object, conditions: dict[str, Any], *, now: float) -> tuple[str, str] | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason", "Unschedulable")), str(scheduled.get("message", ""))[:_MESSAGE]
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        last = (container.get("lastState") or {}).get("terminated")
        last_words = _last_words(last)
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason") not in _HARMLESS_WAITS:
            return str(waiting.get("reason")), str(last_words or waiting.get("message") or "")[:_MESSAGE]
        if ended and ended.get("exitCode", 0) != 0:
            return "Exited", _exit(ended)
        if last and last.get("exitCode", 0) != 0 and not container.get("ready") and _lately(last, now=now):
            # Between two crashes it runs: that is no recovery yet.
            return "Exited", _exit(last)
    return None


def _lately(ended: Object, *, now: float) -> bool:
    # Null if the container was lost together with its node: nobody knows when that was.
    finished = ended.get("finishedAt")
    return finished is not None and now - unix(finished) < _CRASH_LOOP_SECONDS


def _exit(ended: Object) -> str:
    reason = str(ended.get("reason") or "")
    cause = f" ({reason})" if reason not in ("", "Error") else ""
    return f"code {ended['exitCode']}{cause} {_last_words(ended)}"[:_MESSAGE].strip()


def _last_words(ended: Object | None) -> str:
    """What the relay said in the last line of its log before it ended.

    Other lines are not repeated: an uncaught error may quote a row.
    """
    lines = str((ended or {}).get("message") or "").strip().splitlines()
    if not lines:
        return ""
    try:
        return str(json.loads(lines[-1])["message"])
    except (ValueError, KeyError, TypeError):
        return ""
