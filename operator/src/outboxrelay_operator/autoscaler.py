"""The newest scaling decision of each pair of one OutboxRelay, and how it comes back after a restart. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from outboxrelay_operator.conflicts import server_id
from outboxrelay_operator.connections import Demand, Grant
from outboxrelay_operator.display import unix
from outboxrelay_operator.measurements import Backlog, Failure, Measurement, PairId, PodState, Rates
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.observed import Observed
from outboxrelay_operator.scale import (
    CONNECTION_BUDGET,
    UNKNOWN,
    WARM_SECONDS,
    Calm,
    Limits,
    Load,
    Scale,
    lasting,
    next_look,
    resumed,
)
from outboxrelay_operator.scaling import decide, first


class Autoscaler:
    """Empty while the spec has no autoscaling, or suspends the relays."""

    def __init__(self, *, may_sleep: bool = True) -> None:
        """`may_sleep`: the next row is seen also while no relay runs."""
        self._may_sleep = may_sleep
        self._limits: Limits | None = None
        self._wanted: dict[str, Scale] = {}
        self.scales: dict[str, Scale] = {}
        """By the pair's name: what is wanted, as far as there are connections for it."""

    def decide(self, observed: Observed, memory: Memory, *, lost: Set[str], now: float) -> None:
        """Decide anew for every pair but the `lost` ones what the load asks for. `now` is Unix time."""
        spec = observed.spec
        if spec is None:
            # Its relays go on as they are.
            return
        if spec.autoscaling is None or spec.suspend:
            self._limits, self._wanted, self.scales = None, {}, {}
            return
        self._limits = limits = Limits.of(spec.autoscaling, lanes=spec.lanes, may_sleep=self._may_sleep)
        stored = {entry.get("name"): entry for entry in observed.status.get("pairs") or ()}
        before, self._wanted = self._wanted, {}
        for pair in observed.pairs:
            if pair.name in lost:
                continue
            scale = before.get(pair.name) or _recalled(observed, stored.get(pair.name, {}), pair.name, limits, now=now)
            pair_id = PairId.of(pair)
            load = load_of(
                memory.measurement(pair_id),
                memory.pods(pair_id),
                memory.rates(pair_id, now=now),
                failures=memory.failures(pair_id),
                now=now,
            )
            self._wanted[pair.name] = decide(load, limits, scale, now=now)

    def demands(self, observed: Observed, memory: Memory, *, lost: Set[str]) -> list[Demand]:
        """What the pairs ask of their servers, after `decide`; also those whose count somebody set."""
        spec, limits = observed.spec, self._limits
        if spec is None or spec.suspend:
            return []
        found = []
        for pair in observed.pairs:
            if pair.name in lost:
                continue
            pair_id = PairId.of(pair)
            measurement = memory.measurement(pair_id)
            relays = spec.replicas if limits is None else self._wanted[pair.name].replicas
            found.append(
                Demand(
                    pair=pair_id,
                    order=(*observed.owner.seniority, pair.name),
                    server=server_id(pair),
                    dbname=pair.database.dbname,
                    wanted=relays,
                    least=relays if limits is None else min(relays, limits.spec.min_replicas),
                    # Where the operator reads no Secrets a relay looks at the table for it.
                    beside=0 if self._may_sleep else 1,
                    limits=measurement.connections if isinstance(measurement, Backlog) else None,
                )
            )
        return found

    def granted(self, grants: Mapping[str, Grant], *, now: float) -> Mapping[str, int]:
        """Keep to what there are connections for; returns the counts of pods, by the pair's name."""
        before, limits = self.scales, self._limits
        if limits is not None:
            self.scales = {
                name: _within(grants[name], limits, wanted, before.get(name), now=now)
                for name, wanted in self._wanted.items()
            }
        return {name: scale.replicas for name, scale in self.scales.items()}

    def lasting(self, name: str, *, now: float) -> tuple[Calm, ...]:
        """Since when fewer pods would have done, as far as that is worth telling."""
        scale = self._wanted.get(name)
        return () if scale is None or self._limits is None else lasting(scale, self._limits, now=now)

    def next_look(self, *, now: float) -> float | None:
        """Seconds until time alone may change a count; None if it cannot."""
        if self._limits is None:
            return None
        waits = [next_look(scale, self._limits, now=now) for scale in self._wanted.values()]
        return min((wait for wait in waits if wait is not None), default=None)


def _within(grant: Grant, limits: Limits, wanted: Scale, before: Scale | None, *, now: float) -> Scale:
    """The decision as far as there are connections for it; its words stay until count or reason is another."""
    count = max(limits.useful(grant.relays), min(limits.spec.min_replicas, wanted.replicas))
    if count >= wanted.replicas:
        moved = before is not None and before.replicas != wanted.replicas
        return replace(wanted, changed_at=now) if moved else wanted
    if before is not None and (before.replicas, before.reason) == (count, CONNECTION_BUDGET):
        return replace(
            wanted, replicas=count, reason=before.reason, message=before.message, changed_at=before.changed_at
        )
    return replace(
        wanted,
        replicas=count,
        reason=CONNECTION_BUDGET,
        message=f"{wanted.replicas} wanted; {grant.because}",
        changed_at=before.changed_at if before is not None and before.replicas == count else now,
    )


def _recalled(observed: Observed, stored: Mapping[str, Any], name: str, limits: Limits, *, now: float) -> Scale:
    """The decision that the status tells of; else what there is now."""
    live = observed.deployments.get(name)
    present = 0 if live is None else int(live["spec"].get("replicas", 1))
    told = stored.get("scaling")
    if not told:
        return first(present, limits, now=now)
    scale = Scale(
        # The Deployment may have been told after the last status was.
        replicas=max(present, stored.get("desiredReplicas", 0)),
        reason=told.get("reason", UNKNOWN),
        message=told.get("message", ""),
        changed_at=unix(told["changedAt"]) if "changedAt" in told else now,
        rate_per_pod=told.get("ratePerPod"),
        calm=_watched_calm(stored, told, now=now),
    )
    return resumed(scale, now=now)


def _watched_calm(stored: Mapping[str, Any], told: Mapping[str, Any], *, now: float) -> tuple[Calm, ...]:
    """The calm of the status, without the time in which nobody watched: that proves nothing."""
    if "measuredAt" not in stored:
        return ()
    away = max(0.0, now - unix(stored["measuredAt"]))
    return tuple(Calm(one["replicas"], min(now, unix(one["since"]) + away)) for one in told.get("calm") or ())


def load_of(
    measurement: Measurement | None, pods: tuple[PodState, ...], rates: Rates, *, failures: int, now: float
) -> Load:
    """What may be believed of the load of a pair now."""
    fresh = measurement if measurement is not None and now <= measurement.believe_until else None
    backlog = fresh if isinstance(fresh, Backlog) else None
    reports = [
        report for pod in pods if not pod.terminating for report in [pod.fresh_report(now)] if report is not None
    ]
    silent = any(pod.silent(now) for pod in pods if not pod.terminating)
    well = [report for report in reports if report.database.ok and report.broker.ok]
    faulty = [
        report
        for report in reports
        if any(not side.ok and side.reason != "Starting" for side in (report.database, report.broker))
    ]
    return Load(
        rows=None if backlog is None else backlog.rows,
        arrival=None if backlog is None else rates.arrival,
        sent=rates.sent,
        pod_rates=tuple(report.rate_per_second for report in well if report.now - report.started_at >= WARM_SECONDS),
        blocked=bool(faulty) and not well,
        parked=None if silent else sum(report.parked_total for report in reports),
        partitions=max((report.partitions for report in reports if report.partitions is not None), default=None),
        failures=failures if isinstance(fresh, Failure) else 0,
    )
