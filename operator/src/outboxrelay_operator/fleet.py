"""What the operator remembers of all OutboxRelays between passes. No I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import Enum

from outboxrelay_operator.conflicts import Claim, Claims
from outboxrelay_operator.names import INSTANCE_LABEL, instance_label
from outboxrelay_operator.observed import Object, Observed, SecretState, Told, Versions, sign_of
from outboxrelay_operator.pairs import Key, Pair


class Novelty(Enum):
    """What an event tells."""

    NOTHING = "it is as remembered"
    STATE = "only its status is another"
    CHANGE = "it is to be read, or compared with what is wanted"


class Fleet:
    """`clock` is monotonic."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claims = Claims()
        self._seen: dict[Key, Observed] = {}
        self._stale: set[Key] = set()
        self._being_read: set[Key] = set()
        self._all_being_read = False
        self._told: defaultdict[Key, list[Told]] = defaultdict(list)
        """What events told of these meanwhile: it may be newer than what the read will find, or older."""

        self._read_again_at: dict[Key, float] = {}
        self._forbidden_since: dict[Key, float] = {}
        self._statuses: dict[Key, Object] = {}
        self._secret_versions: dict[Key, dict[str, str]] = {}
        self._waiting: set[Key] = set()
        self.last_read = clock()
        """When a resource or all of them were last asked for and the API server answered, by `clock`."""

    def invalidate(self, key: Key) -> None:
        """What is remembered of a resource may be wrong: the next pass reads it."""
        self._stale.add(key)

    def told_of_relay(self, key: Key, live: Object | None) -> Novelty:
        """An event says how a resource is now; None: it is gone. Only another spec must be read."""
        known = self._seen.get(key)
        if live is not None and self._reads(key):
            self._told[key].append(Told.of_relay(live))
        elif live is None or known is None or sign_of(live) != known.sign:
            self.invalidate(key)
        else:
            return Novelty.NOTHING
        return Novelty.CHANGE

    def told_of_deployment(self, key: Key, live: Object | None) -> Novelty:
        """An event says how a Deployment is now; None: it is gone. Then everything is read again.

        What the operator itself applied comes back as an event, too, and is no news.
        """
        known, meta = self._seen.get(key), (live or {}).get("metadata", {})
        ours = (meta.get("labels") or {}).get(INSTANCE_LABEL) == instance_label(key.name)
        if live is None or not ours:
            self.invalidate(key)
        elif self._reads(key):
            self._told[key].append(Told.of_deployment(live))
        elif known is None:
            self.invalidate(key)
        else:
            held = known.deployments.get(meta["name"])
            same = held is not None and sign_of(held) == sign_of(live)
            if same or "spec" in live:
                taken = known.took(live)
                return Novelty.NOTHING if not taken else Novelty.STATE if same else Novelty.CHANGE
            # It was told of with its spec before, and what is remembered is another one.
            self.invalidate(key)
        return Novelty.CHANGE

    def _reads(self, key: Key) -> bool:
        """Whether a read is under way that will tell of this resource."""
        return key in self._being_read or (self._all_being_read and key not in self._seen)

    def seen(self, key: Key) -> Observed | None:
        """The resource as last read; None if it must be read (again)."""
        if key in self._stale or self._clock() >= self._read_again_at.get(key, math.inf):
            return None
        return self._seen.get(key)

    def listing(self) -> None:
        """All resources are about to be listed, and `saw` follows; what is invalidated from now on is newer."""
        self._stale.clear()
        self._all_being_read = True

    def listed(self) -> None:
        """All resources were listed. Those that were not seen are read one by one."""
        self._all_being_read = False
        self._told.clear()

    def reading(self, key: Key) -> None:
        """A read begins; what is invalidated from now on needs another one."""
        self._stale.discard(key)
        self._told.pop(key, None)
        self._being_read.add(key)

    def saw(self, observed: Observed) -> None:
        """A resource was read. If an event told of something newer meanwhile, it is read once more."""
        key = observed.owner.key
        if any(map(observed.lacks, self._told.pop(key, ()))):
            self.invalidate(key)
        if key in self._seen:
            observed.share(self._seen[key])
        self._seen[key] = observed
        self._being_read.discard(key)
        self._forbidden_since.pop(key, None)
        self._read_again_at.pop(key, None)
        self.last_read = self._clock()

    def read_again(self, key: Key, seconds: float) -> None:
        """Read a resource again within some time, since what it waits for may not be reported."""
        self._read_again_at[key] = min(self._read_again_at.get(key, math.inf), self._clock() + seconds)

    @property
    def size(self) -> int:
        """How many resources were read and are not gone."""
        return len(self._seen)

    def differing(self, namespace: str | None, versions: Mapping[Key, Versions]) -> list[Key]:
        """The resources of a namespace, or of all, that are not as remembered; `versions` says how they are.

        Deletions while no watch listens are never reported, nor is what happens to objects that are not watched.
        """
        known = {key: seen for key, seen in self._seen.items() if namespace in (None, key.namespace)}
        gone = known.keys() - versions.keys()
        return [*gone, *(key for key, found in versions.items() if key not in known or known[key].versions != found)]

    def answered(self) -> None:
        """The resources were listed, or the list was refused: the API server answers for them."""
        self.last_read = self._clock()

    def forbidden_for(self, key: Key) -> float:
        """A resource could not be read for want of a right; returns for how many seconds that has been so."""
        self.last_read = self._clock()
        return self._clock() - self._forbidden_since.setdefault(key, self._clock())

    def forget(self, key: Key) -> frozenset[Key]:
        """A resource is gone; returns those that it may have stood in the way of."""
        self.last_read = self._clock()
        self._seen.pop(key, None)
        self._read_again_at.pop(key, None)
        self._forbidden_since.pop(key, None)
        self._statuses.pop(key, None)
        self._secret_versions.pop(key, None)
        self._stale.discard(key)
        self._being_read.discard(key)
        self._told.pop(key, None)
        self._waiting.discard(key)
        return self._claims.remove(key)

    def claim(self, observed: Observed) -> frozenset[Key]:
        """Note which tables a resource serves; returns others for whom that may change something.

        A spec that cannot be used changes nothing: its relays go on, and so do its claims.
        """
        if observed.spec is None:
            return frozenset()
        return self._claims.update(observed.owner, observed.pairs)

    def lost(self, key: Key) -> Mapping[str, Claim]:
        """The pairs of a resource that an older one serves, by name."""
        return self._claims.winners(key)

    def neighbours(self, key: Key) -> list[Pair]:
        """The pairs of other OutboxRelays over the tables of this one."""
        return self._claims.neighbours(key)

    def reported(self, key: Key, status: Object) -> None:
        """The newest status, written or not."""
        self._statuses[key] = status

    @property
    def statuses(self) -> Mapping[Key, Object]:
        """The newest status of every resource."""
        return self._statuses

    def secrets_changed(self, key: Key, states: Mapping[str, SecretState | None]) -> frozenset[str]:
        """The Secrets of the resource that are not what they were in the pass before; none in the first."""
        versions = {name: "" if state is None else state.version for name, state in states.items()}
        before = self._secret_versions.get(key, versions)
        self._secret_versions[key] = versions
        return frozenset(name for name, version in versions.items() if before.get(name) != version)

    def set_waiting(self, key: Key, waiting: bool) -> None:
        """Whether the resource waits for a Secret to appear or to be mended."""
        (self._waiting.add if waiting else self._waiting.discard)(key)

    def is_waiting(self, key: Key) -> bool:
        """Whether the resource waits for a Secret."""
        return key in self._waiting
