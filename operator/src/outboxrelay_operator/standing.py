"""For how long lanes have belonged to nobody, pair by pair. Pure.

Measured from report to report, not from pass to pass: one look at relays that are just handing lanes over must not
count for as long as it takes until the next.
"""

from __future__ import annotations

from outboxrelay_operator.facts import PairFacts


class Standing:
    """The pairs of one OutboxRelay that have lanes without an owner."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, facts: PairFacts) -> float:
        """Take the newest facts of a pair; returns how many seconds the lanes have stood still."""
        name = facts.pair.name
        if not facts.unowned_lanes:
            self._since.pop(name, None)
            return 0.0
        newest = max(pod.report_believe_until for pod in facts.pods if pod.fresh_report(facts.now) is not None)
        return newest - self._since.setdefault(name, newest)

    def pending(self) -> bool:
        """Whether there is such a pair."""
        return bool(self._since)
