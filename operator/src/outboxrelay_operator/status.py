"""The next status of an OutboxRelay, from what is known of its pairs. Pure.

What could not be measured is absent. Whether the result is worth a write is decided in `significance`.
"""

from __future__ import annotations

from collections.abc import Sequence

from outboxrelay.report import RelayReport
from outboxrelay.wording import counted
from outboxrelay_operator import conditions as catalogue
from outboxrelay_operator import known, slo
from outboxrelay_operator.api.slo import Slo
from outboxrelay_operator.api.status import (
    MAX_CALM,
    MAX_ERROR_MESSAGE,
    MAX_MESSAGE,
    MAX_PAIR_MESSAGE,
    MAX_SCALING_MESSAGE,
    BlockedBy,
    Condition,
    Display,
    OutboxRelayStatus,
    PairError,
    PairStatus,
    Scaling,
    ScalingCalm,
)
from outboxrelay_operator.conditions import RANK, Finding
from outboxrelay_operator.deployments import DeploymentState
from outboxrelay_operator.display import (
    NOTHING,
    UNKNOWN,
    combined,
    duration,
    listed,
    one_digit,
    rate,
    shortened,
    significant,
    timestamp,
)
from outboxrelay_operator.facts import Judged, PairFacts
from outboxrelay_operator.known import Decision
from outboxrelay_operator.measurements import Backlog
from outboxrelay_operator.names import selector
from outboxrelay_operator.observed import Object, Observed, controller_uid
from outboxrelay_operator.policies import pod_troubles
from outboxrelay_operator.unrouted import Leftover, unrouted_rows


def next_status(
    observed: Observed,
    judged: Sequence[Judged],
    *,
    now: float,
    leftovers: Sequence[Leftover] = (),
    through_relays: bool = False,
) -> Object:
    """The status as a plain dict. `now` is Unix time; `through_relays`: the operator reads no Secrets."""
    before = _pairs_before(observed)
    pairs = _with_slo(
        observed,
        judged,
        [_pair_status(facts, finding, before=before.get(facts.pair.name, {})) for facts, finding in judged],
    )
    mine = [pair for pair, (facts, _) in zip(pairs, judged, strict=True) if not facts.lost]
    backlogs = [pair for pair in mine if pair.backlog is not None]
    lags = [pair for pair in mine if pair.lag_seconds is not None]
    rates = [pair.rate_per_second for pair in mine if pair.rate_per_second is not None]
    parked = [pair.parked for pair in mine if pair.parked is not None]
    letters = [pair.dead_lettered for pair in mine if pair.dead_lettered is not None]
    total_backlog = sum(pair.backlog or 0 for pair in backlogs)
    total_lag = max((pair.lag_seconds or 0 for pair in lags), default=0)
    backlog_exact = all(pair.backlog_exact for pair in backlogs)
    lag_exact = all(pair.lag_exact for pair in lags)
    usable = observed.spec is not None
    running = _running(observed, judged)
    wanted = sum(pair.desired_replicas for pair in pairs) if usable else sum(state.wanted for state in running)

    def complete(known: Sequence[object]) -> bool:
        return usable and len(known) == len(mine)

    status = OutboxRelayStatus(
        observed_generation=observed.generation,
        conditions=_conditions(observed, judged, mine, leftovers, now=now, through_relays=through_relays),
        pairs_ready=f"{sum(pair.ready for pair in pairs)}/{len(pairs)}",
        pairs_total=len(pairs),
        replicas=sum(state.replicas for state in running),
        ready_replicas=sum(state.ready for state in running),
        replicas_per_pair=max((state.replicas for state in running), default=0),
        selector=selector(observed.owner.key.name),
        backlog=total_backlog if complete(backlogs) else None,
        backlog_exact=backlog_exact if complete(backlogs) else None,
        lag_seconds=total_lag if complete(lags) else None,
        lag_exact=lag_exact if complete(lags) else None,
        rate_per_second=significant(sum(rates)) if complete(rates) else None,
        parked=sum(parked) if complete(parked) else None,
        dead_lettered=sum(letters) if complete(letters) else None,
        unrouted=unrouted_rows(leftovers),
        display=Display(
            replicas=f"{sum(state.ready for state in running)}/{wanted}",
            backlog=combined(backlogs, exact=backlog_exact, complete=complete(backlogs), total=str(total_backlog)),
            lag=combined(lags, exact=lag_exact, complete=complete(lags), total=duration(total_lag)),
            rate=combined(rates, exact=True, complete=complete(rates), total=rate(sum(rates))),
            catch_up=_catch_up(mine, usable=usable),
        ),
        pairs=pairs,
    )
    return status.model_dump(mode="json", exclude_none=True)


def _pairs_before(observed: Observed) -> dict[str, Object]:
    return {pair.get("name", ""): pair for pair in observed.status.get("pairs") or ()}


def _running(observed: Observed, judged: Sequence[Judged]) -> list[DeploymentState]:
    """The Deployments of all pairs. Those of a spec that cannot be used go on, and are not nothing."""
    if observed.spec is not None:
        return [facts.deployment for facts, _ in judged if facts.deployment is not None]
    uid = observed.owner.uid
    return [DeploymentState.of(live) for live in observed.deployments.values() if controller_uid(live) == uid]


def _pair_status(facts: PairFacts, finding: Finding, *, before: Object) -> PairStatus:
    measurement = None if facts.lost else facts.fresh_measurement
    backlog = measurement if isinstance(measurement, Backlog) else None
    deployment = facts.deployment
    lag = None if backlog is None else backlog.lag_seconds
    reports = facts.reports(facts.live_pods)
    all_told = (bool(reports) and not facts.silent(facts.live_pods)) or _certainly_no_pods(facts)
    return PairStatus(
        name=facts.pair.name,
        database=facts.pair.database.name,
        topic=facts.pair.topic.name,
        ready=finding.ready,
        reason=finding.reason,
        message=None if finding.reason in ("Flowing", "Idle") else shortened(finding.message, MAX_PAIR_MESSAGE),
        desired_replicas=0 if facts.lost else facts.desired_replicas,
        scaling=_scaling(facts),
        replicas=0 if deployment is None else deployment.replicas,
        ready_replicas=0 if deployment is None else deployment.ready,
        backlog=None if backlog is None else backlog.rows,
        backlog_exact=None if backlog is None else backlog.exact,
        lag_seconds=None if lag is None else int(lag),
        lag_exact=None if backlog is None or lag is None else backlog.lag_exact,
        arrival_per_second=None if facts.rates.arrival is None else significant(facts.rates.arrival),
        rate_per_second=None if facts.rates.sent is None else significant(facts.rates.sent),
        catch_up_seconds=_catch_up_seconds(facts, backlog, flows=finding.ready),
        parked=sum(report.parked_total for report in reports) if all_told else None,
        halted_lanes=sum(len(report.halted_lanes) for report in reports) if all_told else None,
        # What relays that are gone have sent there is counted by nobody, and not 0.
        dead_lettered=sum(sum(report.dead_lettered.values()) for report in reports) if all_told and reports else None,
        last_error=_last_error(facts, before=before),
        blocked_by=_blocked_by(reports),
        measured_at=None if backlog is None else timestamp(backlog.at),
    )


def _scaling(facts: PairFacts) -> Scaling | None:
    scale = facts.scale
    if scale is None:
        return None
    return Scaling(
        reason=scale.reason,
        message=shortened(scale.message, MAX_SCALING_MESSAGE),
        changed_at=timestamp(scale.changed_at),
        rate_per_pod=None if scale.rate_per_pod is None else significant(scale.rate_per_pod),
        calm=tuple(ScalingCalm(replicas=calm.replicas, since=timestamp(calm.since)) for calm in facts.calm[:MAX_CALM])
        or None,
    )


def _blocked_by(reports: Sequence[RelayReport]) -> BlockedBy | None:
    """The oldest that any relay sees."""
    holders = [report.held_back_by for report in reports if report.held_back_by is not None]
    if not holders:
        return None
    holder = max(holders, key=lambda one: one.age_seconds or 0.0)
    age = holder.age_seconds
    return BlockedBy(
        what=shortened(holder.what, 32),
        pid=holder.pid,
        name=None if holder.name is None else shortened(holder.name, 64),
        database=None if holder.database is None else shortened(holder.database, 63),
        application=None if not holder.application else shortened(holder.application, 63),
        age_seconds=None if age is None else one_digit(age),
    )


def _certainly_no_pods(facts: PairFacts) -> bool:
    """Nobody can have parked anything; without a list of pods nobody knows."""
    return not facts.live_pods and facts.rates.sent is not None


def _catch_up_seconds(facts: PairFacts, backlog: Backlog | None, *, flows: bool) -> int | None:
    if backlog is None:
        return None
    if backlog.rows == 0:
        return 0
    # Rates are those of the last half minute: they outlast the relays that sent.
    if not flows or facts.rates.sent is None or facts.rates.arrival is None or facts.rates.sent <= facts.rates.arrival:
        return None
    return int(significant(backlog.rows / (facts.rates.sent - facts.rates.arrival), 2))


def _last_error(facts: PairFacts, *, before: Object) -> PairError | None:
    errors = [report.last_error for report in facts.reports(facts.live_pods) if report.last_error is not None]
    if not errors:
        # A pair that sleeps has no relay that could remember.
        kept = None if facts.live_pods else before.get("lastError")
        if kept is None:
            return None
        # Maybe by a newer operator, which allows for more.
        return _pair_error(
            reason=kept.get("reason", ""),
            message=kept.get("message", ""),
            row_id=kept.get("rowId"),
            key=kept.get("key"),
            at=kept.get("at"),
        )
    newest = max(errors, key=lambda error: error.at)
    return _pair_error(
        reason=newest.reason, message=newest.message, row_id=newest.row_id, key=newest.key, at=timestamp(newest.at)
    )


def _pair_error(*, reason: str, message: str, row_id: str | None, key: str | None, at: str | None) -> PairError:
    return PairError(
        reason=shortened(reason, 64),
        message=shortened(message, MAX_ERROR_MESSAGE),
        row_id=None if row_id is None else shortened(row_id, 64),
        key=None if key is None else shortened(key, 256),
        at=at,
    )


def _catch_up(pairs: Sequence[PairStatus], *, usable: bool) -> str:
    if not usable or any(pair.backlog is None for pair in pairs):
        return UNKNOWN
    known = [pair.catch_up_seconds for pair in pairs if pair.catch_up_seconds is not None]
    if len(known) < len(pairs) or not pairs:
        return NOTHING
    return duration(max(known))


def _conditions(
    observed: Observed,
    judged: Sequence[Judged],
    mine: Sequence[PairStatus],
    leftovers: Sequence[Leftover],
    *,
    now: float,
    through_relays: bool,
) -> tuple[Condition, ...]:
    before = {condition.get("type"): condition for condition in observed.status.get("conditions") or ()}

    def condition(type_: str, decision: tuple[bool | None, str, str]) -> Condition:
        holds, reason, message = decision
        status = "Unknown" if holds is None else str(holds)
        previous = before.get(type_, {})
        same = previous.get("status") == status and previous.get("lastTransitionTime")
        return Condition.model_validate(
            {
                "type": type_,
                "status": status,
                "observedGeneration": observed.generation,
                "lastTransitionTime": previous["lastTransitionTime"] if same else timestamp(now),
                "reason": reason,
                "message": shortened(message, MAX_MESSAGE),
            }
        )

    optional: list[Condition] = []
    if observed.spec is not None and observed.spec.slo is not None:
        met = _slo_met(observed.spec.slo, mine)
        optional.append(condition(catalogue.SLO_MET, met))
    if leftovers:
        unrouted = known.unrouted(leftovers, through_relays=through_relays)
        optional.append(condition(catalogue.UNROUTED_ROWS, unrouted))
    queued = [f"pair {facts.pair}" for facts, _ in judged if facts.queued]
    if queued:
        optional.append(condition(catalogue.ROLLOUT_QUEUED, _rollout_queued(queued)))
    return (
        condition(catalogue.READY, _ready(observed, judged)),
        condition(catalogue.DATABASE_REACHABLE, known.database_reachable(judged, through_relays=through_relays)),
        condition(catalogue.BROKER_REACHABLE, _broker_reachable(judged)),
        condition(catalogue.MEASURED, known.measured(observed, judged, through_relays=through_relays)),
        condition(catalogue.PODS_HEALTHY, _pods_healthy(judged)),
        condition(catalogue.CONFLICT, _conflict(judged)),
        *optional,
    )


def _ready(observed: Observed, judged: Sequence[Judged]) -> Decision:
    if observed.spec is None:
        return False, "InvalidSpec", f"OutboxRelay {observed.owner.key}: {observed.problem}; nothing was changed"
    findings = sorted((finding for _, finding in judged), key=lambda finding: RANK[finding.reason])
    worst = findings[0]
    if not worst.ready:
        bad = [finding for finding in findings if not finding.ready]
        of = f"of {counted(len(findings), 'pair')}"
        head = counted(len(bad), f"{of} is not ready: ", f"{of} are not ready: ")
        return False, worst.reason, head + listed([finding.message for finding in bad])
    if worst.reason == "RowsParked":
        return True, worst.reason, listed([finding.message for finding in findings if finding.reason == worst.reason])
    idle = sum(finding.reason == "Idle" for finding in findings)
    if idle == len(findings):
        return True, worst.reason, f"no row waits in {counted(idle, 'pair')}: the next one starts a relay"
    if idle:
        busy = counted(len(findings) - idle, "pair")
        return True, "Flowing", f"rows flow in {busy}, and none waits in the other {idle}"
    return True, worst.reason, f"rows flow in all {len(findings)} pairs" if len(findings) > 1 else "rows flow"


def _with_slo(observed: Observed, judged: Sequence[Judged], pairs: Sequence[PairStatus]) -> tuple[PairStatus, ...]:
    wanted = None if observed.spec is None else observed.spec.slo
    if wanted is None:
        return tuple(pairs)
    before = _pairs_before(observed)
    return tuple(
        pair
        if facts.lost
        else pair.model_copy(
            update={"slo_missed": slo.missed(wanted, pair, before=before.get(pair.name, {}).get("sloMissed") or ())}
        )
        for pair, (facts, _) in zip(pairs, judged, strict=True)
    )


def _slo_met(wanted: Slo, pairs: Sequence[PairStatus]) -> Decision:
    found = slo.excesses(wanted, pairs)
    if found:
        return False, found[0][0], listed([message for _, message in found])
    unknown = slo.unknown(wanted, pairs)
    if unknown or not pairs:
        return None, catalogue.NOT_MEASURED, f"not measured yet, or too long ago: {listed(unknown) or 'no pair'}"
    return True, catalogue.SLO_KEPT, "every pair keeps to spec.slo"


def _rollout_queued(pairs: Sequence[str]) -> Decision:
    message = (
        f"the operator has a new template for {listed(pairs)}: pods of the older one run on until fewer other "
        "OutboxRelays are rolling than the operator's maxConcurrentRollouts; an edit that changes the pods rolls them"
    )
    return True, catalogue.ROLLOUT_QUEUED, message


def _broker_reachable(judged: Sequence[Judged]) -> Decision:
    told = {facts.pair.name: _about_the_broker(facts) for facts, _ in judged if not facts.lost}
    reports = [report for some in told.values() for report in some]
    bad = [
        (report, facts, finding)
        for facts, finding in judged
        for report in told.get(facts.pair.name, ())
        if report.broker.reason in catalogue.BROKER_WORDS
    ]
    if bad:
        messages = [
            f"those of pair {facts.pair}, see {catalogue.READY}"
            if known.told_by_ready(finding, reason=report.broker.reason, message=report.broker.message)
            else f"{report.pod}: {report.broker.message or report.broker.reason}"
            for report, facts, finding in bad
        ]
        return False, bad[0][0].broker.reason, f"relays do not reach the brokers: {listed(messages)}"
    silent = [
        f"pair {facts.pair}"
        for facts, _ in judged
        if not facts.lost
        and not (facts.desired_replicas == 0 and not facts.live_pods)
        and all(report.broker.reason == "Starting" for report in told[facts.pair.name])
    ]
    if not reports:
        return None, catalogue.NO_REPORT, "no relay says anything about the brokers: none runs, or none answers"
    if silent:
        return None, catalogue.NO_REPORT, f"no relay says anything about the brokers of {listed(silent)}"
    return True, catalogue.CONNECTED, "the relays of every pair reach the brokers"


def _about_the_broker(facts: PairFacts) -> tuple[RelayReport, ...]:
    """What relays of the newest template say; while those only start, what the ones before them say."""
    current = facts.reports(facts.current_pods)
    if any(report.broker.reason != "Starting" for report in current):
        return current
    return facts.reports(facts.live_pods)


def _pods_healthy(judged: Sequence[Judged]) -> Decision:
    """Also while rows flow: of four pods three may run."""
    troubles = [trouble for facts, _ in judged for trouble in pod_troubles(facts)]
    if troubles:
        worst = min(troubles, key=lambda trouble: RANK[trouble.reason])
        return False, worst.reason, listed([trouble.message for trouble in troubles])
    return True, catalogue.NO_TROUBLE, "no relay pod is kept from running"


def _conflict(judged: Sequence[Judged]) -> Decision:
    lost = [f"pair {facts.pair}" for facts, finding in judged if finding.reason == "Conflict"]
    if lost:
        return True, "Conflict", f"another OutboxRelay serves the rows of {listed(lost)}, see {catalogue.READY}"
    return False, catalogue.NO_CONFLICT, "no other OutboxRelay serves the same rows"
