"""Puts together what is known of each pair, and judges it. Pure, given the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outboxrelay_operator.autoscaler import Autoscaler
from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.deployments import DeploymentState
from outboxrelay_operator.facts import Judged, PairFacts
from outboxrelay_operator.measurements import PairId
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.names import TEMPLATE_DIGEST_ANNOTATION
from outboxrelay_operator.observed import Object, Observed
from outboxrelay_operator.plan import Plan
from outboxrelay_operator.policies import judge
from outboxrelay_operator.standing import Standing


def judge_pairs(
    observed: Observed,
    plan: Plan,
    memory: Memory,
    standing: Standing,
    autoscaler: Autoscaler,
    *,
    refused: Mapping[str, Finding],
    now: float,
) -> list[Judged]:
    """Facts and finding of every pair of the spec. `now` is Unix time."""
    spec = observed.spec
    if spec is None:
        return []
    judged: list[Judged] = []
    for pair in observed.pairs:
        pair_id = PairId.of(pair)
        live = observed.deployments.get(pair.name)
        facts = PairFacts(
            pair=pair,
            now=now,
            suspended=spec.suspend,
            desired_replicas=plan.replicas[pair.name],
            scale=autoscaler.scales.get(pair.name),
            calm=autoscaler.lasting(pair.name, now=now),
            blocked=plan.blocked.get(pair.name),
            refused=refused.get(pair.name),
            deployment=None if live is None else DeploymentState.of(live),
            queued=pair.name in plan.held,
            template_digest=_template_digest(plan.deployments.get(pair.name)),
            pods=memory.pods(pair_id),
            measurement=memory.measurement(pair_id),
            rates=memory.rates(pair_id, now=now),
        )
        facts = replace(facts, unowned_seconds=standing.note(facts))
        judged.append((facts, judge(facts)))
    return judged


def _template_digest(deployment: Object | None) -> str | None:
    if deployment is None:
        return None
    digest: str = deployment["spec"]["template"]["metadata"]["annotations"][TEMPLATE_DIGEST_ANNOTATION]
    return digest
