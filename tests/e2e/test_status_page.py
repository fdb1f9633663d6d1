"""The states that a user meets first, side by side, as kubectl shows them: the source of docs/status.md."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.e2e.stage import START_SECONDS, Stage, pair_status
from tests.e2e.status_page import PAGE, Section, Shown, render, vocabulary
from tests.testbed.relays import topic

WRITE = "OUTBOXRELAY_WRITE_STATUS_PAGE"
"""Set: docs/status.md is written anew; else it is compared."""

INVOICES = 100_000

SLOW = """
create function slowly() returns trigger language plpgsql as $$ begin perform pg_sleep(0.001); return old; end $$;
create trigger slowly before delete on lagging for each row execute function slowly()"""
"""At most a thousand rows a second and pod: it lags for as long as one looks at it, on a machine of any speed."""

OVERVIEW = "`READY` says whether rows can flow in every pair; `-o wide` adds why not, and when a backlog will be gone."

STATES = {
    "healthy": "Every pair carries its rows, and nothing waits.",
    "lagging": (
        "Rows flow (`Ready` is True), but more of them wait than `spec.slo` allows, and `SloMet` says so.\n"
        "`Catch Up Seconds` is when the backlog will be gone at the present rate."
    ),
    "misconfigured": (
        "The name of a table has a typing error, and a Secret does not exist. Each pair says what is wrong with it\n"
        "and what to do. The third one carries its rows meanwhile; the other two will by themselves, once they can."
    ),
    "conflicting": (
        "An older OutboxRelay carries the rows of this table to this topic, so this one runs nothing: two would send\n"
        "each row twice. It takes over when the older one is deleted."
    ),
}
"""The OutboxRelays, and what to look at in each."""


@pytest.fixture(scope="module")
def shown(stage: Stage) -> Stage:
    """Each OutboxRelay in its state; the one that lags last, since it will not for ever."""
    stage.serve("healthy")
    stage.write("healthy", rows=500)
    stage.api.create(
        stage.relay("conflicting", databases=[stage.database("healthy")], topics=[topic("healthy", topic="healthy")])
    )
    _misconfigure(stage)
    stage.wait_told(
        "misconfigured",
        Ready=("False", "SecretMissing"),
        DatabaseReachable=("False", "CredentialsMissing"),
        seconds=START_SECONDS,
    )
    stage.wait_told("conflicting", Ready=("False", "Conflict"), Conflict=("True", "Conflict"), seconds=START_SECONDS)
    stage.wait_told("healthy", Ready=("True", "Flowing"), Conflict=("False", "NoConflict"), seconds=START_SECONDS)
    stage.serve("lagging", slo={"maxBacklog": 1000, "maxLagSeconds": 60}, replicas=2)
    stage.sql(SLOW)
    stage.write("lagging", rows=INVOICES, keys=100)
    return stage


def _misconfigure(stage: Stage) -> None:
    stage.create_table("payments")
    stage.create_topic("payments")
    databases = {
        "payments": stage.database("payments"),
        "misspelt": stage.database("misspelt", table={"name": "paymnets"}),
        "stranger": stage.database("stranger", credentialsSecretRef={"name": "no-such-secret"}),
    }
    topics = [topic(name, topic="payments", databases=[name]) for name in databases]
    stage.api.create(stage.relay("misconfigured", databases=list(databases.values()), topics=topics))


def _kubectl(stage: Stage, command: str) -> Shown:
    return Shown(command=f"kubectl {command}", output=stage.cluster.kubectl(*command.split()))


def _pairs(stage: Stage, name: str) -> dict[str, Any]:
    status = stage.status(name)
    return {each: pair_status(status, database=each, topic=each) for each in ("payments", "misspelt", "stranger")}


def test_the_page_shows_what_kubectl_shows(shown: Stage) -> None:
    shown.wait_status(
        "lagging",
        lambda status: pair_status(status, database="lagging", topic="lagging").get("catchUpSeconds"),
        what="when the backlog will be gone",
        seconds=START_SECONDS,
    )
    shown.wait_told("lagging", Ready=("True", "Flowing"), SloMet=("False", "BacklogTooHigh"), seconds=START_SECONDS)
    pairs = _pairs(shown, "misconfigured")
    assert {name: (pair["ready"], pair["reason"]) for name, pair in pairs.items()} == {
        "payments": (True, "Flowing"),
        "misspelt": (False, "TableMissing"),
        "stranger": (False, "SecretMissing"),
    }
    overview = [_kubectl(shown, command) for command in ("get obr -A", "get obr -A -o wide")]
    sections = [Section("All at once", OVERVIEW, overview)]
    for name, text in STATES.items():
        described = _kubectl(shown, f"describe obr {name} -n {shown.namespace}")
        sections.append(Section(name.capitalize(), text, [described]))
    page = render(sections)
    if WRITE in os.environ:
        PAGE.write_text(page)
    assert vocabulary(PAGE.read_text()) == vocabulary(page), "docs/status.md is outdated: run `make status-page`"
