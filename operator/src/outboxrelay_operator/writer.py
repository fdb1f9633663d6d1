"""Writes what a pass found to the API server: the status, an Event on a transition, a word to the kubelet."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from outboxrelay_operator import significance
from outboxrelay_operator.api import API_VERSION, KIND
from outboxrelay_operator.events import transitions
from outboxrelay_operator.kube import Kind, Kube, KubeError
from outboxrelay_operator.measurements import PodState
from outboxrelay_operator.names import SECRETS_ANNOTATION
from outboxrelay_operator.observed import Object, Observed
from outboxrelay_operator.pairs import Key

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Writer:
    """The only one that writes a status; `pod` is this operator's own name, for Events."""

    kube: Kube
    pod: str
    fitting: Callable[[Object], Object] = lambda status: status
    """The part of a status that the API server can store."""

    _last_writes: dict[Key, float] = field(default_factory=dict)

    async def write(self, observed: Observed, status: Object, *, now: float) -> float:
        """Write a status if that is worth it; returns the seconds after which to try again.

        `now` is Unix time. Raises `KubeError`.
        """
        key = observed.owner.key
        before, status = observed.status, self.fitting(status)
        wait = significance.delay(before, status, now=now, last_write=self._last_writes.get(key, 0.0))
        if wait is None:
            return math.inf
        if wait > 0:
            return wait
        stored = await self.kube.apply(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": key.name, "namespace": key.namespace, "uid": observed.owner.uid},
                "status": status,
            },
            force=True,
            subresource="status",
        )
        observed.status = stored.get("status") or {}
        observed.version = stored["metadata"].get("resourceVersion", "")
        self._last_writes[key] = now
        for event in transitions(observed.owner, before=before, after=status, now=now, pod=self.pod):
            await self._post(event)
        return math.inf

    def forget(self, key: Key) -> None:
        """A resource is gone."""
        self._last_writes.pop(key, None)

    async def tell_pod(self, namespace: str, pod: PodState, versions: str) -> None:
        """Make the kubelet look at a pod's Secrets now. Raises `KubeError`."""
        body = {"metadata": {"uid": pod.uid, "annotations": {SECRETS_ANNOTATION: versions}}}
        await self.kube.merge_patch(Kind.POD, namespace, pod.name, body)
        logger.info("Told the kubelet to refresh the Secrets of relay %s/%s", namespace, pod.name)

    async def _post(self, event: Object) -> None:
        try:
            await self.kube.create(Kind.EVENT, event)
        except KubeError as error:
            logger.warning("%s; the status says the same", error)
