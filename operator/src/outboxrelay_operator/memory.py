"""What was measured lately, kept in memory between the loops that measure and the passes that report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from outboxrelay.report import Holder, LastError, SideState
from outboxrelay_operator.measure.rates import RateTracker
from outboxrelay_operator.measurements import UNKNOWN_RATES, Backlog, Failure, Measurement, PairId, PodState, Rates
from outboxrelay_operator.pairs import Key

PODS_BELIEVE_SECONDS = 60.0
"""How old the list of pods may be."""


class Memory:
    """Measurements, pods and rates by pair; tells `changed` which resource has news."""

    def __init__(self, *, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._measurements: dict[PairId, Measurement] = {}
        self._failures: dict[PairId, int] = {}
        self._rates: dict[PairId, RateTracker] = {}
        self._pods: dict[tuple[str, str], tuple[PodState, ...]] = {}
        self._pods_at: float | None = None
        self._never_listed: frozenset[str] = frozenset()
        self._watched: dict[tuple[str, str], PairId] = {}
        self._of_resource: dict[Key, dict[tuple[str, str], PairId]] = {}
        """The same by resource: a pass must not cost more the more resources there are."""

    def measured(self, pair: PairId, measurement: Measurement) -> None:
        """Take a new measurement of a pair, unless it is watched no more: one may be under way when that ends."""
        if self._watched.get((pair.key.namespace, pair.name)) != pair:
            return
        before, looked_at = self._measurements.get(pair), self._looked_at(pair)
        self._measurements[pair] = measurement
        self._failures[pair] = self._failures.get(pair, 0) + 1 if isinstance(measurement, Failure) else 0
        if isinstance(measurement, Backlog):
            tracker = self._rates.setdefault(pair, RateTracker())
            tracker.add(measurement, sent=self._sent(pair, now=measurement.at))
        news = before is None or _without_time(before) != _without_time(measurement)
        # From now on there are rates, too.
        if news or looked_at != self._looked_at(pair):
            self._changed(pair.key)

    def pods_listed(
        self,
        pods: Mapping[tuple[str, str], tuple[PodState, ...]],
        *,
        now: float,
        never_listed: frozenset[str] = frozenset(),
    ) -> None:
        """Take the pods of all pairs, by namespace and name of the pair; `never_listed` are unknown namespaces."""
        before, first = self._pods, self._pods_at is None
        self._pods = dict(pods)
        self._pods_at = now
        self._never_listed = never_listed
        for where, pair in self._watched.items():
            # That there are none is news, too, as long as nobody knew.
            if first or _seen(before.get(where, ())) != _seen(self._pods.get(where, ())):
                self._changed(pair.key)

    def measurement(self, pair: PairId) -> Measurement | None:
        """The newest measurement of a pair, however old."""
        return self._measurements.get(pair)

    def failures(self, pair: PairId) -> int:
        """How many measurements of a pair failed in a row."""
        return self._failures.get(pair, 0)

    def pods(self, pair: PairId) -> tuple[PodState, ...]:
        """The pods of a pair as last listed."""
        return self._pods.get((pair.key.namespace, pair.name), ())

    def complete(self, key: Key) -> bool:
        """Whether the pods were listed and each watched pair of a resource was looked at for long enough."""
        return self._pods_at is not None and all(map(self._looked_at, self._of_resource.get(key, {}).values()))

    def _looked_at(self, pair: PairId) -> bool:
        if isinstance(self._measurements.get(pair), Failure):
            return True
        tracker = self._rates.get(pair)
        return tracker is not None and tracker.settled

    def rates(self, pair: PairId, *, now: float) -> Rates:
        """The rates of a pair."""
        tracker = self._rates.get(pair)
        sent = self._sent(pair, now=now)
        return replace(UNKNOWN_RATES, sent=sent) if tracker is None else tracker.rates(sent=sent)

    def _sent(self, pair: PairId, *, now: float) -> float | None:
        if self._pods_at is None or now - self._pods_at > PODS_BELIEVE_SECONDS:
            return None
        if pair.key.namespace in self._never_listed:
            return None
        total = 0.0
        for pod in self.pods(pair):
            report = pod.fresh_report(now)
            if report is not None:
                total += report.rate_per_second
            elif not pod.terminating and pod.ready:
                return None
        return total

    def watch(self, key: Key, pairs: Iterable[PairId]) -> None:
        """From now on these are the pairs of a resource; forget all others of it."""
        wanted = {(pair.key.namespace, pair.name): pair for pair in pairs}
        before = self._of_resource.pop(key, {})
        for where, gone in before.items():
            if wanted.get(where) == gone:
                continue
            if self._watched.get(where) == gone:
                del self._watched[where]
            self._measurements.pop(gone, None)
            self._failures.pop(gone, None)
            self._rates.pop(gone, None)
        self._watched |= wanted
        if wanted:
            self._of_resource[key] = wanted


def _seen(pods: tuple[PodState, ...]) -> list[object]:
    """What of the pods shows in a status."""
    return [
        (
            pod.name,
            pod.ready,
            pod.terminating,
            pod.problem,
            None
            if report is None
            else (
                *map(_words, (report.database, report.broker, report.wake, report.last_error)),
                _who(report.held_back_by),
                report.sent_rows,
                report.parked_total,
                report.row_faults,
            ),
        )
        for pod in pods
        for report in [pod.report]
    ]


def _words(said: SideState | LastError | None) -> tuple[str, str] | None:
    """Without their time, which moves by itself."""
    return None if said is None else (said.reason, said.message)


def _who(holder: Holder | None) -> Holder | None:
    """As `_words`."""
    return None if holder is None else holder.model_copy(update={"age_seconds": None, "state": None})


def _without_time(measurement: Measurement) -> Measurement:
    if isinstance(measurement, Failure):
        return replace(measurement, at=0.0, believe_until=0.0)
    return replace(measurement, at=0.0, believe_until=0.0, highest_id=None)
