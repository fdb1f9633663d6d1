"""Which of several OutboxRelays may serve a table (OL-05, the part that names can decide)."""

from __future__ import annotations

from typing import Any

import pytest

from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.conflicts import Claims, server_id, table_id
from outboxrelay_operator.pairs import Key, Owner, pairs_of
from tests.unit.operator.builders import raw_database, raw_spec, raw_topic

OLD = Owner(key=Key("shop", "old"), uid="b", created="2026-01-01T00:00:00Z")
YOUNG = Owner(key=Key("shop", "young"), uid="a", created="2026-01-01T00:00:01Z")


def claim(claims: Claims, owner: Owner, raw: dict[str, Any] | None = None) -> frozenset[Key]:
    chosen = OutboxRelaySpec.model_validate(raw or raw_spec())
    return claims.update(owner, pairs_of(owner.key, chosen))


def losers(claims: Claims) -> set[Key]:
    return {owner.key for owner in (OLD, YOUNG) if claims.winners(owner.key)}


def test_ol_05_the_younger_one_loses_and_takes_over_when_the_older_goes() -> None:
    """cases.md OL-05."""
    claims = Claims()
    assert claim(claims, YOUNG) == frozenset()
    assert claim(claims, OLD) == {YOUNG.key}
    assert losers(claims) == {YOUNG.key}
    [lost] = claims.winners(YOUNG.key).values()
    assert lost.owner == OLD
    assert claims.remove(OLD.key) == {YOUNG.key}
    assert losers(claims) == set()


def test_within_a_second_the_uid_decides() -> None:
    claims = Claims()
    twin = Owner(key=YOUNG.key, uid="a", created=OLD.created)
    claim(claims, OLD)
    claim(claims, twin)
    assert losers(claims) == {OLD.key}


@pytest.mark.parametrize(
    ("host", "namespace"),
    [
        ("ORDERS-DB", "shop"),
        ("orders-db.shop", "shop"),
        ("orders-db.shop.svc", "elsewhere"),
        ("orders-db.shop.svc.cluster.local", "elsewhere"),
    ],
)
def test_ol_05_another_spelling_of_the_host_is_the_same_server(host: str, namespace: str) -> None:
    """cases.md OL-05."""
    claims = Claims()
    claim(claims, OLD)
    other = Owner(key=Key(namespace, "young"), uid="c", created=YOUNG.created)
    claim(claims, other, raw_spec(databases=[raw_database(host=host)]))
    assert claims.winners(other.key)


@pytest.mark.parametrize(("hosts", "meet"), [(["x", "orders-db"], True), (["orders-db"], True), (["x", "y"], False)])
def test_one_host_in_common_is_enough(hosts: list[str], meet: bool) -> None:
    claims = Claims()
    claim(claims, OLD)
    assert claim(claims, YOUNG, raw_spec(databases=[raw_database(host=None, hosts=hosts)])) == (
        {OLD.key} if meet else frozenset()
    )
    assert losers(claims) == ({YOUNG.key} if meet else set())
    claims.remove(OLD.key)
    assert losers(claims) == set()


def test_a_pod_of_a_headless_service_is_of_the_namespace_it_is_used_in() -> None:
    """The same manifest in staging and in production."""
    claims = Claims()
    spec = raw_spec(databases=[raw_database(host=None, hosts=["orders-db-0.orders-db", "orders-db-1.orders-db"])])
    claim(claims, OLD, spec)
    other = Owner(key=Key("elsewhere", "young"), uid="c", created=YOUNG.created)
    claim(claims, other, spec)
    assert not claims.winners(other.key)
    ours, theirs = (pairs_of(key, OutboxRelaySpec.model_validate(spec))[0] for key in (OLD.key, other.key))
    assert server_id(ours) != server_id(theirs)
    assert table_id(ours) != table_id(theirs)

    claim(claims, YOUNG, raw_spec(databases=[raw_database(host="orders-db-1.orders-db.shop.svc")]))
    assert claims.winners(YOUNG.key)


def test_ol_05_a_bare_host_in_another_namespace_is_another_server() -> None:
    """cases.md OL-05."""
    claims = Claims()
    claim(claims, OLD)
    other = Owner(key=Key("elsewhere", "young"), uid="c", created=YOUNG.created)
    claim(claims, other)
    assert not claims.winners(other.key)


@pytest.mark.parametrize(
    ("mine", "meets"),
    [
        ({"match": ["order"]}, True),
        ({"match": ["refund"]}, False),
        ({"match": ["refund"], "topic": "shop.orders"}, True),
        ({}, True),
    ],
    ids=["the same route", "another route", "another route to the same topic", "every row"],
)
def test_pairs_over_one_table_conflict_by_rows_or_by_topic(mine: dict[str, Any], meets: bool) -> None:
    claims = Claims()
    claim(claims, OLD, raw_spec(topics=[raw_topic(match=["order", "audit"])]))
    claim(claims, YOUNG, raw_spec(topics=[raw_topic("other", **mine)]))
    assert bool(claims.winners(YOUNG.key)) == meets


def test_only_the_pair_in_conflict_is_lost() -> None:
    claims = Claims()
    claim(claims, OLD)
    claim(claims, YOUNG, raw_spec(databases=[raw_database(), raw_database("payments")]))
    assert set(claims.winners(YOUNG.key)) == {
        pair.name for pair in pairs_of(YOUNG.key, OutboxRelaySpec.model_validate(raw_spec()))
    }


def test_a_changed_spec_frees_what_it_leaves() -> None:
    claims = Claims()
    claim(claims, OLD)
    claim(claims, YOUNG)
    assert claim(claims, OLD, raw_spec(databases=[raw_database("payments")])) == {YOUNG.key}
    assert losers(claims) == set()


def test_an_unchanged_spec_wakes_nobody() -> None:
    claims = Claims()
    claim(claims, OLD)
    claim(claims, YOUNG)
    assert claim(claims, OLD) == frozenset()


def test_servers_are_told_apart_as_tables_are() -> None:
    here, there = (pairs_of(Key(space, "r"), OutboxRelaySpec.model_validate(raw_spec()))[0] for space in ("shop", "b"))
    assert server_id(here) != server_id(there)
    spelled = OutboxRelaySpec.model_validate(raw_spec(databases=[raw_database(host="orders-db.shop.svc")]))
    assert server_id(pairs_of(Key("b", "r"), spelled)[0]) == server_id(here)
