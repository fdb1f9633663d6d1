"""The operator with fewer rights than by default; what protects its relays; no right of the chart too many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outboxrelay_operator.names import pair_name, shared_name
from tests.e2e.install import install
from tests.e2e.stage import REACT_SECONDS, RELEASE, START_SECONDS, Stage, condition, uids, verdict_of
from tests.testbed.api import ApiError, Object, path_of
from tests.testbed.audit import requests_of
from tests.testbed.charts import Right, render, rights
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

RELAY = "frugal"
FEWER: Object = {"secretAccess": False, "relayNetworkPolicy": {"enabled": True, "prometheusNamespaces": ["monitoring"]}}

NOT_IN_THE_LOG: set[Right] = {("outboxrelay.io", "outboxrelays/finalizers", "update")}
"""Asked for by an admission plugin about other requests; without it the testbed's API server would refuse those."""


@pytest.fixture
def frugal(stage: Stage) -> Iterator[Stage]:
    """The operator may not read Secrets, and makes NetworkPolicies."""
    _replace(stage, **FEWER)
    yield stage
    _replace(stage)


def _replace(stage: Stage, **values: object) -> None:
    """Install with other values, and wait until only the new operator is left, and ready."""
    before = uids(stage.operator_pods())
    install(stage, **values)

    def replaced() -> bool:
        pods = stage.operator_pods()
        conditions = [c for pod in pods for c in pod["status"].get("conditions") or ()]
        ready = [c for c in conditions if (c["type"], c["status"]) == ("Ready", "True")]
        return len(pods) == len(ready) == 1 and not uids(pods) & before

    eventually(replaced, seconds=START_SECONDS, what="the operator with other values")


def _wait_measured(stage: Stage, verdict: tuple[str, str], *, backlog: int | None) -> Object:
    """Wait for the condition Measured and the backlog that goes with it; returns the status."""
    return stage.wait_status(
        RELAY,
        lambda status: verdict_of(status, "Measured") == verdict and status.get("backlog") == backlog,
        what=f"Measured is {verdict} with a backlog of {backlog}",
        seconds=START_SECONDS,
    )


def _account(stage: Stage) -> str:
    return f"system:serviceaccount:{stage.namespace}:{RELEASE}"


def _sessions(stage: Stage) -> list[str]:
    """Names of the sessions of relays and operator."""
    return stage.sql("select application_name from pg_stat_activity where usename = 'relay'").splitlines()


def test_relays_measure_for_an_operator_that_reads_no_secrets(frugal: Stage) -> None:
    """Backlog and lag are those of the table; without a relay they are absent, never 0."""
    with pytest.raises(ApiError) as refusal:
        frugal.api.acting_as(_account(frugal)).get("Secret", "relay-login", namespace=frugal.namespace)
    assert refusal.value.code == 403

    frugal.create_table(RELAY)
    frugal.write(RELAY, rows=7)
    frugal.sql(f"update {RELAY} set created_at = now() - interval '1 hour' where id = 1")
    # Rows wait, since there is no topic yet.
    frugal.api.create(
        frugal.relay(RELAY, databases=[frugal.database(RELAY)], topics=[topic(RELAY, topic=RELAY)], replicas=2)
    )
    status = _wait_measured(frugal, ("True", "MeasuredByRelays"), backlog=7)
    assert 3600 <= status["lagSeconds"] < 3600 + START_SECONDS
    assert (status["backlogExact"], condition(status, "Ready")["reason"]) == (True, "TopicMissing")
    assert condition(status, "DatabaseReachable")["status"] == "True"

    frugal.create_topic(RELAY)
    frugal.wait_ready(RELAY)
    _wait_measured(frugal, ("True", "MeasuredByRelays"), backlog=0)
    assert not [name for name in _sessions(frugal) if name.startswith("outboxrelay-operator")]
    assert 3 <= len(_sessions(frugal)) <= 4, "two relays, of which each was asked to look at most"
    requests = frugal.requests()
    assert not [request for request in requests if request[1] == "secrets" or request[2] == "403"]
    assert frugal.api.get("NetworkPolicy", shared_name(RELAY), namespace=frugal.namespace)["spec"]["egress"]

    frugal.api.merge("OutboxRelay", RELAY, {"spec": {"suspend": True}}, namespace=frugal.namespace)
    eventually(lambda: not frugal.all_relay_pods(RELAY), seconds=START_SECONDS, what="the relays to be gone")
    frugal.write(RELAY, rows=1, first=8)
    status = _wait_measured(frugal, ("Unknown", "NotMeasured"), backlog=None)
    assert "only a relay that runs can measure" in condition(status, "Measured")["message"]
    frugal.api.merge("OutboxRelay", RELAY, {"spec": {"suspend": False}}, namespace=frugal.namespace)
    _wait_measured(frugal, ("True", "MeasuredByRelays"), backlog=0)


def test_with_access_it_measures_itself_again(stage: Stage) -> None:
    """And the policies go with the option: one that stays in force would be nobody's."""
    _wait_measured(stage, ("True", "AllMeasured"), backlog=0)
    assert [name for name in _sessions(stage) if name.startswith("outboxrelay-operator")]
    stage.gone("NetworkPolicy", shared_name(RELAY))


def test_relays_are_evicted_one_at_a_time(stage: Stage) -> None:
    """What drains a node asks the same."""
    name = pair_name(relay=RELAY, database=RELAY, topic=RELAY)

    def allowed() -> int:
        budget = stage.api.get("PodDisruptionBudget", name, namespace=stage.namespace)
        return int(budget.get("status", {}).get("disruptionsAllowed", 0))

    eventually(lambda: allowed() == 1, seconds=START_SECONDS, what="the budget to allow for one eviction")
    first, second = (pod["metadata"]["name"] for pod in stage.relay_pods(RELAY))
    _evict(stage, first)
    with pytest.raises(ApiError) as refusal:
        _evict(stage, second)
    assert refusal.value.code == 429
    stage.wait_ready(RELAY)


def _evict(stage: Stage, pod: str) -> None:
    stage.api.request(
        "POST",
        path_of("Pod", pod, namespace=stage.namespace, subresource="eviction"),
        body={
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": stage.namespace},
        },
    )


def test_relays_have_an_account_of_their_own_and_no_token(stage: Stage) -> None:
    for pod in stage.relay_pods(RELAY):
        assert pod["spec"]["serviceAccountName"] == shared_name(RELAY)
        assert {kind for volume in pod["spec"]["volumes"] for kind in volume} <= {"name", "configMap", "secret"}


def test_hp_05_no_right_is_missing_and_none_too_many(stage: Stage) -> None:
    """cases.md HP-05: what the chart grants, as the tests before and this one install it, is what the operator uses."""
    log = stage.cluster.audit_log
    if log is None:
        pytest.skip("the audit log of this cluster's API server cannot be read from here")
    namespace = {"namespace": stage.namespace}

    # A change of a Secret, a pair that leaves, and a second relay that leaves.
    stage.create_table("rights")
    stage.api.apply(_copy(stage, "rights-login"))
    database = stage.database("rights", credentialsSecretRef={"name": "rights-login"})
    for name in ("staying", "leaving"):
        stage.create_topic(name)
    topics = [topic(name, topic=name, match=[name]) for name in ("staying", "leaving")]
    stage.api.create(stage.relay("rights", databases=[database], topics=topics))
    stage.wait_ready("rights")
    stage.api.apply(_copy(stage, "rights-login", more="eA=="))
    stage.api.merge("OutboxRelay", "rights", {"spec": {"topics": topics[:1]}}, **namespace)
    stage.api.merge("OutboxRelay", RELAY, {"spec": {"replicas": 1}}, **namespace)

    usual, fewer = _granted(stage, {}), _granted(stage, FEWER)

    def unused() -> set[Right]:
        return (
            (usual | fewer)
            - NOT_IN_THE_LOG
            - {
                right
                for request in requests_of(_account(stage), log)
                # What everybody may do is granted by nobody's chart.
                if request.allowed and f'Role "{RELEASE}' in request.reason
                for right in request.rights
            }
        )

    eventually(
        lambda: not unused(),
        seconds=START_SECONDS + REACT_SECONDS,
        what="every right to be used",
        detail=lambda: f"too many: {sorted(unused())}",
        interval_seconds=2,
    )

    def asked(*, allowed: bool) -> set[tuple[str, Right]]:
        """Namespaces and rights."""
        return {
            (request.namespace, right)
            for request in requests_of(_account(stage), log)
            if request.allowed == allowed and request.namespace in ("", stage.namespace)
            for right in request.rights
        }

    # An API server that has just started refuses what its roles grant, until it has read them.
    refused = {right for _, right in asked(allowed=False) - asked(allowed=True)}
    # And while one installation replaces the other, the operator of before has the rights of the one that comes.
    assert refused - (usual ^ fewer) == set(), "missing"


def _granted(stage: Stage, values: Object) -> set[Right]:
    scope = {"watchNamespaces": [stage.namespace]}
    return rights(render(stage.cluster, release=RELEASE, namespace=stage.namespace, values=scope | values))


def _copy(stage: Stage, name: str, **more: str) -> Object:
    """The relay's login under another name."""
    data = stage.api.get("Secret", "relay-login", namespace=stage.namespace)["data"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": stage.namespace},
        "data": {**data, **more},
    }
