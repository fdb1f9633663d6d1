"""What a status says of how well its pairs are known: DatabaseReachable, Measured and UnroutedRows. Pure.

Measured is either by the operator or, where that reads no Secrets, by relays (`through_relays`). A condition says only
what it is about: what Ready or another condition says of a pair already, it points to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outboxrelay_operator import conditions as catalogue
from outboxrelay_operator.conditions import RANK, Finding
from outboxrelay_operator.display import listed
from outboxrelay_operator.facts import Judged, PairFacts
from outboxrelay_operator.measurements import Failure
from outboxrelay_operator.observed import Observed
from outboxrelay_operator.unrouted import Leftover

Decision = tuple[bool | None, str, str]
"""Whether a condition holds (None: nobody knows), the reason and the message."""


def database_reachable(judged: Sequence[Judged], *, through_relays: bool) -> Decision:
    """Whether whoever measures reaches every database, and what keeps relays from hearing of new rows there."""
    failures = [each for each in _failures(judged) if each[1].reason in catalogue.CONNECTION_WORDS]
    if failures:
        who = "relays cannot" if through_relays else "the operator cannot"
        databases = [
            f"database {facts.pair.database.name} ({_place(facts)}), see {catalogue.READY}" if told else failure.message
            for facts, failure, told in failures
        ]
        return False, failures[0][1].reason, f"{who} log in: {listed(databases)}"
    if _unmeasured(judged) or not judged:
        tells = "only a relay that runs" if through_relays else "the operator"
        text = f"{tells} can tell, and has not yet, or too long ago: {listed(_unmeasured(judged)) or 'no pair'}"
        return None, catalogue.NOT_MEASURED, text
    polling = list(_polling(judged))
    if polling:
        return True, polling[0][0], listed([message for _, message in polling])
    who = "relays reach" if through_relays else "the operator reaches"
    return True, catalogue.CONNECTED, f"{who} every database"


def measured(observed: Observed, judged: Sequence[Judged], *, through_relays: bool) -> Decision:
    """Whether backlog and lag of every pair are fresh."""
    failures = _failures(judged)
    if failures:
        pairs = [_unknown(facts, failure, told=told) for facts, failure, told in failures]
        return False, failures[0][1].reason, f"backlog and lag are not known: {listed(pairs)}"
    if _unmeasured(judged) or not judged:
        return _not_measured(judged, through_relays=through_relays)
    slow = [facts for facts, _ in judged if getattr(facts.fresh_measurement, "index_missing", False)]
    if slow:
        tables = [
            f"table {facts.pair.database.table.qualified} in database {_place(facts)} has no index on column "
            f"{facts.pair.database.table.columns.id}: create one"
            for facts in slow
        ]
        return True, catalogue.INDEX_MISSING, listed(tables)
    if through_relays:
        text = "backlog and lag of every pair are fresh, as relays measure them: the operator reads no Secrets"
        scaling = None if observed.spec is None else observed.spec.autoscaling
        if scaling is not None and scaling.min_replicas == 0:
            text += "; so one relay of each pair stays, and autoscaling.minReplicas 0 counts as 1"
        return True, catalogue.MEASURED_BY_RELAYS, text
    return True, catalogue.ALL_MEASURED, "backlog and lag of every pair are fresh"


def unrouted(leftovers: Sequence[Leftover], *, through_relays: bool) -> Decision:
    """Whether there are rows that no topic takes."""
    return _unrouted_unknown(leftovers) if through_relays else _unrouted_rows(leftovers)


def _unrouted_rows(leftovers: Sequence[Leftover]) -> Decision:
    messages = [message for leftover in leftovers if (message := leftover.message) is not None]
    if messages:
        return True, catalogue.ROWS_UNROUTED, listed(messages)
    unknown = [leftover.place for leftover in leftovers if leftover.backlog is None]
    if unknown:
        return None, catalogue.NOT_MEASURED, f"not measured yet, or too long ago: {listed(unknown)}"
    return False, catalogue.ALL_ROUTED, "every row that waits is taken by a topic"


def _unrouted_unknown(leftovers: Sequence[Leftover]) -> Decision:
    places = listed([leftover.place for leftover in leftovers])
    text = f"nobody looks for rows that no topic takes, since the operator reads no Secrets: {places}"
    return None, catalogue.NOBODY_LOOKS, text


def _not_measured(judged: Sequence[Judged], *, through_relays: bool) -> Decision:
    names = listed(_unmeasured(judged)) or "no pair"
    if through_relays:
        text = f"only a relay that runs can measure, since the operator reads no Secrets; none has, lately: {names}"
    else:
        text = f"not measured yet, or too long ago: {names}"
    return None, catalogue.NOT_MEASURED, text


def _failures(judged: Sequence[Judged]) -> list[tuple[PairFacts, Failure, bool]]:
    """Pairs that could not be measured, the worst first, and whether Ready tells of the same fault."""
    failures = [
        (facts, failure, told_by_ready(finding, reason=failure.reason, message=failure.message))
        for facts, finding in judged
        if isinstance(failure := facts.fresh_measurement, Failure)
    ]
    return sorted(failures, key=lambda each: RANK.get(each[1].reason, len(RANK)))


def told_by_ready(finding: Finding, *, reason: str, message: str) -> bool:
    """Whether Ready tells of this fault already."""
    if finding.ready:
        return False
    # A Secret that is missing has a word of its own in Ready, and the same text behind the place.
    cause = message.partition(": ")[2] or message
    same = finding.reason == reason and reason not in catalogue.CATCH_ALL_WORDS
    return same or (bool(cause) and cause in finding.message)


def _unknown(facts: PairFacts, failure: Failure, *, told: bool) -> str:
    """Why a pair could not be measured, or which condition says it."""
    if failure.reason in catalogue.CONNECTION_WORDS:
        return f"pair {facts.pair}, see {catalogue.DATABASE_REACHABLE}"
    return f"pair {facts.pair}, see {catalogue.READY}" if told else failure.message


def _place(facts: PairFacts) -> str:
    return f"{facts.pair.database.dbname} on {facts.pair.database.address}"


def _polling(judged: Sequence[Judged]) -> Iterator[tuple[str, str]]:
    """Reason and message of relays that have to poll, although their table's wake is Notify: one of each table."""
    told = set()
    for facts, _ in judged:
        for report in facts.reports(facts.live_pods):
            wake = report.wake
            if wake is None or wake.reason not in catalogue.POLLING_WORDS or not report.database.ok:
                continue
            if wake.message not in told:
                told.add(wake.message)
                yield wake.reason, f"relay {report.pod}: {wake.message or wake.reason}"


def _unmeasured(judged: Sequence[Judged]) -> list[str]:
    return [f"pair {facts.pair}" for facts, _ in judged if facts.fresh_measurement is None and not facts.lost]
