"""Everything that is known of one pair at one moment: what the checks of `policies` decide from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outboxrelay.report import RelayReport
from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.deployments import DeploymentState
from outboxrelay_operator.measurements import UNKNOWN_RATES, Measurement, PodState, Rates
from outboxrelay_operator.pairs import Pair
from outboxrelay_operator.scale import Calm, Scale

GRACE_SECONDS: Final = 10.0
"""How long lanes may belong to nobody before that is news: relays that hand them over are asked one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """Absent is None: not deployed, not measured."""

    pair: Pair
    now: float
    """Unix time."""

    suspended: bool
    desired_replicas: int
    blocked: Finding | None = None
    """What keeps the pair from being deployed as it should be."""

    refused: Finding | None = None
    """What came of the last attempt to apply the Deployment, if it failed for good."""

    deployment: DeploymentState | None = None
    pods: tuple[PodState, ...] = ()
    measurement: Measurement | None = None
    rates: Rates = UNKNOWN_RATES
    unowned_seconds: float = 0.0
    """How long lanes have belonged to nobody, from the first of the relays' reports that say so to the newest."""

    scale: Scale | None = None
    """Why it should have so many pods, if autoscaling decides that."""

    calm: tuple[Calm, ...] = ()
    """Since when fewer would have done, as far as that is worth telling."""

    queued: bool = False
    """Its pods keep an older template until it is this OutboxRelay's turn."""

    template_digest: str | None = None
    """The template that the pods should be of; None if that cannot be told."""

    @property
    def lost(self) -> bool:
        """Whether an older OutboxRelay serves these rows, so that they are none of ours."""
        return self.blocked is not None and self.blocked.reason == "Conflict"

    @property
    def live_pods(self) -> tuple[PodState, ...]:
        """Pods that are not on their way out."""
        return tuple(pod for pod in self.pods if not pod.terminating)

    @property
    def current_pods(self) -> tuple[PodState, ...]:
        """Live pods of the wanted template."""
        return tuple(pod for pod in self.live_pods if self.template_digest in (None, pod.template_digest))

    def reports(self, pods: tuple[PodState, ...]) -> tuple[RelayReport, ...]:
        """The pods' own reports, as far as they are fresh."""
        reports = (pod.fresh_report(self.now) for pod in pods)
        return tuple(report for report in reports if report is not None)

    def silent(self, pods: tuple[PodState, ...]) -> bool:
        """Whether what these pods say is not all there is."""
        return any(pod.silent(self.now) for pod in pods)

    @property
    def unowned_lanes(self) -> frozenset[int]:
        """Lanes that no relay owns although one reaches both ends; none if a ready pod may own them unheard."""
        if self.silent(self.pods):
            return frozenset()
        reports = self.reports(self.pods)
        if not any(report.database.ok and report.broker.ok for report in reports):
            return frozenset()
        lanes = range(max(report.lanes for report in reports))
        return frozenset(lanes).difference(*(report.lanes_owned for report in reports))

    @property
    def lanes_stand(self) -> bool:
        """Whether lanes have belonged to nobody for too long to be on their way from one relay to another."""
        return bool(self.unowned_lanes) and self.unowned_seconds >= GRACE_SECONDS

    @property
    def fresh_measurement(self) -> Measurement | None:
        """The operator's own measurement, unless it is too old."""
        measurement = self.measurement
        return measurement if measurement is not None and self.now <= measurement.believe_until else None

    @property
    def ready_replicas(self) -> int:
        """Ready pods as the Deployment counts them."""
        return 0 if self.deployment is None else self.deployment.ready


Judged = tuple[PairFacts, Finding]
"""A pair and what was found about it."""
