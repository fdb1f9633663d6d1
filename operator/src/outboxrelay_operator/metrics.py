"""The operator's Prometheus metrics. Numbers of pairs are read from the newest statuses, so none outlives its pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from outboxrelay_operator.conditions import READY, SLO_MET
from outboxrelay_operator.observed import Object
from outboxrelay_operator.pairs import Key

_PAIR_LABELS = ("namespace", "name", "pair", "database", "topic")

_PAIR_GAUGES = (
    ("outboxrelay_backlog_rows", "backlog", "Rows that wait to be sent."),
    ("outboxrelay_lag_seconds", "lagSeconds", "Age of the oldest row that waits."),
    ("outboxrelay_sent_rows_per_second", "ratePerSecond", "Rows sent a second, lately."),
    ("outboxrelay_arrived_rows_per_second", "arrivalPerSecond", "Rows written a second, lately."),
    (
        "outboxrelay_catch_up_seconds",
        "catchUpSeconds",
        "Seconds until no row waits, if rows go on being sent and written as they are lately.",
    ),
    ("outboxrelay_parked_rows", "parked", "Rows that the broker refuses as they are."),
    ("outboxrelay_pair_ready", "ready", "1 if rows flow in the pair."),
    ("outboxrelay_pair_desired_replicas", "desiredReplicas", "Relay pods that the pair should have."),
    ("outboxrelay_pair_replicas", "replicas", "Relay pods of the pair."),
    ("outboxrelay_pair_ready_replicas", "readyReplicas", "Relay pods of the pair that reach both ends."),
)


class _Statuses(Collector):
    def __init__(self, statuses: Callable[[], Mapping[Key, Object]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterable[GaugeMetricFamily]:
        statuses = dict(self._statuses())
        for metric, field, text in _PAIR_GAUGES:
            family = GaugeMetricFamily(metric, text, labels=_PAIR_LABELS)
            for key, status in statuses.items():
                for pair in status["pairs"]:
                    if field in pair:
                        labels = (key.namespace, key.name, pair["name"], pair["database"], pair["topic"])
                        family.add_metric(labels, float(pair[field]))
            yield family
        ready = GaugeMetricFamily(
            "outboxrelay_ready", "1 if rows flow in every pair.", labels=("namespace", "name", "reason")
        )
        slo = GaugeMetricFamily(
            "outboxrelay_slo_met", "1 if every pair keeps to spec.slo.", labels=("namespace", "name")
        )
        for key, status in statuses.items():
            for condition in status["conditions"]:
                value = float(condition["status"] == "True")
                if condition["type"] == READY:
                    ready.add_metric((key.namespace, key.name, condition["reason"]), value)
                if condition["type"] == SLO_MET and condition["status"] != "Unknown":
                    slo.add_metric((key.namespace, key.name), value)
        yield ready
        yield slo
        unrouted = GaugeMetricFamily(
            "outboxrelay_unrouted_rows", "Rows that no topic takes, to 10,001 a table.", labels=("namespace", "name")
        )
        for key, status in statuses.items():
            if "unrouted" in status:
                unrouted.add_metric((key.namespace, key.name), float(status["unrouted"]))
        yield unrouted


class Metrics:
    """Counters and gauges of one operator process, in a registry of their own."""

    def __init__(
        self,
        *,
        statuses: Callable[[], Mapping[Key, Object]],
        queue_depth: Callable[[], float],
        rollouts_queued: Callable[[], float],
        fields_missing: Callable[[], float],
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_Statuses(statuses))
        Gauge(
            "outboxrelay_operator_queue_depth",
            "OutboxRelays that wait for a pass or are in one.",
            registry=self.registry,
        ).set_function(queue_depth)
        Gauge(
            "outboxrelay_operator_rollouts_queued",
            "OutboxRelays whose pods wait for the template of this operator.",
            registry=self.registry,
        ).set_function(rollouts_queued)
        Gauge(
            "outboxrelay_operator_crd_fields_missing",
            "Fields that this operator knows and the installed CustomResourceDefinition does not: upgrade it.",
            registry=self.registry,
        ).set_function(fields_missing)
        self._leader = Gauge("outboxrelay_operator_leader", "1 if this process leads.", registry=self.registry)
        self._passes = Histogram(
            "outboxrelay_operator_reconcile_seconds",
            "Duration of passes over one OutboxRelay.",
            ("outcome",),
            registry=self.registry,
        )
        self._applied = Counter(
            "outboxrelay_operator_applied", "Objects sent to the API server.", ("kind",), registry=self.registry
        )
        self._requests = Counter(
            "outboxrelay_operator_api_requests",
            "Requests to the API server; code 0 had no answer.",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "outboxrelay_operator_api_request_seconds",
            "Duration of requests to the API server.",
            ("verb",),
            buckets=(0.01, 0.05, 0.25, 1.0, 5.0),
            registry=self.registry,
        )

    def leading(self, leads: bool) -> None:
        """This process became leader, or is none."""
        self._leader.set(float(leads))

    def passed(self, seconds: float, *, failed: bool) -> None:
        """A pass ended."""
        self._passes.labels("failed" if failed else "done").observe(seconds)

    def applied(self, kind: str) -> None:
        """An owned object was sent to the API server."""
        self._applied.labels(kind).inc()

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server ended."""
        self._requests.labels(verb, resource, str(code)).inc()
        self._request_seconds.labels(verb).observe(seconds)
