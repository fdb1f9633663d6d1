"""Which OutboxRelay may serve a table: the oldest of those whose rows or topics meet. Pure.

Comparing names cannot find every alias of a server; the relays' lock in the database is the last guard.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from outboxrelay.config import Match, RelayConfig
from outboxrelay_operator.pairs import Key, Owner, Pair

ServerId = tuple[str, int]
"""Host as the whole cluster knows it, and port."""

TableId = tuple[str, int, str, str, str]
"""Server, port, database, schema and table."""

Target = tuple[TableId, str]
"""A table, and the topic its rows go to: relays of one pair at a time work on it, by a lock in the database."""


def table_id(pair: Pair) -> TableId:
    """What pairs over the same table, reached by the same hosts, have in common."""
    database = pair.database
    return (*server_id(pair), database.dbname, database.table.schema_, database.table.name)


def table_ids(pair: Pair) -> frozenset[TableId]:
    """One for each host; of two pairs over the same table, reached by any same host, one at least is the same."""
    return frozenset((server, *table_id(pair)[1:]) for server in _servers(pair))


def targets(pair: Pair) -> frozenset[Target]:
    """What the relays of a pair lock, by each host that it is reached by."""
    return frozenset((table, pair.topic.topic) for table in table_ids(pair))


def targets_of(config: RelayConfig) -> frozenset[Target]:
    """The same of relays that run with this configuration."""
    database, table = config.database, config.table
    place = (database.port, database.dbname, table.schema_, table.name)
    servers = {_server(host, namespace=config.pair.namespace) for host in database.servers}
    return frozenset(((server, *place), config.kafka.topic) for server in servers)


def server_id(pair: Pair) -> ServerId:
    """What two pairs on the same server have in common: the same bare name in two namespaces is two servers."""
    return (",".join(sorted(_servers(pair))), pair.database.port)


def _servers(pair: Pair) -> frozenset[str]:
    return frozenset(_server(host, namespace=pair.key.namespace) for host in pair.database.servers)


@lru_cache(maxsize=4096)  # asked of each pair in each round of measuring
def _server(host: str, *, namespace: str) -> str:
    """The host as seen from the whole cluster.

    A bare name is a Service of the namespace it is used in. A name of two labels may be a Service with its namespace,
    or a pod of a headless Service of the namespace it is used in: to take two servers for one would tear down relays
    that are well, so it is the latter unless its namespace is the same anyway. The lock in the database guards the
    rest.
    """
    host = host.lower().removesuffix(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    short = host.removesuffix(".cluster.local").removesuffix(".svc")
    labels = short.split(".")
    if short != host or len(labels) > 2 or (len(labels) == 2 and labels[1] == namespace):
        return short
    return f"{short}.{namespace}"


def meet(a: Pair, b: Pair) -> bool:
    """Whether two pairs over one table would send to the same topic or take the same rows."""
    if a.topic.topic == b.topic.topic and a.key != b.key:
        return True
    return _overlap(a.match, b.match)


def _overlap(a: Match, b: Match) -> bool:
    if a.include is not None and b.include is not None:
        return bool(set(a.include) & set(b.include))
    if a.include is not None:
        return bool(set(a.include) - set(b.exclude))
    if b.include is not None:
        return bool(set(b.include) - set(a.exclude))
    return True


@dataclass(frozen=True, slots=True)
class Claim:
    """One pair of one OutboxRelay."""

    owner: Owner
    pair: Pair


def _tables(claims: Iterable[Claim]) -> set[TableId]:
    return {table for claim in claims for table in table_ids(claim.pair)}


class Claims:
    """All pairs of all OutboxRelays that the operator watches, by table."""

    def __init__(self) -> None:
        self._by_key: dict[Key, tuple[Claim, ...]] = {}
        self._by_table: defaultdict[TableId, set[Key]] = defaultdict(set)

    def update(self, owner: Owner, pairs: Iterable[Pair]) -> frozenset[Key]:
        """Replace the claims of one OutboxRelay; returns the others whose conflicts may have changed."""
        key = owner.key
        before = self._by_key.get(key, ())
        after = tuple(Claim(owner=owner, pair=pair) for pair in pairs)
        if before == after:
            return frozenset()
        affected = self.remove(key)
        self._by_key[key] = after
        for table in _tables(after):
            self._by_table[table].add(key)
        return affected | self._sharing(after, but=key)

    def remove(self, key: Key) -> frozenset[Key]:
        """Drop the claims of one OutboxRelay; returns the others whose conflicts may have changed."""
        claims = self._by_key.pop(key, ())
        affected = self._sharing(claims, but=key)
        for table in _tables(claims):
            self._by_table[table].discard(key)
            if not self._by_table[table]:
                del self._by_table[table]
        return affected

    def _sharing(self, claims: Iterable[Claim], *, but: Key) -> frozenset[Key]:
        return frozenset(key for table in _tables(claims) for key in self._by_table.get(table, ()) if key != but)

    def neighbours(self, key: Key) -> list[Pair]:
        """The pairs of other OutboxRelays over tables that this one serves, too."""
        tables = _tables(self._by_key.get(key, ()))
        others = {other for table in tables for other in self._by_table.get(table, ()) if other != key}
        return [claim.pair for other in sorted(others, key=str) for claim in self._by_key[other]]

    def winners(self, key: Key) -> Mapping[str, Claim]:
        """For each pair of `key` that must not run, by name: the older claim it meets."""
        lost: dict[str, Claim] = {}
        for mine in self._by_key.get(key, ()):
            tables = table_ids(mine.pair)
            others = {other for table in tables for other in self._by_table[table] if other != key}
            older = [
                theirs
                for other in others
                for theirs in self._by_key[other]
                if theirs.owner.seniority < mine.owner.seniority
                and tables & table_ids(theirs.pair)
                and meet(mine.pair, theirs.pair)
            ]
            if older:
                lost[mine.pair.name] = min(older, key=lambda claim: claim.owner.seniority)
        return lost
