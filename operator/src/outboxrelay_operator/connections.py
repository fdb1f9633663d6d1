"""How many relays the pairs on one PostgreSQL server may have, so that applications find connections, too. Pure.

A server has so many connections for everybody, and a relay that is refused one sends nothing: another pod that gets
none only takes its turn at being refused. What there is room for is shared here. Only autoscaling is limited: a count
that somebody set is theirs to answer for, and leaves the others what remains.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from outboxrelay.wording import counted
from outboxrelay_operator.conflicts import ServerId
from outboxrelay_operator.measurements import ConnectionLimits, PairId
from outboxrelay_operator.pairs import Key

SESSIONS_PER_RELAY: Final = 1

SHARE: Final = 0.5
"""Of what PostgreSQL admits, for relays. The rest is for applications, the operator, people, and for the pods that a
rollout starts before it ends others."""

Scope = tuple[ServerId, str, str]
"""A server, and within it "database" or "role" with its name; both are empty for the whole server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one pair asks of its server."""

    pair: PairId
    order: tuple[str, ...]
    """Who is served first where not all can be: the same pairs in every pass, so that nothing flaps."""

    server: ServerId
    dbname: str
    wanted: int
    """Relays that the load asks for."""

    least: int = 0
    """Relays that it gets in any case: minReplicas, or a count that is not for us to change."""

    beside: int = 0
    """Sessions beside those of its relays, while there is a relay."""

    limits: ConnectionLimits | None = None
    """What its server admits; None: it was not asked yet."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Everything whose limit its sessions count against."""
        wide: list[Scope] = [(self.server, "", ""), (self.server, "database", self.dbname)]
        return tuple(wide) if self.limits is None else (*wide, (self.server, "role", self.limits.role_name))

    def sessions(self, relays: int) -> int:
        """How many it has with so many relays."""
        return SESSIONS_PER_RELAY * relays + (self.beside if relays else 0)

    def uses(self, relays: int) -> dict[Scope, int]:
        """Its sessions with so many relays, in each scope."""
        return dict.fromkeys(self.scopes, self.sessions(relays))


@dataclass(frozen=True, slots=True)
class Grant:
    """How many relays a pair may have, and what would have to grow for more."""

    relays: int
    because: str = ""


def allot(
    demands: Iterable[Demand], limits: Mapping[Scope, int], *, held: Mapping[Scope, int] | None = None
) -> dict[PairId, Grant]:
    """Share what the limits leave: everybody has one relay more before anybody has two more.

    `held` are sessions that are not to be shared. Together with what pairs get in any case they may be more than a
    limit; then nobody gets anything beside that.
    """
    ordered = sorted(demands, key=lambda demand: demand.order)
    relays = {demand.pair: min(demand.least, demand.wanted) for demand in ordered}
    used = Counter(held)
    for demand in ordered:
        used.update(demand.uses(relays[demand.pair]))
    full: dict[PairId, Scope] = {}
    for count in range(1, max((demand.wanted for demand in ordered), default=0) + 1):
        for demand in ordered:
            has = relays[demand.pair]
            if demand.pair in full or not has < count <= demand.wanted:
                continue
            more = demand.sessions(has + 1) - demand.sessions(has)
            closed = next((s for s in demand.scopes if s in limits and used[s] + more > limits[s]), None)
            if closed is not None:
                full[demand.pair] = closed
                continue
            relays[demand.pair] = has + 1
            used.update(dict.fromkeys(demand.scopes, more))
    return {pair: Grant(count, _because(full[pair], limits) if pair in full else "") for pair, count in relays.items()}


def limits_for(demand: Demand, *, per_server: int | None) -> dict[Scope, int]:
    """Sessions that relays may have in each scope of a demand; one that is not there has no limit that is known.

    `per_server` is what the operator was told; without it a share of what the server admits.
    """
    server, database, *role = demand.scopes
    limits = {} if per_server is None else {server: per_server}
    known = demand.limits
    if known is not None:
        admitted = {server: known.server if per_server is None else None, database: known.database, role[0]: known.role}
        limits |= {scope: max(1, int(SHARE * most)) for scope, most in admitted.items() if most is not None}
    return limits


def _because(scope: Scope, limits: Mapping[Scope, int]) -> str:
    (host, port), kind, name = scope
    within = f" to {kind} {name}" if kind == "database" else f" as role {name}" if kind else ""
    return f"all relays together may hold {counted(limits[scope], 'connection')}{within} on {host}:{port}"


@dataclass(slots=True)
class _Server:
    pairs: int = 0
    """All of them, also those that ask for nothing now: what they know of its limits holds for the others."""

    limits: dict[Scope, int] = field(default_factory=dict)
    held: Counter[Scope] = field(default_factory=Counter)
    """Sessions of pairs that get all they ask for in any case."""

    asking: dict[PairId, Demand] = field(default_factory=dict)
    """The others: only they cost time when something changes."""

    grants: Mapping[PairId, Grant] = field(default_factory=dict)


class Connections:
    """What every pair asks for and was granted."""

    def __init__(self, *, per_server: int | None = None) -> None:
        """`per_server`: sessions that relays may have to one server; None: a share of what it admits."""
        self._per_server = per_server
        self._demands: dict[Key, tuple[Demand, ...]] = {}
        self._servers: defaultdict[ServerId, _Server] = defaultdict(_Server)

    def ask(self, key: Key, demands: Iterable[Demand]) -> Collection[Key]:
        """Replace the demands of one OutboxRelay; returns the others who may now have more, or must have fewer."""
        before = self._demands.pop(key, ())
        told = {(demand.pair, demand.server): demand.limits for demand in before}
        after = tuple(
            # A server that cannot be asked now admits what it did.
            replace(demand, limits=demand.limits or told.get((demand.pair, demand.server)))
            for demand in demands
        )
        if after:
            self._demands[key] = after
        if after == before:
            return ()
        for demand in before:
            self._note(demand, -1)
        for demand in after:
            self._note(demand, 1)
            limits = self._servers[demand.server].limits
            if demand.limits is not None:
                # A scope that is not limited now may have been before.
                for scope in demand.scopes:
                    limits.pop(scope, None)
            limits |= limits_for(demand, per_server=self._per_server)
        return {other for server in _servers(before, after) for other in self._share_out(server)} - {key}

    def granted(self, key: Key) -> Mapping[str, Grant]:
        """By the pair's name."""
        return {demand.pair.name: self._granted(demand) for demand in self._demands.get(key, ())}

    def _granted(self, demand: Demand) -> Grant:
        server = self._servers.get(demand.server)
        everything = Grant(demand.wanted)
        return everything if server is None else server.grants.get(demand.pair, everything)

    def _note(self, demand: Demand, sign: int) -> None:
        server = self._servers[demand.server]
        server.pairs += sign
        if demand.wanted <= demand.least:
            server.held.update({scope: sign * sessions for scope, sessions in demand.uses(demand.wanted).items()})
        elif sign > 0:
            server.asking[demand.pair] = demand
        else:
            del server.asking[demand.pair]

    def _share_out(self, name: ServerId) -> set[Key]:
        server = self._servers[name]
        before, server.grants = server.grants, allot(server.asking.values(), server.limits, held=server.held)
        if not server.pairs:
            del self._servers[name]
        return {pair.key for pair, grant in server.grants.items() if grant != before.get(pair)}


def _servers(*demands: tuple[Demand, ...]) -> set[ServerId]:
    return {demand.server for some in demands for demand in some}
