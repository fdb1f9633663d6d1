"""What is known of one OutboxRelay and its objects in one pass: gathered first, then decided upon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from outboxrelay_operator.api import KIND
from outboxrelay_operator.api.spec import OutboxRelaySpec
from outboxrelay_operator.pairs import Key, Owner, Pair, pairs_of

Object = dict[str, Any]


Versions = frozenset[tuple[str, str, str]]
"""Kind, name and resourceVersion of an OutboxRelay and of all its objects."""


Sign = tuple[object, object, object]
"""Differs if an object is another one, wants something else, or goes."""


def sign_of(body: Mapping[str, Any]) -> Sign:
    """What of an object's metadata no write of a status, a label or an annotation changes."""
    meta = body["metadata"]
    return meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Told:
    """What an event said of an object while that was being read: enough to tell whether the read has found it."""

    deployment: str | None
    """Its name; None: the OutboxRelay itself."""

    number: int
    sign: Sign

    @classmethod
    def of_relay(cls, live: Object) -> Told:
        """Of an OutboxRelay."""
        return cls(None, _number(live), sign_of(live))

    @classmethod
    def of_deployment(cls, live: Object) -> Told:
        """Of a Deployment."""
        return cls(live["metadata"]["name"], _number(live), sign_of(live))


@dataclass(frozen=True, slots=True)
class SecretState:
    """What may be known of a Secret: not its values."""

    version: str
    keys: frozenset[str]
    problem: str = ""
    """Why it cannot be read; then the rest is unknown."""


@dataclass(slots=True)
class Observed:
    """One OutboxRelay as last seen. What the operator itself applied is put in, so that it stays true."""

    owner: Owner
    sign: Sign
    generation: int
    spec: OutboxRelaySpec | None
    """None if it breaks a rule; then `problem` says which."""

    problem: str
    pairs: tuple[Pair, ...]
    status: Object
    """The status that is stored now; {} if there is none."""

    version: str = ""
    """The resource's own resourceVersion."""

    configs: dict[str, str] = field(default_factory=dict)
    """Configurations of the relays by pair, rendered once for as long as the spec stays what it is."""

    shared: dict[str, Object] = field(default_factory=dict)
    """What all its relays share, by kind: of each kind there is one at most."""

    deployments: dict[str, Object] = field(default_factory=dict)
    """Deployments with the labels of this OutboxRelay, by name; whoever owns them."""

    budgets: dict[str, Object] = field(default_factory=dict)
    """PodDisruptionBudgets, in the same way."""

    def share(self, before: Observed) -> None:
        """Keep no copy of what was made of the same spec before, since others keep that as well."""
        if self.owner == before.owner and self.spec == before.spec:
            self.spec, self.pairs, self.configs = before.spec, before.pairs, before.configs

    def took(self, deployment: Object) -> bool:
        """A Deployment as the answer to a request has it, or an event: the one of them that is newer counts.

        Returns whether it is this one.
        """
        meta = deployment["metadata"]
        held = self.deployments.get(meta["name"])
        if held is None or held["metadata"]["uid"] != meta["uid"]:
            self.deployments[meta["name"]] = deployment
        elif _number(held) < _number(deployment):
            same = held["metadata"].get("generation") == meta.get("generation")
            # The spec is most of it, and the one that is held may share its words with others.
            self.deployments[meta["name"]] = deployment | {"spec": held["spec"]} if same else deployment
        else:
            return False
        return True

    def lacks(self, told: Told) -> bool:
        """Whether what an event told of is newer than what was read."""
        if told.deployment is None:
            return told.sign != self.sign and told.number > int(self.version or 0)
        held = self.deployments.get(told.deployment)
        return held is None or held["metadata"]["uid"] != told.sign[0] or _number(held) < told.number

    @property
    def versions(self) -> Versions:
        """As they were read or written last."""
        objects = [
            *self.shared.items(),
            *(("Deployment", live) for live in self.deployments.values()),
            *(("PodDisruptionBudget", live) for live in self.budgets.values()),
        ]
        own = (KIND, self.owner.key.name, self.version)
        metas = ((kind, live["metadata"]) for kind, live in objects)
        return frozenset([own, *((kind, meta["name"], meta.get("resourceVersion", "")) for kind, meta in metas)])

    def of_kind(self, kind: str) -> dict[str, Object]:
        """Those of the pairs, by name."""
        return {"Deployment": self.deployments, "PodDisruptionBudget": self.budgets}[kind]

    @property
    def config_map(self) -> Object | None:
        """The config map, if there is one."""
        return self.shared.get("ConfigMap")


def parse(relay: Object) -> Observed:
    """The part of `Observed` that the OutboxRelay itself tells."""
    meta = relay["metadata"]
    owner = Owner(
        key=Key(meta["namespace"], meta["name"]), uid=meta["uid"], created=meta.get("creationTimestamp") or ""
    )
    spec, problem = _spec(relay.get("spec") or {})
    return Observed(
        owner=owner,
        sign=sign_of(relay),
        generation=meta.get("generation") or 1,
        spec=spec,
        problem=problem,
        pairs=pairs_of(owner.key, spec) if spec is not None else (),
        status=relay.get("status") or {},
        version=meta.get("resourceVersion", ""),
    )


def _number(obj: Object) -> int:
    """To be compared with that of the same object only: a later write has a larger one (KEP-5504)."""
    return int(obj["metadata"]["resourceVersion"])


def _spec(raw: Mapping[str, object]) -> tuple[OutboxRelaySpec | None, str]:
    try:
        return OutboxRelaySpec.model_validate(raw), ""
    except ValidationError as error:
        problems = (
            f"{'.'.join(['spec', *(str(part) for part in item['loc'])])}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        )
        return None, "; ".join(problems)


def controller_uid(obj: Object) -> str | None:
    """The uid of the object's controller, if it has one."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return None
