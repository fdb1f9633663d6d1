"""What should be changed for one OutboxRelay, decided from what was observed. Pure.

A pair is blocked by a finding: then its Deployment is neither created nor changed, and one that exists goes on.
Only a pair that lost a conflict, left the spec, or makes room for another one has its Deployment removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from outboxrelay.config import ConfigError, parse
from outboxrelay.wording import counted
from outboxrelay_operator.api import KIND
from outboxrelay_operator.api.spec import OutboxRelaySpec
from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.conflicts import Claim, Target, targets, targets_of
from outboxrelay_operator.deployments import DeploymentState
from outboxrelay_operator.desired.config_map import config_key, config_map, pair_of_key
from outboxrelay_operator.desired.deployment import RelayImage, deployment, mounted_config_key
from outboxrelay_operator.desired.disruption_budget import disruption_budget, may_have_several
from outboxrelay_operator.desired.metadata import Object
from outboxrelay_operator.desired.network_policy import NetworkRules, network_policy
from outboxrelay_operator.desired.relay_config import relay_config
from outboxrelay_operator.desired.secret_files import secret_files
from outboxrelay_operator.desired.service_account import service_account
from outboxrelay_operator.names import APPLIED_DIGEST_ANNOTATION, MANAGED_BY, MANAGED_BY_LABEL, shared_name
from outboxrelay_operator.observed import Observed, SecretState, controller_uid
from outboxrelay_operator.pairs import Pair

MAX_CONFIG_BYTES = 450_000
"""Half of what a config map can hold (1 MiB), since older configurations stay while new ones roll out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The wanted objects and what stands in the way."""

    shared: tuple[Object, ...]
    """What all relays share, to be applied before what needs it: without one of them no Deployment is."""

    deployments: Mapping[str, Object]
    """To be applied, by name."""

    budgets: Mapping[str, Object]
    """PodDisruptionBudgets to be applied, by name."""

    unwanted: tuple[tuple[str, str], ...]
    """Kind and name of what is to be deleted."""

    blocked: Mapping[str, Finding]
    """Findings that keep a pair from being deployed, by the pair's name."""

    replicas: Mapping[str, int]
    """Pods that each pair should have, by the pair's name."""

    held: frozenset[str] = frozenset()
    """Deployments that keep their template until it is their turn; their count of pods is still followed."""

    making_room: frozenset[str] = frozenset()
    """Deployments that are deleted for another pair's sake, and made anew once they are gone."""

    def holding(self, names: Iterable[str]) -> Plan:
        """The same, but these Deployments are not applied."""
        held = frozenset(names)
        deployments = {name: wanted for name, wanted in self.deployments.items() if name not in held}
        return replace(self, deployments=deployments, held=held)

    @property
    def config_map(self) -> Object | None:
        """The config map, if it is to be applied."""
        return next((body for body in self.shared if body["kind"] == "ConfigMap"), None)


NOTHING = Plan(shared=(), deployments={}, budgets={}, unwanted=(), blocked={}, replicas={})


def make_plan(
    observed: Observed,
    *,
    lost: Mapping[str, Claim],
    secrets: Mapping[str, SecretState | None] | None,
    image: RelayImage,
    scaled: Mapping[str, int] | None = None,
    network: NetworkRules | None = None,
    neighbours: Iterable[Pair] = (),
) -> Plan:
    """`secrets` has every Secret that the spec names; None: it does not exist. Without it Secrets are not looked at.

    `scaled` is what autoscaling says; without `network` there is no NetworkPolicy. `neighbours` are the pairs of other
    resources over the same tables.
    """
    spec = observed.spec
    if spec is None:
        return NOTHING
    replicas = _replicas(spec, observed.pairs, scaled or {})
    configs = observed.configs
    if not configs:
        configs.update((pair.name, relay_config(pair, spec)) for pair in observed.pairs)
    size = sum(len(text) for text in configs.values())
    if size > MAX_CONFIG_BYTES:
        message = (
            f"the configuration of {counted(len(configs), 'pair')} is {size} bytes and does not fit into one config "
            f"map ({MAX_CONFIG_BYTES}): shorten the match lists or use several OutboxRelays"
        )
        return Plan(
            shared=(),
            deployments={},
            budgets={},
            unwanted=(),
            blocked={pair.name: Finding("InvalidSpec", message) for pair in observed.pairs},
            replicas=replicas,
        )
    blocked: dict[str, Finding] = {}
    policy = None if network is None else network_policy(observed.owner, spec, network)
    taken = next(filter(None, (_shared_taken(observed, kind) for kind in _needed(policy))), None)
    deployments: dict[str, Object] = {}
    for pair in observed.pairs:
        finding = _conflict(pair, lost) or _name_taken(observed, observed.deployments.get(pair.name))
        if finding is None and replicas[pair.name] > 0:
            finding = taken or (None if secrets is None else _secrets(pair, secrets))
        if finding is not None:
            blocked[pair.name] = finding
        else:
            deployments[pair.name] = deployment(
                observed.owner,
                pair,
                config=configs[pair.name],
                replicas=replicas[pair.name],
                pod=spec.pod,
                image=image,
            )
    wanted = {pair.name for pair in observed.pairs} - lost.keys()
    making_room = _making_room(observed, deployments, neighbours)
    deployments = {name: body for name, body in deployments.items() if name not in making_room}
    unwanted = [
        *_unwanted(observed, "Deployment", wanted - making_room),
        *_unwanted(observed, "PodDisruptionBudget", wanted if may_have_several(spec) else frozenset()),
    ]
    if policy is None and _is_ours(observed, observed.shared.get("NetworkPolicy")):
        unwanted.append(("NetworkPolicy", shared_name(observed.owner.key.name)))
    data = _still_used(observed, wanted=wanted, rolling=frozenset(blocked)) | {
        config_key(name, text): text for name, text in configs.items()
    }
    shared = (config_map(observed.owner, data), service_account(observed.owner), *([] if policy is None else [policy]))
    return Plan(
        shared=() if taken else shared,
        deployments=deployments,
        budgets={
            pair.name: disruption_budget(observed.owner, pair)
            for pair in observed.pairs
            if pair.name in deployments and may_have_several(spec)
        },
        unwanted=tuple(unwanted),
        blocked=blocked,
        replicas=replicas,
        making_room=making_room,
    )


def _needed(policy: Object | None) -> tuple[str, ...]:
    """Kinds of what all relays share."""
    return ("ConfigMap", "ServiceAccount", *(() if policy is None else ("NetworkPolicy",)))


def _unwanted(observed: Observed, kind: str, wanted: Set[str]) -> list[tuple[str, str]]:
    """What is there of a kind and belongs to no pair that needs it."""
    return [
        (kind, name)
        for name, live in sorted(observed.of_kind(kind).items())
        if name not in wanted and _is_ours(observed, live)
    ]


def _is_ours(observed: Observed, live: Object | None) -> bool:
    return live is not None and controller_uid(live) == observed.owner.uid


def _replicas(spec: OutboxRelaySpec, pairs: Iterable[Pair], scaled: Mapping[str, int]) -> dict[str, int]:
    return {pair.name: 0 if spec.suspend else scaled.get(pair.name, spec.replicas) for pair in pairs}


def _still_used(observed: Observed, *, wanted: Set[str], rolling: frozenset[str]) -> dict[str, str]:
    """Configurations in the config map that pods may still start with.

    Those are the one that a live template names, since the pods of that template are the ones that a change of it
    is about to replace, and all of a pair whose rollout has not ended.
    """
    if observed.config_map is None:
        return {}
    data: dict[str, str] = observed.config_map.get("data") or {}
    mounted = {mounted_config_key(live) for name, live in observed.deployments.items() if name in wanted}
    named = {key: text for key, text in data.items() if key in mounted}
    kept = {
        name
        for name, live in observed.deployments.items()
        if name in rolling or not DeploymentState.of(live).rolled_out
    }
    older = {key: text for key, text in data.items() if pair_of_key(key) in kept} | named
    return older if sum(len(text) for text in older.values()) <= MAX_CONFIG_BYTES else named


def _making_room(observed: Observed, wanted: Mapping[str, Object], neighbours: Iterable[Pair]) -> frozenset[str]:
    """Pairs that are to leave a table or topic which another one is to have.

    Pods are replaced once new ones are ready, and those get ready once nobody else's work where they are to: pairs that
    exchange their topics would wait for each other for ever.
    """
    pairs = {pair.name: pair for pair in observed.pairs if pair.name in wanted}
    left = {name: _left(observed, pair) for name, pair in pairs.items()}
    if not any(left.values()):
        return frozenset()
    claimed = frozenset().union(*map(targets, [*pairs.values(), *neighbours]))
    # What a pair leaves is none of what it is to have itself.
    return frozenset(name for name, targets_left in left.items() if targets_left & claimed)


def _left(observed: Observed, pair: Pair) -> frozenset[Target]:
    """Where the pods of a pair work and are to work no more; nothing if they stay where they are."""
    live, config_map = observed.deployments.get(pair.name), observed.config_map
    if live is None or config_map is None or not _is_ours(observed, live):
        return frozenset()
    mounted = mounted_config_key(live)
    if mounted == config_key(pair.name, observed.configs[pair.name]):
        return frozenset()
    data: dict[str, str] = config_map.get("data") or {}
    # Until a rollout has ended pods of an older template work as well, and their configurations are kept.
    several = not DeploymentState.of(live).rolled_out
    found = (text for key, text in data.items() if key == mounted or (several and pair_of_key(key) == pair.name))
    return frozenset().union(*(_left_of(text, pair) for text in found))


def _left_of(text: str, pair: Pair) -> frozenset[Target]:
    try:
        held = targets_of(parse(text, source=pair.name))
    except ConfigError:
        # Of another version of the operator, say: nobody knows.
        return frozenset()
    return frozenset() if held & targets(pair) else held


def applied_digest(obj: Object) -> str | None:
    """The digest of what was last applied to an object."""
    digest: str | None = (obj["metadata"].get("annotations") or {}).get(APPLIED_DIGEST_ANNOTATION)
    return digest


def _conflict(pair: Pair, lost: Mapping[str, Claim]) -> Finding | None:
    claim = lost.get(pair.name)
    if claim is None:
        return None
    table = pair.database.table.qualified
    return Finding(
        "Conflict",
        f"table {table} in database {pair.database.dbname} on {pair.database.address} is served by the older "
        f"OutboxRelay {claim.owner.key} (topic {claim.pair.topic.topic}); this one takes over when that is deleted",
    )


def _secrets(pair: Pair, secrets: Mapping[str, SecretState | None]) -> Finding | None:
    for name, key in ((files.secret, key) for files in secret_files(pair) for key, _ in files.items):
        state = secrets.get(name)
        if state is None:
            return Finding("SecretMissing", f"Secret {pair.key.namespace}/{name} does not exist: create it")
        if state.problem:
            return Finding("SecretUnreadable", f"Secret {pair.key.namespace}/{name} is needed: {state.problem}")
        if key not in state.keys:
            return Finding("SecretKeyMissing", f"Secret {pair.key.namespace}/{name} has no key {key}: add it")
    return None


def _name_taken(observed: Observed, live: Object | None) -> Finding | None:
    if live is None or controller_uid(live) in (None, observed.owner.uid):
        return None
    return name_taken("Deployment", live)


def _shared_taken(observed: Observed, kind: str) -> Finding | None:
    """Else relays would run with a service account that somebody gave rights to, for example."""
    live = observed.shared.get(kind)
    if live is None or controller_uid(live) == observed.owner.uid:
        return None
    labels, owners = live["metadata"].get("labels") or {}, live["metadata"].get("ownerReferences") or ()
    ours = {(KIND, observed.owner.key.name)}
    if labels.get(MANAGED_BY_LABEL) == MANAGED_BY and {(owner["kind"], owner["name"]) for owner in owners} <= ours:
        # An orphan, or of an OutboxRelay of this name that was deleted: what it holds is made anew anyway.
        return None
    return name_taken(kind, live)


def name_taken(kind: str, live: Object) -> Finding:
    """An object of that name has another owner, maybe a deleted OutboxRelay that is still being collected."""
    where = f"{live['metadata']['namespace']}/{live['metadata']['name']}"
    return Finding("NameTaken", f"{kind} {where} belongs to another owner: waiting until it is gone")
