"""Rows that no topic takes: where there can be any, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.conflicts import Claims
from outboxrelay_operator.measurements import Backlog
from outboxrelay_operator.pairs import Key, Owner, Pair, pairs_of
from outboxrelay_operator.policies import judge
from outboxrelay_operator.status import next_status
from outboxrelay_operator.unrouted import Leftover, leftovers
from tests.unit.operator.builders import KEY, NOW, OWNER, backlog, facts, observed, raw_database, raw_spec, raw_topic

ORDERS = raw_topic("orders", match=["order", "cancel"])


def pairs(*topics: dict[str, Any], key: Key = KEY, **changes: Any) -> tuple[Pair, ...]:
    return pairs_of(key, OutboxRelaySpec.model_validate(raw_spec(topics=list(topics), **changes)))


def excluded(*mine: Pair, others: tuple[Pair, ...] = ()) -> dict[str, tuple[str, ...]]:
    return {pair.name: pair.match.exclude for pair in leftovers(mine, others)}


def test_what_no_match_names_is_left_over() -> None:
    assert excluded(*pairs(ORDERS, raw_topic("refunds", match=["refund"]))) == {
        "shop/orders": ("cancel", "order", "refund")
    }


def test_a_topic_without_match_leaves_nothing() -> None:
    assert excluded(*pairs(ORDERS, raw_topic("rest"))) == {}
    assert excluded(*pairs(raw_topic("all"))) == {}


def test_each_table_by_itself() -> None:
    two = [raw_database("orders"), raw_database("payments")]
    topics = ORDERS, raw_topic("rest", databases=["payments"])
    assert excluded(*pairs(*topics, databases=two)) == {"shop/orders": ("cancel", "order")}


def test_others_over_the_same_table_take_their_part() -> None:
    other = Key("shop", "other")
    theirs = pairs(raw_topic("refunds", topic="r", match=["refund"]), key=other)
    elsewhere = pairs(raw_topic("rest", topic="e"), key=other, databases=[raw_database("orders", host="elsewhere")])
    assert excluded(*pairs(ORDERS), others=theirs + elsewhere) == {"shop/orders": ("cancel", "order", "refund")}
    assert excluded(*pairs(ORDERS), others=pairs(raw_topic("rest", topic="x"), key=other)) == {}


def test_the_others_over_a_table_are_known() -> None:
    claims = Claims()
    theirs = pairs(raw_topic("refunds", match=["refund"]), key=Key("shop", "other"))
    claims.update(OWNER, pairs(ORDERS))
    claims.update(Owner(key=Key("shop", "other"), uid="o", created=""), theirs)
    assert claims.neighbours(KEY) == list(theirs)
    assert claims.neighbours(Key("shop", "nobody")) == []


class TestCondition:
    """The condition UnroutedRows, where it can hold at all."""

    def told(self, *found: Backlog | None) -> tuple[dict[str, Any], int | None]:
        [pair] = leftovers(pairs(ORDERS), ())
        seen = [Leftover(pair, each) for each in found]
        status = next_status(observed(), [(facts(), judge(facts()))], now=NOW, leftovers=seen)
        shown: dict[str, Any] = next((item for item in status["conditions"] if item["type"] == "UnroutedRows"), {})
        return shown, status.get("unrouted")

    def test_count_and_values_are_told(self) -> None:
        shown, count = self.told(backlog(7, routes=("refund", None, "r" * 128)))
        assert (shown["status"], shown["reason"], count) == ("True", "RowsUnrouted", 7)
        assert shown["message"] == (
            "table public.outbox in database orders on orders-db:5432: no topic takes 7 rows; aggregatetype is "
            f"'refund', NULL, '{'r' * 61}...': add it to a match, or a topic without match"
        )

    def test_many_are_not_counted(self) -> None:
        shown, count = self.told(backlog(10_001, exact=False, routes=("x",)))
        assert "takes more than 10000 rows" in shown["message"]
        assert count == 10_001

    def test_some_that_could_not_be_counted_are_not_none(self) -> None:
        shown, count = self.told(backlog(1, exact=False, routes=("x",)))
        assert (shown["status"], count) == ("True", 1)
        assert "takes some rows (counting them took too long)" in shown["message"]

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            ((backlog(0),), ("False", "AllRouted", 0)),
            ((None,), ("Unknown", "NotMeasured", None)),
            ((backlog(3), None), ("True", "RowsUnrouted", None)),
            ((), (None, None, None)),
        ],
    )
    def test_what_is_unknown_is_not_none(self, found: tuple[Backlog | None, ...], expected: tuple[Any, ...]) -> None:
        shown, count = self.told(*found)
        assert (shown.get("status"), shown.get("reason"), count) == expected

    def test_nobody_looks_where_the_operator_reads_no_secrets(self) -> None:
        [pair] = leftovers(pairs(ORDERS), ())
        judged = [(facts(), judge(facts()))]
        status = next_status(observed(), judged, now=NOW, leftovers=[Leftover(pair, None)], through_relays=True)
        [shown] = [item for item in status["conditions"] if item["type"] == "UnroutedRows"]
        assert (shown["status"], shown["reason"]) == ("Unknown", "NoSecretAccess")
        assert "public.outbox in database orders" in shown["message"]
        assert "unrouted" not in status
