"""Small valid objects, to be varied by tests."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from outboxrelay.report import LastError, ParkedRow, RelayReport, SideState
from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.deployments import DeploymentState
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.facts import PairFacts
from outboxrelay_operator.measurements import Backlog, Failure, PodState
from outboxrelay_operator.observed import Observed, SecretState, parse
from outboxrelay_operator.pairs import Key, Owner, Pair, pairs_of
from outboxrelay_operator.scale import Scale

NOW = 1_800_000_000.0
KEY = Key("shop", "shop")
OWNER = Owner(key=KEY, uid="uid-shop", created="2026-01-01T00:00:00Z")
IMAGE = RelayImage(name="outboxrelay/relay:1", pull_policy="IfNotPresent")


def raw_database(name: str = "orders", **changes: Any) -> dict[str, Any]:
    """One entry of spec.databases."""
    return {
        "name": name,
        "host": f"{name}-db",
        "dbname": name,
        "credentialsSecretRef": {"name": f"{name}-db"},
    } | changes


def raw_topic(name: str = "orders", **changes: Any) -> dict[str, Any]:
    """One entry of spec.topics."""
    return {"name": name, "topic": f"shop.{name}"} | changes


def raw_spec(**changes: Any) -> dict[str, Any]:
    """A spec of one pair."""
    return {
        "databases": [raw_database()],
        "kafka": {"bootstrapServers": ["kafka:9092"]},
        "topics": [raw_topic()],
    } | changes


def spec(**changes: Any) -> OutboxRelaySpec:
    """A spec of one pair, as the model."""
    return OutboxRelaySpec.model_validate(raw_spec(**changes))


def relay(raw: dict[str, Any] | None = None, *, owner: Owner = OWNER, generation: int = 1) -> dict[str, Any]:
    """An OutboxRelay as the API server returns it."""
    return {
        "apiVersion": "outboxrelay.io/v1alpha1",
        "kind": "OutboxRelay",
        "metadata": {
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
            "creationTimestamp": owner.created,
            "generation": generation,
        },
        "spec": raw_spec() if raw is None else deepcopy(raw),
    }


def observed(raw: dict[str, Any] | None = None, *, owner: Owner = OWNER) -> Observed:
    """What is known of an OutboxRelay that was just created."""
    return parse(relay(raw, owner=owner))


def pair(raw: dict[str, Any] | None = None) -> Pair:
    """The first pair of a spec."""
    return pairs_of(KEY, OutboxRelaySpec.model_validate(raw or raw_spec()))[0]


SECRETS = {
    f"{name}-db": SecretState(version="1", keys=frozenset({"username", "password"})) for name in ("orders", "payments")
}


def live(deployment: dict[str, Any], *, uid: str = "uid-deployment", **status: Any) -> dict[str, Any]:
    """A Deployment as the API server returns it, with defaults filled in and a status."""
    body = deepcopy(deployment)
    body["metadata"] |= {"uid": uid, "generation": 1, "resourceVersion": "7"}
    body["spec"]["template"]["spec"] |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    replicas = body["spec"]["replicas"]
    body["status"] = {
        "observedGeneration": 1,
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas,
    } | status
    return body


def backlog(rows: int = 0, **changes: Any) -> Backlog:
    """A fresh measurement."""
    values: dict[str, Any] = {
        "rows": rows,
        "exact": True,
        "lag_seconds": 0.0,
        "lag_exact": True,
        "highest_id": 100,
        "whole_table": True,
        "index_missing": False,
        "at": NOW,
        "believe_until": NOW + 20,
    }
    return Backlog(**(values | changes))


def failure(reason: Any, message: str = "what happened", **changes: Any) -> Failure:
    """A fresh failure to measure."""
    values: dict[str, Any] = {"reason": reason, "message": message, "at": NOW, "believe_until": NOW + 20}
    return Failure(**(values | changes))


def side(ok: bool = True, reason: str = "Connected", message: str = "") -> SideState:
    """One end of a relay."""
    return SideState(ok=ok, reason=reason, message=message, since=NOW)


def report(**changes: Any) -> RelayReport:
    """A relay that is well."""
    values: dict[str, Any] = {
        "pod": "relay-0",
        "pair": "p",
        "owner": "shop/shop",
        "started_at": NOW - 100,
        "now": NOW,
        "cycles": 10,
        "sent_rows": 5,
        "sent_bytes": 500,
        "rate_per_second": 0.0,
        "lanes": 16,
        "lanes_owned": tuple(range(16)),
        "members": 1,
        "database": side(),
        "broker": side(),
        "parked_total": 0,
        "parked": (),
        "row_faults": 0,
        "config_digest": "d",
    }
    return RelayReport(**(values | changes))


def parked_row(**changes: Any) -> ParkedRow:
    """A row that the broker refuses."""
    values: dict[str, Any] = {
        "row_id": "17",
        "key": "k",
        "reason": "RowTooLarge",
        "message": "too large",
        "attempts": 3,
        "first_failed_at": NOW,
        "next_attempt_at": NOW,
    }
    return ParkedRow(**(values | changes))


def last_error(**changes: Any) -> LastError:
    """The newest failure of a relay."""
    values: dict[str, Any] = {"reason": "BrokerUnreachable", "message": "no answer", "at": NOW}
    return LastError(**(values | changes))


def pod(**changes: Any) -> PodState:
    """A ready pod with a fresh report."""
    values: dict[str, Any] = {
        "name": "relay-0",
        "uid": "uid-pod",
        "ready": True,
        "terminating": False,
        "problem": None,
        "template_digest": "d",
        "secrets_annotation": "",
        "report": report(),
        "report_believe_until": NOW + 20,
    }
    return PodState(**(values | changes))


def state(**changes: Any) -> DeploymentState:
    """A Deployment that is all right."""
    values: dict[str, Any] = {
        "wanted": 1,
        "replicas": 1,
        "ready": 1,
        "rolled_out": True,
        "replacing": False,
        "stuck": False,
        "create_problem": None,
    }
    return DeploymentState(**(values | changes))


def scale(replicas: int = 0, **changes: Any) -> Scale:
    """A decision of autoscaling."""
    values: dict[str, Any] = {"reason": "Idle", "message": "no row waits", "changed_at": NOW - 60, "at": NOW}
    return Scale(replicas=replicas, **(values | changes))


def facts(**changes: Any) -> PairFacts:
    """A pair in which rows flow."""
    values: dict[str, Any] = {
        "pair": pair(),
        "now": NOW,
        "suspended": False,
        "desired_replicas": 1,
        "deployment": state(),
        "pods": (pod(),),
        "measurement": backlog(),
        "template_digest": "d",
    }
    return PairFacts(**(values | changes))
