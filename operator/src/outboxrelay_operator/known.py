"""What a status says of how well its pairs are known: DatabaseReachable, Measured and UnroutedRows. Pure.

Measured is either by the operator or, where that reads no Secrets, by relays (`through_relays`).
"""

from __future__ import annotations

from collections.abc import Sequence

from outboxrelay_operator import conditions as catalogue
from outboxrelay_operator.conditions import RANK
from outboxrelay_operator.display import listed
from outboxrelay_operator.facts import Judged
from outboxrelay_operator.measurements import Failure
from outboxrelay_operator.observed import Observed
from outboxrelay_operator.unrouted import Leftover

Decision = tuple[bool | None, str, str]
"""Whether a condition holds (None: nobody knows), the reason and the message."""


def database_reachable(judged: Sequence[Judged], *, through_relays: bool) -> Decision:
    """Whether whoever measures reaches every database."""
    failures = _failures(judged, catalogue.CONNECTION_WORDS)
    if failures:
        return False, failures[0].reason, listed([failure.message for failure in failures])
    if _unmeasured(judged) or not judged:
        return _not_measured(judged, through_relays=through_relays)
    who = "relays reach" if through_relays else "the operator reaches"
    return True, catalogue.CONNECTED, f"{who} every database"


def measured(observed: Observed, judged: Sequence[Judged], *, through_relays: bool) -> Decision:
    """Whether backlog and lag of every pair are fresh."""
    failures = _failures(judged, None)
    if failures:
        return False, failures[0].reason, listed([failure.message for failure in failures])
    if _unmeasured(judged) or not judged:
        return _not_measured(judged, through_relays=through_relays)
    slow = [facts for facts, _ in judged if getattr(facts.fresh_measurement, "index_missing", False)]
    if slow:
        tables = [
            f"table {facts.pair.database.table.qualified} in database {facts.pair.database.dbname} on "
            f"{facts.pair.database.address} has no index on column {facts.pair.database.table.columns.id}: create one"
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


def _failures(judged: Sequence[Judged], words: frozenset[str] | None) -> list[Failure]:
    failures = [facts.fresh_measurement for facts, _ in judged if isinstance(facts.fresh_measurement, Failure)]
    chosen = [failure for failure in failures if words is None or failure.reason in words]
    return sorted(chosen, key=lambda failure: RANK.get(failure.reason, len(RANK)))


def _unmeasured(judged: Sequence[Judged]) -> list[str]:
    return [f"pair {facts.pair}" for facts, _ in judged if facts.fresh_measurement is None and not facts.lost]
