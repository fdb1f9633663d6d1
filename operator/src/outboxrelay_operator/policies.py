"""Why rows do, or do not, flow in a pair: an ordered tuple of checks, of which the first hit counts. Pure.

The tuple is the documentation. The relays' own reports come before the operator's measurement here, since
they are the ones that must reach the database; the operator's is what is left while no relay runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from outboxrelay.report import RelayReport, SideState
from outboxrelay.wording import counted
from outboxrelay_operator.conditions import BY_WORD, Finding
from outboxrelay_operator.facts import PairFacts
from outboxrelay_operator.measurements import Backlog, Failure, PodState
from outboxrelay_operator.scale import CONNECTION_BUDGET

Check = Callable[[PairFacts], Finding | None]

_IMAGE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)


def blocked(facts: PairFacts) -> Finding | None:
    """A conflict, a missing Secret, a name that is taken."""
    return facts.blocked


def refused(facts: PairFacts) -> Finding | None:
    """The API server does not take the Deployment."""
    return facts.refused


def idle(facts: PairFacts) -> Finding | None:
    """Autoscaling wants no pod, and would see the next row; or it would want one, if there were a connection for it."""
    if facts.scale is None or facts.desired_replicas > 0:
        return None
    if facts.scale.reason == CONNECTION_BUDGET:
        return Finding(CONNECTION_BUDGET, f"pair {facts.pair} has no relay: {facts.scale.message}")
    if not isinstance(facts.fresh_measurement, Backlog):
        return None
    return Finding("Idle", f"pair {facts.pair}: no row waits: the next one starts a relay")


def stopped(facts: PairFacts) -> Finding | None:
    """No pod is wanted."""
    if facts.scale is not None:
        return None
    if facts.desired_replicas == 0 and facts.deployment is not None and facts.deployment.replicas > 0:
        relays = counted(facts.deployment.replicas, "relay is", "relays are")
        return Finding("Stopping", f"pair {facts.pair}: its {relays} being stopped")
    if facts.suspended:
        return Finding("Suspended", f"pair {facts.pair} is stopped by spec.suspend")
    if facts.desired_replicas == 0:
        return Finding("ScaledToZero", f"pair {facts.pair} is stopped by spec.replicas 0")
    return None


def flowing(facts: PairFacts) -> Finding | None:
    """A relay reaches both ends, and none holds lanes without: then the rest is not an obstacle.

    During a rollout the older relays count as long as nothing is known against the new ones.
    """
    current = facts.reports(facts.current_pods)
    if any(map(_stalls, current)) or facts.lanes_stand or lanes_are_halted(facts):
        return None
    if any(map(_flows, current)):
        return parked(facts) or _flowing(facts)
    if any(map(_faulty, current)) or any(pod.problem for pod in facts.current_pods) or _stuck(facts):
        return None
    everyone = facts.reports(facts.live_pods)
    if any(map(_flows, everyone)) or (not everyone and facts.ready_replicas > 0):
        return parked(facts) or _flowing(facts)
    return None


def _flows(report: RelayReport) -> bool:
    return report.database.ok and report.broker.ok


def _faulty(report: RelayReport) -> bool:
    return any(not side.ok and side.reason != "Starting" for side in (report.database, report.broker))


def _stalls(report: RelayReport) -> bool:
    """A relay that holds lanes and cannot serve them: the rows of their keys wait, whatever the others do."""
    return _faulty(report) and bool(report.lanes_owned)


def _stuck(facts: PairFacts) -> bool:
    return facts.deployment is not None and (
        facts.deployment.stuck or (facts.deployment.create_problem is not None and not facts.deployment.rolled_out)
    )


def parked(facts: PairFacts) -> Finding | None:
    """Rows that the broker refuses as they are."""
    reports = facts.reports(facts.live_pods)
    total = sum(report.parked_total for report in reports)
    if total == 0:
        return None
    worst = next((row for report in reports for row in report.parked), None)
    detail = "" if worst is None else f"; row {worst.row_id}: {worst.reason}: {worst.message}"
    rows = counted(total, "parked row holds back its key", "parked rows hold back their keys")
    return Finding("RowsParked", f"pair {facts.pair}: {rows}{detail}")


def _flowing(facts: PairFacts) -> Finding:
    return Finding("Flowing", f"pair {facts.pair}: rows flow")


def relays_cannot_reach_the_database(facts: PairFacts) -> Finding | None:
    """What the relays say about the database."""
    return _reported(facts, lambda report: report.database, "DatabaseError")


def relays_cannot_reach_the_broker(facts: PairFacts) -> Finding | None:
    """What the relays say about the broker."""
    return _reported(facts, lambda report: report.broker, "BrokerError")


def _reported(facts: PairFacts, side_of: Callable[[RelayReport], SideState], unknown: str) -> Finding | None:
    for report in facts.reports(facts.current_pods):
        side = side_of(report)
        if not side.ok and side.reason != "Starting":
            word = side.reason if side.reason in BY_WORD else unknown
            return Finding(word, f"pair {facts.pair}: relay {report.pod}: {side.message or side.reason}")
    return None


def operator_cannot_reach_the_database(facts: PairFacts) -> Finding | None:
    """What the operator found while no relay says anything."""
    measurement = facts.fresh_measurement
    if facts.reports(facts.current_pods) or not isinstance(measurement, Failure):
        return None
    word = measurement.reason if measurement.reason in BY_WORD else "DatabaseError"
    return Finding(word, f"pair {facts.pair}: {measurement.message}")


def pods_cannot_be_created(facts: PairFacts) -> Finding | None:
    """A quota or an admission policy; only the ReplicaSet knows, and the Deployment repeats it."""
    if facts.deployment is None or facts.deployment.create_problem is None:
        return None
    return Finding("FailedCreate", f"pair {facts.pair}: {facts.deployment.create_problem}")


def pods_cannot_run(facts: PairFacts) -> Finding | None:
    """Images that cannot be pulled, pods that no node takes, containers that crash."""
    return next((_trouble(facts, pod) for pod in facts.current_pods if pod.problem is not None), None)


def _trouble(facts: PairFacts, pod: PodState) -> Finding:
    reason, message = pod.problem or ("Unknown", "")
    word = (
        "ImagePullFailed"
        if reason in _IMAGE_REASONS
        else "Unschedulable"
        if reason == "Unschedulable"
        else "PodsFailing"
    )
    return Finding(word, f"pair {facts.pair}: pod {pod.name}: {reason}{f': {message}' if message else ''}")


def pod_troubles(facts: PairFacts) -> list[Finding]:
    """What keeps pods of a pair from running, whether rows flow through others or not."""
    create = pods_cannot_be_created(facts)
    troubles = [_trouble(facts, pod) for pod in facts.live_pods if pod.problem is not None]
    return [*([] if create is None else [create]), *troubles, *_left_behind(facts)]


def _left_behind(facts: PairFacts) -> Iterator[Finding]:
    """Relays that cannot work while others of the pair can: where none can, the conditions of both ends tell."""
    if not any(map(_flows, facts.reports(facts.live_pods))):
        return
    for pod in facts.live_pods:
        report = pod.fresh_report(facts.now)
        if report is None or pod.ready or not _faulty(report):
            continue
        side = report.broker if report.database.ok else report.database
        yield Finding("PodsNotReady", f"pair {facts.pair}: relay {pod.name}: {side.message or side.reason}")


def lanes_are_halted(facts: PairFacts) -> Finding | None:
    """The policy Halt stopped lanes for the sake of rows at fault."""
    reports = facts.reports(facts.live_pods)
    lanes = sorted({lane for report in reports for lane in report.halted_lanes})
    if not lanes:
        return None
    worst = next((row for report in reports for row in report.parked), None)
    detail = "" if worst is None else f"; row {worst.row_id}: {worst.reason}: {worst.message}"
    still = counted(len(lanes), "lane stands still", "lanes stand still")
    return Finding("LanesHalted", f"pair {facts.pair}: {still} for rows at fault{detail}")


def lanes_stand_still(facts: PairFacts) -> Finding | None:
    """The rows of some keys wait, although a relay is well: its fellow hangs, or somebody else holds the locks."""
    if not facts.lanes_stand:
        return None
    report = facts.reports(facts.pods)[0]
    count, lanes = len(facts.unowned_lanes), f"of {counted(report.lanes, 'lane')}"
    silent = [pod.name for pod in facts.live_pods if not pod.ready and pod.fresh_report(facts.now) is None]
    if silent:
        still = counted(count, f"{lanes} stands still", f"{lanes} stand still")
        pods = counted(len(silent), f"pod {silent[0]} is", f"pods {', '.join(silent)} are")
        text = f"pair {facts.pair}: {pods} not ready and no answer came; {still}"
        return Finding("PodsNotReady", text)
    text = (
        f"pair {facts.pair}: no relay owns {count} {lanes}: another session of the database holds their advisory"
        " locks, maybe one of a relay whose node is gone; see pg_locks"
    )
    return Finding("LanesUnowned", text)


def starting(facts: PairFacts) -> Finding | None:
    """A rollout is under way."""
    if facts.deployment is not None and facts.deployment.stuck:
        return None
    return Finding("Starting", f"pair {facts.pair}: waiting for the first relay to be ready")


def not_ready(facts: PairFacts) -> Finding:
    """Nothing else explains it."""
    return Finding("PodsNotReady", f"pair {facts.pair}: no relay is ready; see the events and logs of its pods")


CHECKS: tuple[Check, ...] = (
    blocked,
    refused,
    idle,
    stopped,
    flowing,
    relays_cannot_reach_the_database,
    operator_cannot_reach_the_database,
    relays_cannot_reach_the_broker,
    pods_cannot_be_created,
    pods_cannot_run,
    lanes_are_halted,
    lanes_stand_still,
    starting,
    not_ready,
)


def judge(facts: PairFacts) -> Finding:
    """The finding about one pair."""
    for check in CHECKS:
        finding = check(facts)
        if finding is not None:
            return finding
    raise AssertionError("the last check always finds something")
