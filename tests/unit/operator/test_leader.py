"""Leadership: the pure decision, the Lease that is written, and the fence around writes (OS-05)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from outboxrelay_operator.kube import Kind, KubeError
from outboxrelay_operator.leader import (
    TIMING,
    Election,
    Fenced,
    NotLeadingError,
    Step,
    Timing,
    decide,
    next_lease,
)
from tests.unit.operator.fake_kube import FakeKube

AT = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)


def lease(holder: str | None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "l", "resourceVersion": "3"}, "spec": {"holderIdentity": holder} | spec}


@pytest.mark.parametrize(
    ("found", "unchanged_for", "step"),
    [
        (None, 0, Step.CREATE),
        (lease("me"), 99, Step.RENEW),
        (lease("other"), 0, Step.WAIT),
        (lease("other"), TIMING.lease - 0.1, Step.WAIT),
        (lease("other"), TIMING.lease, Step.TAKE),
        (lease("other", leaseDurationSeconds=30), 29, Step.WAIT),
        (lease(""), 0, Step.TAKE),
        (lease(None), 0, Step.TAKE),
    ],
)
def test_what_to_do(found: dict[str, Any] | None, unchanged_for: float, step: Step) -> None:
    assert decide(found, me="me", unchanged_for=unchanged_for) is step


def test_a_taken_lease_counts_the_transition_and_keeps_its_version() -> None:
    body = next_lease(
        lease("other", leaseTransitions=4), Step.TAKE, me="me", namespace="ns", name="lease", seconds=15, now=AT
    )
    assert body["metadata"]["resourceVersion"] == "3"
    assert body["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-01-02T03:04:05.678900Z",
        "acquireTime": "2026-01-02T03:04:05.678900Z",
        "leaseTransitions": 5,
    }


def test_renewing_keeps_when_it_was_acquired() -> None:
    body = next_lease(
        lease("me", acquireTime="before", leaseTransitions=4),
        Step.RENEW,
        me="me",
        namespace="",
        name="lease",
        seconds=15,
        now=AT,
    )
    assert (body["spec"]["acquireTime"], body["spec"]["leaseTransitions"]) == ("before", 4)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def leads(election: Election) -> bool:
    """A call, since what `leads` says changes with time."""
    return election.leads


def candidate(kube: FakeKube, clock: Clock, me: str = "me", name: str = "lease") -> Election:
    return Election(kube=kube, me=me, namespace="ns", name=name, clock=clock)


async def test_the_first_candidate_leads_and_the_second_waits() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock), candidate(kube, clock, "other")
    await first.acquire()
    await second.attempt()
    assert (first.leads, second.leads) == (True, False)


async def test_a_silent_leader_is_replaced_after_the_lease_and_knows_it_earlier() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock), candidate(kube, clock, "other")
    await first.acquire()
    await second.attempt()
    clock.now += TIMING.deadline
    assert not leads(first)
    await second.attempt()
    assert not leads(second)
    clock.now += TIMING.lease - TIMING.deadline
    await second.attempt()
    assert leads(second)
    await first.attempt()
    assert not leads(first)


def test_os_05_another_leads_within_twenty_seconds_and_never_beside_the_old_one() -> None:
    """cases.md OS-05. What remains is one request: a look at the Lease, whose answer makes a leader."""
    assert TIMING.lease + TIMING.retry < 20
    for timing in (TIMING, Timing(3), Timing(300)):
        assert timing.retry < timing.deadline < timing.lease - timing.retry


async def test_the_lease_says_how_long_it_counts() -> None:
    kube, clock = FakeKube(), Clock()
    mine = Election(kube=kube, me="me", namespace="ns", name="lease", clock=clock, timing=Timing(45))
    await mine.acquire()
    stored = await kube.get(Kind.LEASE, "ns", "lease")
    assert stored is not None
    assert stored["spec"]["leaseDurationSeconds"] == 45
    clock.now += 29
    assert leads(mine)
    clock.now += 1
    assert not leads(mine)


async def test_a_released_lease_is_taken_at_once() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock), candidate(kube, clock, "other")
    await first.acquire()
    await first.release()
    assert not leads(first)
    await second.attempt()
    assert leads(second)


async def test_an_api_server_that_is_away_for_a_moment_costs_no_leadership() -> None:
    kube, clock = FakeKube(), Clock()
    first = candidate(kube, clock)
    await first.acquire()
    kube.fail_with = KubeError("asking", status=0, reason="Unreachable", message="")
    clock.now += 4
    await first.attempt()
    assert leads(first)
    clock.now += 6
    await first.attempt()
    assert not leads(first)


async def test_a_request_that_nobody_answers_costs_no_leadership() -> None:
    """A connection that was lost on the way says nothing; another one is well."""
    kube, clock = FakeKube(), Clock()
    first = Election(kube=kube, me="me", namespace="ns", name="lease", clock=clock, timing=Timing(0.3))
    await first.acquire()
    kube.answering = asyncio.Event()
    await first.attempt()
    assert (first.well, leads(first)) == (False, True)
    kube.answering = None
    await first.attempt()
    assert (first.well, leads(first)) == (True, True)


def test_after_a_look_that_takes_too_long_there_is_time_for_another() -> None:
    for timing in (TIMING, Timing(3), Timing(300)):
        assert timing.retry + timing.patience + timing.retry < timing.deadline


async def test_of_two_candidates_at_once_the_api_server_chooses_one() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock), candidate(kube, clock, "other")
    await first.acquire()
    await first.release()
    stale = await kube.get(Kind.LEASE, "ns", "lease")
    assert stale is not None
    await first.attempt()
    kube.answers[Kind.LEASE, "ns", "lease"] = stale
    await second.attempt()
    assert (first.leads, second.leads) == (True, False)


async def test_os_05_who_does_not_lead_writes_nothing_but_reads() -> None:
    """cases.md OS-05."""
    kube = FakeKube()
    fenced = Fenced(kube, lambda: False)
    body = {"kind": "Deployment", "metadata": {"namespace": "ns", "name": "n"}}
    with pytest.raises(NotLeadingError):
        await fenced.apply(body, force=True)
    with pytest.raises(NotLeadingError):
        await fenced.merge_patch(Kind.POD, "ns", "n", {})
    with pytest.raises(NotLeadingError):
        await fenced.create(Kind.EVENT, body)
    with pytest.raises(NotLeadingError):
        await fenced.replace(Kind.LEASE, body)
    with pytest.raises(NotLeadingError):
        await fenced.delete(Kind.DEPLOYMENT, "ns", "n", uid="u")
    assert await fenced.get(Kind.DEPLOYMENT, "ns", "n") is None
    assert await fenced.list(Kind.DEPLOYMENT, "ns") == []
    assert kube.writes == []


async def test_two_installations_in_one_namespace_lead_side_by_side() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock, "a", name="rel-a"), candidate(kube, clock, "b", name="rel-b")
    await first.attempt()
    await second.attempt()
    assert leads(first)
    assert leads(second)


async def test_a_lease_that_may_not_be_read_is_said_once_and_makes_unready(caplog: pytest.LogCaptureFixture) -> None:
    kube, clock = FakeKube(), Clock()
    mine = candidate(kube, clock)
    kube.fail_with = KubeError("asking", status=403, reason="Forbidden", message="no right")
    for _ in range(3):
        await mine.attempt()
    assert not mine.well
    assert len([text for text in caplog.messages if "no right" in text]) == 1
    kube.fail_with = None
    await mine.attempt()
    assert mine.well
