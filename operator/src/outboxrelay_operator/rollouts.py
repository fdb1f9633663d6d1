"""Which OutboxRelays may have their pods replaced because the operator changed, and not what its users want. Pure.

A new operator, or a new default, may want another template for every pair there is (OS-06). A few OutboxRelays at a
time get theirs; the others keep the one they have, and their place in the queue. What somebody changes in one
OutboxRelay is never queued. A new template whose pods do not run keeps its place, and so holds up the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from outboxrelay_operator.conditions import Finding
from outboxrelay_operator.facts import PairFacts
from outboxrelay_operator.names import TEMPLATE_DIGEST_ANNOTATION
from outboxrelay_operator.observed import Object, Observed
from outboxrelay_operator.pairs import Key
from outboxrelay_operator.plan import Plan, applied_digest
from outboxrelay_operator.policies import pods_cannot_be_created, pods_cannot_run

_FAULTS_OF_TEMPLATES: Final = frozenset(
    {"FailedCreate", "ImagePullFailed", "Unschedulable", "PodsFailing", "PodsNotReady"}
)
"""Why new pods do not get ready for reasons of their own. A database that is away must not hold up the fleet."""


_FOR_USERS_TO_MEND: Final = frozenset({"InvalidSpec", "NameTaken", "SecretKeyMissing", "SecretMissing"})
"""What stands in a pair's way until somebody changes something; other findings may pass by themselves."""


class Asked:
    """Which pairs of one OutboxRelay somebody wants to have another template, until they have it.

    An edit is carried out at once also if it first fails, or waits for a Secret. Only edits that change the template
    count: of a scaler that sets `replicas` all day long the pods would be replaced as well. So what an edit makes of a
    template is compared with what the same operator made before; of an edit before its start it knows no better than
    that every pair may be meant.
    """

    def __init__(self) -> None:
        self._generation: int | None = None
        self._templates: dict[str, object] = {}
        self._names: set[str] = set()

    def note(self, plan: Plan, observed: Observed) -> Collection[str]:
        """Look at a plan before it is carried out; returns the names of the pairs."""
        if observed.spec is None:
            return self._names
        pairs = {pair.name for pair in observed.pairs}
        templates = {name: _template_digest(wanted) for name, wanted in plan.deployments.items()}
        first = self._generation is None
        before = observed.status.get("observedGeneration") if first else self._generation
        if before != observed.generation:
            # What a pair will want that cannot be deployed now is not known.
            self._names |= {name for name in pairs if templates.get(name, "") != self._templates.get(name)}
        if first:
            self._names |= {name for name, found in plan.blocked.items() if found.reason in _FOR_USERS_TO_MEND}
        self._generation = observed.generation
        self._templates = {name: known for name, known in (self._templates | templates).items() if name in pairs}
        self._names = {
            name
            for name in self._names & pairs
            if name not in templates
            or (live := observed.deployments.get(name)) is None
            or _template_digest(live) != templates[name]
        }
        return self._names


def unasked(plan: Plan, observed: Observed, asked: Collection[str]) -> tuple[str, ...]:
    """Deployments of a plan whose running pods would be replaced although nobody asked for that."""
    return tuple(
        name
        for name, wanted in plan.deployments.items()
        if name not in asked
        and (live := observed.deployments.get(name)) is not None
        and _has_pods(live)
        # Otherwise somebody edited the Deployment, which is put right at once.
        and applied_digest(live) != applied_digest(wanted)
        and _template_digest(live) != _template_digest(wanted)
    )


def _has_pods(live: Object) -> bool:
    return bool(live["spec"].get("replicas", 1) or (live.get("status") or {}).get("replicas"))


def _template_digest(body: Object) -> object:
    metadata = body["spec"]["template"].get("metadata") or {}
    return (metadata.get("annotations") or {}).get(TEMPLATE_DIGEST_ANNOTATION)


def rolls(judged: Iterable[tuple[PairFacts, Finding]]) -> bool:
    """Whether pods of a resource are being replaced; not if that is stuck for no fault of their template."""
    return any(
        facts.deployment.replacing and (not facts.deployment.stuck or _template_fails(facts, finding))
        for facts, finding in judged
        if facts.deployment is not None
    )


def _template_fails(facts: PairFacts, finding: Finding) -> bool:
    # The finding may be another one that weighs more, say that the operator itself does not reach the database.
    troubles = [pods_cannot_be_created(facts), pods_cannot_run(facts)]
    return finding.reason in _FAULTS_OF_TEMPLATES or any(trouble is not None for trouble in troubles)


class Rollouts:
    """At most `limit` resources at once, in the order in which they asked.

    A start knows nothing of what a predecessor began: until each of the `expect`ed resources was looked at once,
    nobody gets a place; and whoever is found rolling when it is first looked at has one.
    """

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._unseen: set[Key] = set()
        self._looked_at: set[Key] = set()
        self._rolling: set[Key] = set()
        self._queue: dict[Key, None] = {}

    @property
    def rolling(self) -> int:
        """How many resources have a place."""
        return len(self._rolling)

    @property
    def queued(self) -> int:
        """How many resources wait for one."""
        return len(self._queue)

    def expect(self, keys: Iterable[Key]) -> None:
        """These resources may be rolling."""
        self._unseen.update(keys)

    def ask(self, key: Key) -> bool:
        """Whether the pods of a resource may be replaced now; it keeps its place until `note` takes it."""
        if key in self._rolling:
            return True
        self._queue.setdefault(key)
        if key not in self._next():
            return False
        del self._queue[key]
        self._rolling.add(key)
        return True

    def note(self, key: Key, *, rolling: bool, waiting: bool) -> Sequence[Key]:
        """A pass ended: whether pods are being replaced and more of them wait; returns who should ask now."""
        if not rolling:
            self._rolling.discard(key)
        elif key not in self._looked_at:
            self._rolling.add(key)
        if not waiting:
            self._queue.pop(key, None)
        self._looked_at.add(key)
        self._unseen.discard(key)
        return self._next()

    def missed(self, key: Key) -> Sequence[Key]:
        """A resource could not be looked at: it waits for no place, and nobody for it; returns who should ask now."""
        self._unseen.discard(key)
        self._queue.pop(key, None)
        return self._next()

    def forget(self, key: Key) -> Sequence[Key]:
        """A resource is gone; returns who should ask now."""
        freed = self.note(key, rolling=False, waiting=False)
        self._looked_at.discard(key)
        return freed

    def _next(self) -> Sequence[Key]:
        free = self.limit - len(self._rolling)
        if self._unseen or free <= 0:
            return ()
        return tuple(self._queue)[:free]
