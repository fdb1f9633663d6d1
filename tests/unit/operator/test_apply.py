"""Carrying out a plan: only what differs is sent, one failure stops nobody else, nothing foreign is touched."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from outboxrelay_operator.apply import Outcome, carry_out, has_work
from outboxrelay_operator.attempts import Attempts
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.desired.network_policy import NetworkRules
from outboxrelay_operator.kube import Kind, KubeError
from outboxrelay_operator.observed import Observed
from outboxrelay_operator.plan import make_plan
from tests.unit.operator.builders import IMAGE, NOW, SECRETS, observed, raw_database, raw_spec
from tests.unit.operator.fake_kube import FakeKube

TWO = raw_spec(databases=[raw_database(), raw_database("payments")])


async def carried_out(
    kube: FakeKube,
    seen: Observed,
    attempts: Attempts | None = None,
    *,
    now: float = NOW,
    network: NetworkRules | None = None,
) -> Outcome:
    plan = make_plan(seen, lost={}, secrets=SECRETS, image=IMAGE, network=network)
    return await carry_out(kube, plan, seen, attempts or Attempts(), applied=lambda _: None, now=now)


def work(
    seen: Observed, attempts: Attempts | None = None, *, now: float = NOW, network: NetworkRules | None = None
) -> bool:
    plan = make_plan(seen, lost={}, secrets=SECRETS, image=IMAGE, network=network)
    return has_work(plan, seen, attempts or Attempts(), now=now)


def names(seen: Observed) -> list[str]:
    return [pair.name for pair in seen.pairs]


async def test_what_was_applied_is_not_applied_again() -> None:
    kube, seen = FakeKube(), observed(TWO)
    assert work(seen)
    await carried_out(kube, seen)
    assert [kind for _, kind, _ in kube.writes] == ["ConfigMap", "ServiceAccount", "Deployment", "Deployment"]
    assert not work(seen)
    kube.writes.clear()
    await carried_out(kube, seen)
    assert kube.writes == []


async def test_only_what_differs_is_sent() -> None:
    kube, seen = FakeKube(), observed(TWO)
    await carried_out(kube, seen)
    kube.writes.clear()
    first, second = names(seen)
    seen.deployments[second]["spec"]["replicas"] = 7
    await carried_out(kube, seen)
    assert kube.writes == [("apply", "Deployment", second)]
    assert first in seen.deployments


async def test_a_field_that_is_no_longer_wanted_is_taken_back() -> None:
    kube = FakeKube()
    limited = {"pod": {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}}
    seen = observed(raw_spec(**limited))
    await carried_out(kube, seen)
    kube.writes.clear()
    relaxed = observed(raw_spec(pod={"resources": {"requests": {"cpu": "1"}}}))
    relaxed.shared, relaxed.deployments = seen.shared, seen.deployments
    await carried_out(kube, relaxed)
    assert [kind for _, kind, _ in kube.writes] == ["Deployment"]


def refusal(status: int) -> KubeError:
    return KubeError("applying", status=status, reason="R", message="exceeded quota")


@pytest.mark.parametrize("status", [403, 422])
async def test_what_the_api_server_refuses_concerns_its_pair_only(status: int) -> None:
    kube, seen = FakeKube(), observed(TWO)
    first, second = names(seen)
    kube.refuse[first] = refusal(status)
    outcome = await carried_out(kube, seen)
    assert list(outcome.refused) == [first]
    assert outcome.refused[first].reason == "ApplyRefused"
    assert "exceeded quota" in outcome.refused[first].message
    assert second in seen.deployments
    assert outcome.error is not None


OWNER_NOT_KNOWN = KubeError(
    "applying",
    status=403,
    reason="Forbidden",
    message='configmaps "shop-relays" is forbidden: cannot set blockOwnerDeletion in this case because cannot find '
    "RESTMapping for APIVersion outboxrelay.io/v1alpha1 Kind OutboxRelay: no matches for kind",
)
"""As in the first seconds of a CRD."""


@pytest.mark.parametrize("error", [*map(refusal, (0, 409, 429, 500)), OWNER_NOT_KNOWN], ids=str)
async def test_what_may_go_away_by_itself_is_tried_again_and_no_finding(error: KubeError) -> None:
    kube, seen = FakeKube(), observed(TWO)
    first, second = names(seen)
    kube.refuse[first] = error
    outcome = await carried_out(kube, seen)
    assert outcome.refused == {}
    assert outcome.error is not None
    assert second in seen.deployments


async def test_without_the_config_map_no_deployment_is_made() -> None:
    kube, seen = FakeKube(), observed(TWO)
    kube.refuse["shop-relays"] = refusal(403)
    outcome = await carried_out(kube, seen)
    assert sorted(outcome.refused) == sorted(names(seen))
    assert kube.writes == []


async def test_a_deployment_of_somebody_else_is_not_taken_over() -> None:
    kube, seen = FakeKube(), observed()
    [name] = names(seen)
    foreign: dict[str, Any] = {"metadata": {"namespace": "shop", "name": name}, "spec": {"replicas": 1}}
    kube.put(Kind.DEPLOYMENT, deepcopy(foreign))
    outcome = await carried_out(kube, seen)
    assert outcome.refused[name].reason == "NameTaken"
    assert kube.objects[Kind.DEPLOYMENT, "shop", name]["spec"] == foreign["spec"]


async def test_a_deployment_that_lost_its_labels_is_found_again() -> None:
    kube, seen = FakeKube(), observed()
    await carried_out(kube, seen)
    [name] = names(seen)
    kube.objects[Kind.DEPLOYMENT, "shop", name]["metadata"]["labels"] = {}
    again = observed()
    again.shared = seen.shared
    outcome = await carried_out(kube, again)
    assert outcome.refused == {}
    assert kube.objects[Kind.DEPLOYMENT, "shop", name]["metadata"]["labels"]


def narrow(seen: Observed) -> tuple[Observed, str]:
    """What is seen of `TWO` once it has one pair less, and the Deployment of the one that went."""
    narrowed = observed()
    narrowed.shared, narrowed.deployments = seen.shared, seen.deployments
    return narrowed, names(seen)[1]


async def test_what_is_unwanted_is_deleted_once() -> None:
    kube, seen = FakeKube(), observed(TWO)
    await carried_out(kube, seen)
    narrowed, gone = narrow(seen)
    await carried_out(kube, narrowed)
    assert ("delete", "Deployment", gone) in kube.writes
    assert gone not in narrowed.deployments


SEVERAL = raw_spec(replicas=2)


async def test_a_budget_follows_its_deployment_and_is_deleted_when_it_is_not_needed() -> None:
    kube, seen = FakeKube(), observed(SEVERAL)
    [name] = names(seen)
    await carried_out(kube, seen)
    assert kube.writes[-2:] == [("apply", "Deployment", name), ("apply", "PodDisruptionBudget", name)]
    assert not work(seen)
    seen.budgets[name]["spec"]["maxUnavailable"] = 0
    assert work(seen)
    await carried_out(kube, seen)
    assert kube.objects[Kind.DISRUPTION_BUDGET, "shop", name]["spec"]["maxUnavailable"] == 1
    single = observed()
    single.shared, single.deployments, single.budgets = seen.shared, seen.deployments, seen.budgets
    await carried_out(kube, single)
    assert (Kind.DISRUPTION_BUDGET, "shop", name) not in kube.objects
    assert (Kind.DEPLOYMENT, "shop", name) in kube.objects
    assert not work(single)


async def test_a_budget_that_is_refused_is_no_fault_of_the_pair() -> None:
    """Rows flow without it; it is tried again, ever later."""
    kube, seen, attempts = FakeKube(), observed(SEVERAL), Attempts()
    await carried_out(kube, seen, attempts)
    [name] = names(seen)
    seen.budgets.clear()
    kube.refuse[name] = refusal(403)
    outcome = await carried_out(kube, seen, attempts, now=NOW + 1)
    assert outcome.refused == {}
    assert outcome.error is not None
    assert not work(seen, attempts, now=NOW + 1.5)
    assert work(seen, attempts, now=NOW + 60)


async def test_a_policy_is_deleted_when_the_option_is_switched_off() -> None:
    kube, seen = FakeKube(), observed()
    network = NetworkRules(operator_namespace="outboxrelay")
    await carried_out(kube, seen, network=network)
    where = (Kind.NETWORK_POLICY, "shop", "shop-relays")
    assert where in kube.objects
    assert not work(seen, network=network)
    assert work(seen)
    await carried_out(kube, seen)
    assert where not in kube.objects
    assert not work(seen)


class TestPace:
    """What is refused, or changed back by somebody else, is sent again later each time, once a minute at last."""

    async def seconds(self, kube: FakeKube, seen: Observed, *, about: str, undo: bool = False) -> list[int]:
        """The seconds, of 200 passes a second apart, in which something was asked about one object."""
        attempts, when = Attempts(), []
        for second in range(200):
            kube.asked.clear()
            expected = work(seen, attempts, now=NOW + second)
            self.outcome = await carried_out(kube, seen, attempts, now=NOW + second)
            assert expected == bool(kube.asked)
            if about in kube.asked:
                when.append(second)
            if undo:
                seen.deployments[about]["spec"]["replicas"] = 9
        return when

    async def test_a_refused_deployment(self) -> None:
        kube, seen = FakeKube(), observed(TWO)
        first, second = names(seen)
        kube.refuse[first] = refusal(403)
        assert await self.seconds(kube, seen, about=first) == [0, 1, 3, 7, 15, 31, 63, 123, 183]
        assert self.outcome.refused[first].reason == "ApplyRefused"
        assert self.outcome.error is None
        assert self.outcome.retry_at == NOW + 183 + 60
        assert second in seen.deployments

    async def test_one_that_fails_for_no_fault_of_its_own(self) -> None:
        """A webhook that is down, say: HTTP 500."""
        kube, seen = FakeKube(), observed()
        [name] = names(seen)
        kube.refuse[name] = refusal(500)
        assert len(await self.seconds(kube, seen, about=name)) == 9

    async def test_a_refused_config_map_keeps_the_deployments_waiting(self) -> None:
        kube, seen = FakeKube(), observed(TWO)
        kube.refuse["shop-relays"] = refusal(403)
        assert len(await self.seconds(kube, seen, about="shop-relays")) == 9
        assert sorted(self.outcome.refused) == sorted(names(seen))
        assert kube.writes == []

    async def test_a_name_that_is_taken(self) -> None:
        kube, seen = FakeKube(), observed()
        [name] = names(seen)
        kube.put(Kind.DEPLOYMENT, {"metadata": {"namespace": "shop", "name": name}, "spec": {"replicas": 1}})
        assert len(await self.seconds(kube, seen, about=name)) == 9
        assert self.outcome.refused[name].reason == "NameTaken"

    async def test_a_refused_deletion(self) -> None:
        kube, seen = FakeKube(), observed(TWO)
        await carried_out(kube, seen)
        narrowed, gone = narrow(seen)
        kube.refuse[gone] = refusal(403)
        assert len(await self.seconds(kube, narrowed, about=gone)) == 9

    async def test_a_deletion_that_a_finalizer_holds_up(self) -> None:
        kube, seen = FakeKube(), observed(TWO)
        await carried_out(kube, seen)
        narrowed, gone = narrow(seen)
        held, attempts, when = narrowed.deployments[gone], Attempts(), []
        for second in range(200):
            kube.writes.clear()
            await carried_out(kube, narrowed, attempts, now=NOW + second)
            if ("delete", "Deployment", gone) in kube.writes:
                when.append(second)
            # What the next read finds.
            kube.objects[Kind.DEPLOYMENT, "shop", gone] = narrowed.deployments[gone] = held
        assert when == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184]

    async def test_ol_09_what_somebody_else_changes_back(self, caplog: pytest.LogCaptureFixture) -> None:
        """cases.md OL-09: no endless fight over a count; it is retried less and less often, and said once."""
        kube, seen = FakeKube(), observed()
        [name] = names(seen)
        # The first repair is made at once.
        assert await self.seconds(kube, seen, about=name, undo=True) == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184]
        [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert f"Deployment shop/{name} is changed back" in warning
        assert "spec.replicas" in warning

    async def test_what_is_newly_wanted_need_not_wait(self) -> None:
        kube, seen, attempts = FakeKube(), observed(), Attempts()
        [name] = names(seen)
        kube.refuse[name] = refusal(403)
        for second in (0, 1, 3):
            await carried_out(kube, seen, attempts, now=NOW + second)
        assert not work(seen, attempts, now=NOW + 4)
        edited = observed(raw_spec(replicas=2))
        edited.shared = seen.shared
        assert work(edited, attempts, now=NOW + 4)

    async def test_what_was_quiet_for_long_is_repaired_at_once(self) -> None:
        kube, seen, attempts = FakeKube(), observed(), Attempts()
        [name] = names(seen)
        for second in (0, 1, 2, 4, 8, 300):
            await carried_out(kube, seen, attempts, now=NOW + second)
            seen.deployments[name]["spec"]["replicas"] = 9
        assert work(seen, attempts, now=NOW + 300)


async def test_a_deployment_that_waits_for_its_turn_is_scaled_and_else_left_alone() -> None:
    kube, seen = FakeKube(), observed(TWO)
    await carried_out(kube, seen)
    kube.writes.clear()
    first, second = names(seen)
    before = deepcopy(seen.deployments[first]["spec"]["template"])
    newer = RelayImage(name="relay:newer", pull_policy="IfNotPresent")
    plan = make_plan(seen, lost={}, secrets=SECRETS, image=newer, scaled={first: 3}).holding([first, second])
    assert has_work(plan, seen, Attempts(), now=NOW)
    await carry_out(kube, plan, seen, Attempts(), applied=lambda _: None, now=NOW)
    assert kube.writes == [("patch", "Deployment", first)]
    assert seen.deployments[first]["spec"]["replicas"] == 3
    assert seen.deployments[first]["spec"]["template"] == before
    assert not has_work(plan, seen, Attempts(), now=NOW)


async def test_it_is_scaled_also_while_what_all_relays_share_is_refused() -> None:
    kube, seen, attempts = FakeKube(), observed(TWO), Attempts()
    await carried_out(kube, seen)
    first, second = names(seen)
    seen.shared["ConfigMap"]["data"] = {}
    kube.refuse["shop-relays"] = KubeError("applying", status=403, reason="Forbidden", message="a policy")
    await carried_out(kube, seen, attempts)
    assert not work(seen, attempts)
    plan = make_plan(seen, lost={}, secrets=SECRETS, image=IMAGE, scaled={first: 3}).holding([first, second])
    assert has_work(plan, seen, attempts, now=NOW)
    await carry_out(kube, plan, seen, attempts, applied=lambda _: None, now=NOW)
    assert seen.deployments[first]["spec"]["replicas"] == 3
