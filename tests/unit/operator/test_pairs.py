"""From a spec to its pairs."""

from __future__ import annotations

from outboxrelay.config import Match
from outboxrelay_operator.pairs import pairs_of
from tests.unit.operator.builders import KEY, raw_database, raw_topic, spec


def test_every_topic_meets_every_database_it_names() -> None:
    chosen = spec(
        databases=[raw_database("orders"), raw_database("payments")],
        topics=[raw_topic("orders", match=["order"], databases=["orders"]), raw_topic("rest")],
    )
    pairs = [(pair.topic.name, pair.database.name) for pair in pairs_of(KEY, chosen)]
    assert pairs == [("orders", "orders"), ("rest", "orders"), ("rest", "payments")]


def test_the_catch_all_leaves_out_what_others_of_the_same_database_take() -> None:
    chosen = spec(
        databases=[raw_database("orders"), raw_database("payments")],
        topics=[
            raw_topic("b", match=["refund", "order"], databases=["orders"]),
            raw_topic("a", match=["audit"]),
            raw_topic("rest"),
        ],
    )
    matches = {(pair.topic.name, pair.database.name): pair.match for pair in pairs_of(KEY, chosen)}
    assert matches["rest", "orders"] == Match(exclude=("audit", "order", "refund"))
    assert matches["rest", "payments"] == Match(exclude=("audit",))
    assert matches["b", "orders"] == Match(include=("order", "refund"))


def test_one_topic_without_match_takes_everything() -> None:
    assert pairs_of(KEY, spec())[0].match.everything
