"""One pass over one OutboxRelay: reads as a specification. What is remembered between passes is in `Fleet`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from http import HTTPStatus

from outboxrelay_operator.apply import carry_out, has_work
from outboxrelay_operator.assemble import judge_pairs
from outboxrelay_operator.attempts import Attempts
from outboxrelay_operator.autoscaler import Autoscaler
from outboxrelay_operator.connections import Connections
from outboxrelay_operator.credentials import pods_to_tell, secret_names, waiting_for_secrets
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.desired.network_policy import NetworkRules
from outboxrelay_operator.facts import Judged
from outboxrelay_operator.fleet import Fleet
from outboxrelay_operator.gather import gather
from outboxrelay_operator.kube import Kube, KubeError
from outboxrelay_operator.measure.loop import Measurer
from outboxrelay_operator.measurements import Backlog, PairId
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.metrics import Metrics
from outboxrelay_operator.observed import Observed, SecretState
from outboxrelay_operator.pairs import Key, Pair
from outboxrelay_operator.plan import NOTHING, Plan, make_plan
from outboxrelay_operator.rollouts import Asked, Rollouts, rolls, unasked
from outboxrelay_operator.secret_reader import SecretReader
from outboxrelay_operator.standing import Standing
from outboxrelay_operator.status import next_status
from outboxrelay_operator.unrouted import Leftover, leftovers
from outboxrelay_operator.writer import Writer

START_SECONDS = 60.0
"""How long after a start a status from before is left as it is until as much is known as it says. Where thousands of
pairs are on one server, two rounds of measuring take a while."""

UNSAID_SECONDS = 30.0
"""How long the first status of a new resource may wait for others that are not served yet."""

HELD_BACK_SECONDS = 2.0
"""How soon to look again whether it still must."""

WAITING_SECONDS = 4.0
"""Between two passes while a Secret is missing or refused, or lanes belong to nobody; of a Secret also its age."""

STEADY_SECONDS = 15.0
STEADY_PASSES_PER_SECOND = 20.0
"""The longest pause between two passes, since measurements grow old and Secrets may go, and how many are made for that
reason alone: with more than 300 resources they come less often. Whatever there is news of is looked at without."""

FORBIDDEN_SECONDS = 600.0
"""How long a resource may be unreadable for want of a right before it stands in nobody's way any more."""

TAKEN_SECONDS = 10.0
"""How soon to look again whether a name that is taken is free: nobody tells when an object of others goes."""

SECRET_AGE_SECONDS = 10.0
SECRETS_PER_SECOND = 0.5
"""How old the state of a Secret may be while all is well, and how many are read at the most: with more than five they
are read less often. A new one that nobody needs yet may wait: who is refused reads anew, and a kubelet refreshes
what pods have mounted by itself within a minute or two."""

AWAITED_SECRETS_PER_SECOND = 25.0
"""How many are read at the most by resources that wait for one."""


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Brings one OutboxRelay at a time to what its spec says. `wall` is Unix time; `wake` asks for another pass."""

    kube: Kube
    fleet: Fleet
    secrets: SecretReader | None
    """None: Secrets are not read, and relays measure."""

    memory: Memory
    measurer: Measurer
    writer: Writer
    metrics: Metrics
    image: RelayImage
    rollouts: Rollouts
    connections: Connections
    network: NetworkRules | None
    """None: no NetworkPolicy is made."""

    wake: Callable[[Key, float], None]
    pressed: Callable[[], bool]
    """Whether other resources wait for what somebody wants of them."""

    wall: Callable[[], float]
    _attempts: dict[Key, Attempts] = field(default_factory=dict)
    _standing: dict[Key, Standing] = field(default_factory=dict)
    _autoscalers: dict[Key, Autoscaler] = field(default_factory=dict)
    _asked: dict[Key, Asked] = field(default_factory=dict)
    _unsaid: dict[Key, float] = field(default_factory=dict)
    """Since when the first status of a new resource waits."""

    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.wall()

    async def reconcile(self, key: Key) -> None:
        """One pass. Raises `KubeError` when it should be repeated soon."""
        try:
            await self._pass(key)
        except Exception:
            # It may have ended in the middle of a read, or of changing what is remembered.
            self.fleet.invalidate(key)
            self._wake_all(self.rollouts.missed(key))
            raise

    async def _pass(self, key: Key) -> None:
        now, attempts = self.wall(), self._attempts.setdefault(key, Attempts())
        remembered = self.fleet.seen(key)
        observed = remembered or await self._read(key)
        plan, secrets = await self._plan(observed)
        if remembered is not None and has_work(plan, remembered, attempts, now=now):
            # Nothing is changed from memory: the resource may be gone, or say something else.
            observed = await self._read(key)
            plan, secrets = await self._plan(observed)
        if observed is None:
            self._forget(key)
            return
        # Before there can be pods of another template: those that run now serve the rows of before.
        unrouted = self._measure(observed)
        outcome = await carry_out(self.kube, plan, observed, attempts, applied=self.metrics.applied, now=now)
        now = self.wall()
        standing, autoscaler = self._standing.setdefault(key, Standing()), self._autoscalers[key]
        judged = judge_pairs(observed, plan, self.memory, standing, autoscaler, refused=outcome.refused, now=now)
        self._wake_all(self.rollouts.note(key, rolling=rolls(judged), waiting=bool(plan.held)))
        status = next_status(
            observed,
            judged,
            now=now,
            leftovers=self._leftovers(unrouted, now=now),
            through_relays=self.secrets is None,
        )
        if not plan.blocked and not outcome.refused and self._knows_too_little(observed, now=now):
            # Whatever is learned until then starts another pass.
            pause = self._started + START_SECONDS - now
        elif self._may_wait(observed, judged, now=now):
            self.fleet.reported(key, status)
            pause = HELD_BACK_SECONDS
        else:
            self._unsaid.pop(key, None)
            self.fleet.reported(key, status)
            pause = await self.writer.write(observed, status, now=now)
        if self.secrets is not None:
            changed = self.fleet.secrets_changed(key, secrets)
            if changed:
                self.measurer.retry_soon(observed.pairs)
            for pod, versions in pods_to_tell(judged, secrets, changed=changed):
                await self.writer.tell_pod(key.namespace, pod, versions)
        self.fleet.set_waiting(key, waiting_for_secrets(judged))
        soon = self.fleet.is_waiting(key) or standing.pending()
        scaling = autoscaler.next_look(now=now)
        steady = max(STEADY_SECONDS, self.fleet.size / STEADY_PASSES_PER_SECOND)
        self.wake(key, min(pause, WAITING_SECONDS if soon else steady, steady if scaling is None else scaling))
        if any(finding.reason == "NameTaken" for finding in plan.blocked.values()):
            self.fleet.read_again(key, TAKEN_SECONDS)
            self.wake(key, TAKEN_SECONDS)
        if plan.making_room - observed.deployments.keys():
            # These are gone, and can be made anew; the others wait for their next attempt.
            self.wake(key, 0.0)
        if outcome.retry_at is not None:
            self.wake(key, max(0.0, outcome.retry_at - self.wall()))
        if outcome.error is not None:
            raise outcome.error

    async def _read(self, key: Key) -> Observed | None:
        self.fleet.reading(key)
        try:
            observed = await gather(self.kube, key)
        except KubeError as error:
            # A right that is missing says nothing of the resource: an API server that has just started refuses
            # much. Only after long its namespace must be taken for deleted, together with our right in it.
            if error.status == HTTPStatus.FORBIDDEN and self.fleet.forbidden_for(key) >= FORBIDDEN_SECONDS:
                self._forget(key)
            raise
        if observed is not None:
            self.fleet.saw(observed)
            self._wake_all(self.fleet.claim(observed))
        return observed

    async def _plan(self, observed: Observed | None) -> tuple[Plan, Mapping[str, SecretState | None]]:
        if observed is None:
            return NOTHING, {}
        states = await self._secret_states(observed, self.secrets)
        key = observed.owner.key
        lost = self.fleet.lost(key)
        scaled = self._scaled(observed, lost.keys())
        plan = make_plan(
            observed,
            lost=lost,
            secrets=None if self.secrets is None else states,
            image=self.image,
            scaled=scaled,
            network=self.network,
            neighbours=self.fleet.neighbours(key),
        )
        asked = self._asked.setdefault(key, Asked()).note(plan, observed)
        queued = unasked(plan, observed, asked)
        return (plan.holding(queued) if queued and not self.rollouts.ask(key) else plan), states

    def _scaled(self, observed: Observed, lost: Set[str]) -> Mapping[str, int]:
        """Pods by the pair's name, where autoscaling decides that."""
        key, now = observed.owner.key, self.wall()
        autoscaler = self._autoscalers.setdefault(key, Autoscaler(may_sleep=self.secrets is not None))
        if observed.spec is None:
            # Its relays go on as they are, and keep their connections.
            return {}
        autoscaler.decide(observed, self.memory, lost=lost, now=now)
        self._wake_all(self.connections.ask(key, autoscaler.demands(observed, self.memory, lost=lost)))
        return autoscaler.granted(self.connections.granted(key), now=now)

    async def _secret_states(self, observed: Observed, reader: SecretReader | None) -> Mapping[str, SecretState | None]:
        if reader is None:
            return {}
        key = observed.owner.key
        waiting = self.fleet.is_waiting(key)
        youngest, rate = (
            (WAITING_SECONDS, AWAITED_SECRETS_PER_SECOND) if waiting else (SECRET_AGE_SECONDS, SECRETS_PER_SECOND)
        )
        max_age = max(youngest, reader.known / rate)
        names = sorted({name for pair in observed.pairs for name in secret_names(pair)})
        return {name: await reader.state(key.namespace, name, max_age=max_age) for name in names}

    def _wake_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.wake(key, 0.0)

    def _measure(self, observed: Observed) -> tuple[Pair, ...]:
        """Choose what is measured; returns what of it no topic takes."""
        key, lost = observed.owner.key, self.fleet.lost(observed.owner.key)
        pairs = [pair for pair in observed.pairs if pair.name not in lost]
        unrouted = leftovers(pairs, self.fleet.neighbours(key))
        # A relay sees the rows of its own pair only.
        measured = [*pairs, *(unrouted if self.secrets is not None else ())]
        self.measurer.measure(key, measured)
        self.memory.watch(key, map(PairId.of, measured))
        return unrouted

    def _leftovers(self, unrouted: Sequence[Pair], *, now: float) -> list[Leftover]:
        measured = [(pair, self.memory.measurement(PairId.of(pair))) for pair in unrouted]
        return [
            Leftover(pair, found if isinstance(found, Backlog) and now <= found.believe_until else None)
            for pair, found in measured
        ]

    def _knows_too_little(self, observed: Observed, *, now: float) -> bool:
        """Whether a status that still holds would be replaced by one that knows less: just after a start."""
        holds = observed.status.get("observedGeneration") == observed.generation
        # A clock that was set back may never have seen the start.
        starting = 0 <= now - self._started < START_SECONDS
        return holds and starting and not self.memory.complete(observed.owner.key)

    def _may_wait(self, observed: Observed, judged: Sequence[Judged], *, now: float) -> bool:
        """Whether the first status says no more than that relays start, while there is more urgent work.

        Of a thousand resources that are created at once each would be told of twice, before the last is served.
        """
        if observed.status or not judged or any(finding.reason != "Starting" for _, finding in judged):
            return False
        key = observed.owner.key
        return self.pressed() and 0 <= now - self._unsaid.setdefault(key, now) < UNSAID_SECONDS

    def _forget(self, key: Key) -> None:
        self.measurer.measure(key, ())
        self.memory.watch(key, ())
        self.writer.forget(key)
        self._attempts.pop(key, None)
        self._standing.pop(key, None)
        self._autoscalers.pop(key, None)
        self._asked.pop(key, None)
        self._unsaid.pop(key, None)
        self._wake_all([*self.fleet.forget(key), *self.rollouts.forget(key), *self.connections.ask(key, ())])
