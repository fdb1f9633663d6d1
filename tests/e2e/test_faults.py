"""Each fault has its own reason within 30 s, and heals within 30 s of being mended; nothing is restarted for it.

All faults are in one OutboxRelay, beside a healthy pair that must not notice: one broken database of a team must
not stop the others.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.e2e.stage import REACT_SECONDS, START_SECONDS, Stage, condition, insert, pair_status, uids, written
from tests.testbed.api import Object
from tests.testbed.relays import topic
from tests.testbed.services.eventually import eventually

RELAY = "faults"
HEALTHY = "untroubled"
ROWS = 20


def _login(stage: Stage, name: str, *, password: bytes | None = None) -> None:
    """Write a Secret with the relay's login, or with a wrong password for it."""
    data = dict(stage.api.get("Secret", "relay-login", namespace=stage.namespace)["data"])
    if password is not None:
        data["password"] = base64.b64encode(password).decode()
    metadata = {"name": name, "namespace": stage.namespace}
    stage.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def _late_service(stage: Stage) -> None:
    """Make another name for the PostgreSQL server."""
    metadata = {"name": "late-db", "namespace": stage.namespace}
    spec = {"selector": {"app": "postgres"}, "ports": [{"port": 5432}]}
    stage.api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


@dataclass(frozen=True)
class Fault:
    """What is wrong with one pair, and how it is mended without touching the OutboxRelay."""

    name: str
    reason: str
    named: str
    """What the message must name."""

    mend: Callable[[Stage], object]
    changes: Object = field(default_factory=dict)
    """To the entry of spec.databases."""

    table: bool = True
    topic: bool = True
    sql: str = "select"
    """What is done to the table."""

    @property
    def relation(self) -> str:
        return self.name.replace("-", "_")


FAULTS = (
    Fault(
        "no-secret",
        "SecretMissing",
        "late-login",
        mend=lambda stage: _login(stage, "late-login"),
        changes={"credentialsSecretRef": {"name": "late-login"}},
    ),
    Fault(
        "wrong-password",
        "AuthenticationFailed",
        "relay",
        mend=lambda stage: _login(stage, "wrong-login"),
        changes={"credentialsSecretRef": {"name": "wrong-login"}},
    ),
    Fault(
        "unreachable",
        "DatabaseUnreachable",
        "late-db",
        mend=_late_service,
        # verify-ca, since the server's certificate does not know this name.
        changes={"host": "late-db", "tls": {"mode": "verify-ca", "caSecretRef": {"name": "postgres-ca"}}},
    ),
    Fault(
        "no-table", "TableMissing", "public.no_table", mend=lambda stage: stage.create_table("no_table"), table=False
    ),
    Fault(
        "no-column",
        "ColumnMissing",
        "payload",
        mend=lambda stage: stage.sql("alter table no_column rename column body to payload"),
        sql="alter table no_column rename column payload to body",
    ),
    Fault(
        "no-grant",
        "PermissionDenied",
        "public.no_grant",
        mend=lambda stage: stage.sql("grant delete on no_grant to relay"),
        sql="revoke delete on no_grant from relay",
    ),
    Fault(
        "no-topic",
        "TopicMissing",
        "faults.no-topic",
        mend=lambda stage: stage.create_topic("faults.no-topic"),
        topic=False,
    ),
)


@pytest.fixture(scope="module")
def broken(stage: Stage) -> Stage:
    """One OutboxRelay with a healthy pair and one pair for each fault."""
    stage.create_table(HEALTHY)
    stage.create_topic(f"faults.{HEALTHY}")
    _login(stage, "wrong-login", password=b"not this one")
    databases = [stage.database(HEALTHY)]
    for fault in FAULTS:
        if fault.table:
            stage.create_table(fault.relation)
            stage.sql(fault.sql)
        if fault.topic:
            stage.create_topic(f"faults.{fault.name}")
        table = {"name": fault.relation, "columns": {"createdAt": "created_at"}}
        databases.append(stage.database(fault.name, table=table) | fault.changes)
    topics = [topic(entry["name"], topic=f"faults.{entry['name']}", databases=[entry["name"]]) for entry in databases]
    stage.api.create(stage.relay(RELAY, databases=databases, topics=topics))
    return stage


def _pair(stage: Stage, name: str) -> Object:
    return pair_status(stage.status(RELAY), database=name, topic=name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_reason(fault: Fault, broken: Stage) -> None:
    seen = eventually(
        lambda: pair if (pair := _pair(broken, fault.name)).get("reason") == fault.reason else None,
        seconds=REACT_SECONDS,
        what=f"pair {fault.name} to be {fault.reason}",
        detail=lambda: json.dumps(_pair(broken, fault.name), indent=1),
    )
    assert seen["ready"] is False
    assert fault.named in seen["message"]


def test_what_is_not_known_is_absent(broken: Stage) -> None:
    """A backlog that nobody can count is not 0, neither in the pair nor in the sum."""
    status = broken.wait_status(
        RELAY,
        lambda status: (
            (pair := pair_status(status, database=HEALTHY, topic=HEALTHY)).get("ready") and "backlog" in pair
        ),
        what="the healthy pair is ready and measured",
        seconds=START_SECONDS,
    )
    for name in ("wrong-password", "unreachable", "no-table", "no-secret"):
        pair = pair_status(status, database=name, topic=name)
        assert "backlog" not in pair, name
        assert "lagSeconds" not in pair, name
    assert "backlog" not in status
    assert condition(status, "Measured")["status"] != "True"
    assert [pair["database"] for pair in status["pairs"] if pair["ready"]] == [HEALTHY]
    assert status["pairsReady"] == f"1/{len(FAULTS) + 1}"
    ready = condition(status, "Ready")
    assert ready["status"] == "False"
    assert ready["reason"] in {fault.reason for fault in FAULTS}


def test_the_healthy_pair_does_not_notice(broken: Stage) -> None:
    assert _pair(broken, HEALTHY)["ready"] is True
    broken.write(HEALTHY, rows=ROWS)
    broken.wait_delivered(f"faults.{HEALTHY}", written(rows=ROWS))


@pytest.fixture(scope="module")
def mended(broken: Stage) -> tuple[Stage, set[str], set[str]]:
    """Every fault mended at once; with the pods that the operator and the healthy pair had before."""
    operator = uids(broken.operator_pods())
    healthy = uids(broken.relay_pods(RELAY))
    for fault in FAULTS:
        fault.mend(broken)
    return broken, operator, healthy


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_heals(fault: Fault, mended: tuple[Stage, set[str], set[str]]) -> None:
    stage, _, _ = mended
    eventually(
        lambda: _pair(stage, fault.name).get("ready"),
        seconds=REACT_SECONDS,
        what=f"pair {fault.name} to heal",
        detail=lambda: json.dumps(_pair(stage, fault.name), indent=1),
    )
    stage.sql(insert(fault.relation, rows=ROWS, keys=4, first=1))
    stage.wait_delivered(f"faults.{fault.name}", written(rows=ROWS, keys=4))


def test_nothing_was_restarted(mended: tuple[Stage, set[str], set[str]]) -> None:
    """Pods that waited for the mend are the ones that run now, and none of them crashed."""
    stage, operator, before = mended
    stage.wait_ready(RELAY)
    assert uids(stage.operator_pods()) == operator
    pods = stage.relay_pods(RELAY)
    assert before <= uids(pods)
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    assert set(restarts.values()) == {0}, restarts
