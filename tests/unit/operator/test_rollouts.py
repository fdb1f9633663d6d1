"""Who may roll because the operator changed: bounded, in order, and never a change that somebody asked for (OS-06)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.observed import Observed, parse
from outboxrelay_operator.pairs import Key
from outboxrelay_operator.plan import Plan, make_plan
from outboxrelay_operator.policies import judge
from outboxrelay_operator.rollouts import Asked, Rollouts, rolls, unasked
from tests.unit.operator.builders import IMAGE, SECRETS, facts, failure, pod, raw_spec, raw_topic, state

A, B, C, D = (Key("shop", name) for name in "abcd")
NEW = RelayImage(name="relay:new", pull_policy="IfNotPresent")


def seen(*, generation: int = 3, observed_generation: int | None = 3, spec: Any = None, **live: Any) -> Observed:
    """A resource whose Deployment the operator of before has applied, when the spec was the usual one."""

    def relay(raw: Any) -> dict[str, Any]:
        return {
            "metadata": {"namespace": "shop", "name": "shop", "uid": "u", "generation": generation},
            "spec": raw,
            "status": {} if observed_generation is None else {"observedGeneration": observed_generation},
        }

    observed = parse(relay(spec or raw_spec()))
    before = parse(relay(raw_spec()))
    for name, body in make_plan(before, lost={}, secrets=SECRETS, image=IMAGE).deployments.items():
        found = deepcopy(body) | {"status": {"replicas": 1}}
        found["spec"] |= live
        observed.deployments[name] = found
    return observed


def plan(observed: Observed, image: RelayImage = NEW, secrets: Any = SECRETS) -> Plan:
    return make_plan(observed, lost={}, secrets=secrets, image=image)


MISSING = dict.fromkeys(SECRETS)
EDITED = raw_spec(topics=[raw_topic(topic="elsewhere")])


def replaced(observed: Observed, image: RelayImage = NEW, asked: Asked | None = None, secrets: Any = SECRETS) -> bool:
    """Whether the pods of the one pair would be replaced although nobody asked for that."""
    wanted = plan(observed, image, secrets)
    return bool(unasked(wanted, observed, (asked or Asked()).note(wanted, observed)))


class TestUnasked:
    def test_a_new_image_of_the_operator_is(self) -> None:
        assert replaced(seen())

    def test_no_change_is_not(self) -> None:
        assert not replaced(seen(), IMAGE)

    @pytest.mark.parametrize("generation", [None, 2])
    def test_a_spec_that_was_not_carried_out_yet_is_not(self, generation: int | None) -> None:
        assert not replaced(seen(observed_generation=generation))

    def test_a_deployment_without_pods_is_not(self) -> None:
        observed = seen(replicas=0)
        for live in observed.deployments.values():
            del live["status"]
        assert not replaced(observed)

    def test_an_edit_of_the_deployment_is_not(self) -> None:
        observed = seen()
        for live in observed.deployments.values():
            live["spec"]["template"]["metadata"]["annotations"] = {}
        assert not replaced(observed, IMAGE)


class TestAsked:
    def test_an_edit_that_could_not_be_applied_is_not_queued_afterwards(self) -> None:
        asked = Asked()
        assert replaced(seen(), asked=asked)
        assert not replaced(seen(generation=4, spec=EDITED), asked=asked)
        # The status knows the edit by now, and the Deployment does not.
        assert not replaced(seen(generation=4, observed_generation=4, spec=EDITED), asked=asked)

    def test_an_edit_that_waits_for_a_secret_is_not_queued_afterwards(self) -> None:
        asked = Asked()
        assert replaced(seen(), asked=asked)
        replaced(seen(generation=4, spec=EDITED), asked=asked, secrets=MISSING)
        assert not replaced(seen(generation=4, observed_generation=4, spec=EDITED), asked=asked)

    def test_nor_if_the_operator_was_started_meanwhile(self) -> None:
        asked = Asked()
        replaced(seen(spec=EDITED), asked=asked, secrets=MISSING)
        assert not replaced(seen(spec=EDITED), asked=asked)

    @pytest.mark.parametrize("change", [{"replicas": 2}, {"slo": {"maxBacklog": 5}}, {"suspend": True}])
    def test_an_edit_that_needs_no_other_pods_asks_for_none(self, change: dict[str, Any]) -> None:
        asked = Asked()
        assert replaced(seen(), asked=asked)
        assert replaced(seen(generation=4, spec=raw_spec(**change)), asked=asked)

    def test_what_was_carried_out_is_asked_for_no_more(self) -> None:
        asked = Asked()
        before = seen(observed_generation=2)
        assert not replaced(before, IMAGE, asked=asked)
        assert replaced(seen(), NEW, asked=asked)

    def test_a_default_that_changes_under_a_spec_is_no_edit(self) -> None:
        asked = Asked()
        assert not replaced(seen(), IMAGE, asked=asked)
        assert replaced(seen(spec=EDITED), IMAGE, asked=asked)


def test_a_plan_that_holds_keeps_counts_only() -> None:
    observed = seen()
    whole = plan(observed)
    held = whole.holding(whole.deployments)
    assert held.deployments == {}
    assert held.held == set(whole.deployments)
    assert held.replicas == whole.replicas


@pytest.mark.parametrize(
    ("deployment", "reason", "rolling"),
    [
        ({}, "Flowing", False),
        ({"replacing": True}, "Flowing", True),
        ({"replacing": True, "stuck": True}, "ImagePullFailed", True),
        ({"replacing": True, "stuck": True}, "DatabaseUnreachable", False),
        ({"replacing": True}, "DatabaseUnreachable", True),
        ({"stuck": True}, "ImagePullFailed", False),
    ],
)
def test_what_keeps_a_place(deployment: dict[str, Any], reason: str, rolling: bool) -> None:
    assert rolls([(facts(deployment=state(**deployment)), Finding(reason, ""))]) is rolling


@pytest.mark.parametrize(
    ("trouble", "deployment"),
    [
        (("ImagePullBackOff", "not found"), {}),
        (("CrashLoopBackOff", ""), {}),
        (None, {"create_problem": "exceeded quota"}),
    ],
)
def test_a_template_that_does_not_run_keeps_its_place_also_if_the_operator_cannot_measure(
    trouble: tuple[str, str] | None, deployment: dict[str, Any]
) -> None:
    """Where only relays are let into the database, that weighs more than a pod beside others that run."""
    pods = (pod(template_digest="before"), pod(ready=False, problem=trouble, report=None))
    all_facts = facts(
        deployment=state(replacing=True, stuck=True, **deployment),
        pods=pods,
        measurement=failure("DatabaseUnreachable"),
    )
    finding = judge(all_facts)
    assert finding.reason == "DatabaseUnreachable"
    assert rolls([(all_facts, finding)])


class TestQueue:
    def test_no_more_than_the_limit_and_in_order(self) -> None:
        rollouts = Rollouts(limit=1)
        assert [rollouts.ask(key) for key in (A, B, C)] == [True, False, False]
        assert rollouts.ask(A)
        assert not rollouts.note(A, rolling=True, waiting=False)
        assert rollouts.note(A, rolling=False, waiting=False) == (B,)
        assert [rollouts.ask(key) for key in (C, B)] == [False, True]

    def test_nobody_goes_before_everybody_was_looked_at(self) -> None:
        rollouts = Rollouts(limit=2)
        rollouts.expect([A, B, C])
        assert not rollouts.ask(A)
        assert rollouts.note(A, rolling=False, waiting=True) == ()
        assert rollouts.note(B, rolling=True, waiting=False) == ()
        assert rollouts.missed(C) == (A,)
        assert rollouts.ask(A)
        assert not rollouts.ask(C)

    def test_a_roll_that_somebody_asked_for_takes_no_place(self) -> None:
        rollouts = Rollouts(limit=1)
        rollouts.note(A, rolling=False, waiting=False)
        rollouts.note(A, rolling=True, waiting=False)
        assert rollouts.ask(B)

    def test_what_a_predecessor_began_has_a_place_also_if_it_could_not_be_read_at_first(self) -> None:
        rollouts = Rollouts(limit=1)
        rollouts.expect([A, B])
        rollouts.missed(A)
        assert rollouts.note(A, rolling=True, waiting=False) == ()
        rollouts.note(B, rolling=False, waiting=True)
        assert not rollouts.ask(B)
        assert rollouts.note(A, rolling=False, waiting=False) == (B,)

    def test_who_is_gone_or_cannot_be_read_holds_up_nobody(self) -> None:
        rollouts = Rollouts(limit=1)
        assert [rollouts.ask(key) for key in (A, B, C, D)] == [True, False, False, False]
        rollouts.missed(B)
        rollouts.forget(C)
        assert rollouts.forget(A) == (D,)

    @given(
        limit=st.integers(1, 3),
        steps=st.lists(st.tuples(st.sampled_from([A, B, C, D]), st.sampled_from(["ask", "end", "miss", "go"]))),
    )
    def test_the_limit_holds_whatever_happens(self, limit: int, steps: list[tuple[Key, str]]) -> None:
        rollouts, rolling = Rollouts(limit=limit), set[Key]()
        for key, step in steps:
            if step == "ask" and rollouts.ask(key):
                rolling.add(key)
            elif step == "end":
                rollouts.note(key, rolling=False, waiting=False)
                rolling.discard(key)
            elif step == "miss":
                rollouts.missed(key)
            elif step == "go":
                rollouts.note(key, rolling=key in rolling, waiting=False)
            assert len(rolling) <= limit
            assert rollouts.rolling == len(rolling)
        for key in (A, B, C, D):
            rollouts.forget(key)
        assert rollouts.ask(A)
