"""Sharing a server's connections: never more than there are, the same for the same pairs, and one each before two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxrelay_operator.connections import Connections, Demand, Grant, Scope, allot, limits_for
from outboxrelay_operator.measurements import ConnectionLimits, PairId
from outboxrelay_operator.pairs import Key

SERVER = ("orders-db.shop", 5432)
WHOLE: Scope = (SERVER, "", "")


def limits(server: int = 97, **changes: Any) -> ConnectionLimits:
    return ConnectionLimits(**({"server": server, "database": None, "role": None, "role_name": "relay"} | changes))


def demand(name: str, wanted: int = 1, **changes: Any) -> Demand:
    values: dict[str, Any] = {"order": (name,), "server": SERVER, "dbname": "orders", "limits": limits()}
    return Demand(pair=PairId(Key("shop", name), "p"), wanted=wanted, **(values | changes))


def limits_of(demands: Iterable[Demand], *, per_server: int | None = None) -> dict[Scope, int]:
    """Of all scopes that these are about."""
    found: dict[Scope, int] = {}
    for each in demands:
        found |= limits_for(each, per_server=per_server)
    return found


def shared(*demands: Demand, per_server: int | None = None) -> dict[str, int]:
    """Relays by the resource's name."""
    granted = allot(demands, limits_of(demands, per_server=per_server))
    return {pair.key.name: grant.relays for pair, grant in granted.items()}


@st.composite
def servers(draw: st.DrawFn) -> list[Demand]:
    """Pairs on one server, in some databases and roles that may be limited."""
    databases = draw(st.dictionaries(st.sampled_from("xyz"), st.none() | st.integers(1, 30), min_size=1))
    roles = draw(st.dictionaries(st.sampled_from("rst"), st.none() | st.integers(1, 30), min_size=1))
    server = draw(st.integers(1, 120))
    found = []
    for number in range(draw(st.integers(0, 12))):
        dbname, role = draw(st.sampled_from(sorted(databases))), draw(st.sampled_from(sorted(roles)))
        wanted = draw(st.integers(0, 8))
        known = limits(server, database=databases[dbname], role=roles[role], role_name=role)
        found.append(
            demand(
                f"r{number:02}",
                wanted,
                dbname=dbname,
                least=draw(st.integers(0, wanted)),
                beside=draw(st.integers(0, 1)),
                limits=draw(st.sampled_from([known, known, None])),
            )
        )
    return found


def used(demands: list[Demand], relays: dict[PairId, int]) -> Counter[Scope]:
    found: Counter[Scope] = Counter()
    for each in demands:
        found.update(each.uses(relays[each.pair]))
    return found


@given(demands=servers(), per_server=st.none() | st.integers(1, 60), shuffled=st.randoms())
def test_what_is_granted(demands: list[Demand], per_server: int | None, shuffled: Any) -> None:
    bounds = limits_of(demands, per_server=per_server)
    granted = {pair: grant.relays for pair, grant in allot(demands, bounds).items()}
    by_pair = {each.pair: each for each in demands}
    least = used(demands, {each.pair: each.least for each in demands})
    total = used(demands, granted)
    for scope, bound in bounds.items():
        assert total[scope] <= max(bound, least[scope]), "more than there is room for"
    for pair, relays in granted.items():
        assert by_pair[pair].least <= relays <= by_pair[pair].wanted
    for pair, relays in granted.items():
        mine = by_pair[pair]
        if relays == mine.wanted:
            continue
        price = mine.sessions(relays + 1) - mine.sessions(relays)
        more = total + Counter(dict.fromkeys(mine.scopes, price))
        assert any(more[scope] > bounds[scope] for scope in mine.scopes if scope in bounds), (
            "there was room for one more"
        )
        for other, theirs in granted.items():
            # Whose first relay takes two sessions leaves the last one to others.
            if price == 1 and by_pair[other].scopes == mine.scopes and by_pair[other].beside == mine.beside:
                assert theirs <= max(relays + 1, by_pair[other].least), "somebody has two more"
    again = list(demands)
    shuffled.shuffle(again)
    assert {pair: grant.relays for pair, grant in allot(again, bounds).items()} == granted


def test_everybody_has_one_before_anybody_has_two() -> None:
    assert shared(demand("a", 8), demand("b", 1), demand("c", 3), per_server=6) == {"a": 3, "b": 1, "c": 2}


def test_who_is_older_is_served_first_where_not_all_can_be() -> None:
    assert shared(demand("b", 2), demand("a", 2), demand("c", 2), per_server=2) == {"a": 1, "b": 1, "c": 0}


def test_what_must_be_is_granted_first() -> None:
    assert shared(demand("a", 4), demand("z", 3, least=3), per_server=4) == {"a": 1, "z": 3}
    assert shared(demand("a", 4), demand("z", 6, least=6), per_server=4) == {"a": 0, "z": 6}


def test_half_of_what_the_server_admits_is_for_relays() -> None:
    assert shared(demand("a", 60), demand("b", 60)) == {"a": 24, "b": 24}
    assert shared(demand("a", 60, limits=None)) == {"a": 60}


@pytest.mark.parametrize("limited", ["database", "role"])
def test_a_narrower_limit_counts_for_those_it_is_about(limited: str) -> None:
    narrow = limits(**{limited: 6})
    other = limits(role_name="another")
    assert shared(
        demand("a", 4, limits=narrow), demand("b", 4, limits=narrow), demand("c", 4, limits=other, dbname="payments")
    ) == {"a": 2, "b": 1, "c": 4}


def test_a_relay_that_looks_for_the_operator_holds_two_sessions() -> None:
    assert shared(demand("a", 3, beside=1), demand("b", 3, beside=1), per_server=5) == {"a": 2, "b": 1}


def test_what_would_have_to_grow_is_said() -> None:
    [grant] = allot([demand("a", 9)], {WHOLE: 4}).values()
    assert grant == Grant(4, "all relays together may hold 4 connections on orders-db.shop:5432")
    narrow = limits(role=4)
    [grant] = allot([demand("a", 9, limits=narrow)], limits_of([demand("a", limits=narrow)], per_server=None)).values()
    assert grant.because == "all relays together may hold 2 connections as role relay on orders-db.shop:5432"
    assert allot([demand("a", 4)], {WHOLE: 4}) == {PairId(Key("shop", "a"), "p"): Grant(4)}


class TestConnections:
    """Who has to look again when somebody asks for more or less."""

    def relays(self, connections: Connections, name: str) -> int:
        [grant] = connections.granted(Key("shop", name)).values()
        return grant.relays

    def ask(self, connections: Connections, *demands: Demand) -> set[str]:
        return {key.name for key in connections.ask(demands[0].pair.key, demands)}

    @given(demands=servers(), per_server=st.none() | st.integers(1, 60))
    def test_one_after_the_other_they_get_what_they_would_together(
        self, demands: list[Demand], per_server: int | None
    ) -> None:
        connections = Connections(per_server=per_server)
        for each in demands:
            connections.ask(each.pair.key, [each])
        expected = {key.name: relays for key, relays in self.together(demands, per_server).items()}
        assert {each.pair.key.name: self.relays(connections, each.pair.key.name) for each in demands} == expected
        for each in demands:
            connections.ask(each.pair.key, ())
        assert not connections._servers

    def together(self, demands: list[Demand], per_server: int | None) -> dict[Key, int]:
        granted = allot(demands, limits_of(demands, per_server=per_server))
        return {pair.key: grant.relays for pair, grant in granted.items()}

    def test_others_are_told_of_what_changes_for_them(self) -> None:
        connections = Connections(per_server=4)
        assert self.ask(connections, demand("a", 4)) == set()
        assert self.ask(connections, demand("b", 1)) == {"a"}
        assert self.ask(connections, demand("b", 1)) == set()
        assert (self.relays(connections, "a"), self.relays(connections, "b")) == (3, 1)
        assert {key.name for key in connections.ask(Key("shop", "b"), ())} == {"a"}
        assert self.relays(connections, "a") == 4
        assert connections.granted(Key("shop", "b")) == {}

    def test_what_an_idle_pair_knows_of_a_server_holds_for_others(self) -> None:
        connections = Connections()
        self.ask(connections, demand("idle", 0, limits=limits(8)))
        self.ask(connections, demand("new", 9, limits=None))
        assert self.relays(connections, "new") == 4

    def test_another_server_is_another_matter(self) -> None:
        connections = Connections(per_server=4)
        self.ask(connections, demand("a", 4))
        assert self.ask(connections, demand("b", 4, server=("elsewhere", 5432))) == set()
        assert self.ask(connections, demand("b", 4)) == {"a"}

    def test_a_server_that_cannot_be_asked_admits_what_it_did(self) -> None:
        connections = Connections()
        self.ask(connections, demand("a", 9, limits=limits(8)))
        self.ask(connections, demand("a", 9, limits=None))
        assert self.relays(connections, "a") == 4

    @pytest.mark.parametrize("limited", ["database", "role"])
    def test_a_limit_that_was_taken_away_limits_nobody(self, limited: str) -> None:
        connections = Connections()
        self.ask(connections, demand("a", 9, limits=limits(**{limited: 4})))
        assert self.relays(connections, "a") == 2
        self.ask(connections, demand("a", 9, limits=limits()))
        assert self.relays(connections, "a") == 9
