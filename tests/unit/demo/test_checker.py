"""The streaming checker: order per key, repeats, loss, and the comparison with committed rows.

Each fault that the demo promises to notice is planted here and must be noticed.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.demo.shop.checker import Arrival, Audit, Committed, OrderChecker


def test_versions_in_order_are_first_deliveries() -> None:
    checker = OrderChecker()
    assert [checker.observe("a", version) for version in (1, 2, 3)] == ["first"] * 3
    assert (checker.first, checker.repeated, checker.reordered) == (3, 0, 0)
    assert checker.delivered("a") == 3


def test_keys_are_independent() -> None:
    checker = OrderChecker()
    assert checker.observe("a", 1) == "first"
    assert checker.observe("b", 1) == "first"
    assert checker.observe("b", 2) == "first"
    assert checker.keys == 2
    assert checker.undelivered({"a": 2, "b": 2}) == {"a": 1}


def test_a_batch_that_comes_again_is_repeats_and_no_reordering() -> None:
    checker = OrderChecker()
    assert [checker.observe("a", version) for version in (1, 2, 3, 1, 2, 3, 4)] == [
        "first", "first", "first", "repeat", "repeat", "repeat", "first",
    ]  # fmt: skip
    assert checker.reordered == 0


def test_an_overtaken_row_is_reordered_once_and_then_a_repeat() -> None:
    checker = OrderChecker()
    assert [checker.observe("a", version) for version in (1, 3, 2, 2)] == ["first", "first", "reordered", "repeat"]
    assert (checker.first, checker.reordered, checker.repeated) == (2, 1, 1)
    assert checker.undelivered({"a": 3}) == {}


def test_a_gap_that_is_never_filled_is_undelivered() -> None:
    checker = OrderChecker()
    for version in (1, 2, 5):
        checker.observe("a", version)
    assert checker.delivered("a") == 3
    assert checker.undelivered({"a": 5, "never seen": 4}) == {"a": 2, "never seen": 4}


def test_a_key_that_ends_with_an_old_row_is_outdated_until_the_newest_comes_again() -> None:
    checker = OrderChecker()
    for version in (1, 2, 1):
        checker.observe("a", version)
    checker.observe("b", 1)
    assert checker.outdated() == ["a"]
    checker.observe("a", 2)
    assert checker.outdated() == []


@pytest.mark.parametrize("version", [0, -1])
def test_versions_begin_at_one(version: int) -> None:
    with pytest.raises(ValueError, match="versions begin at 1"):
        OrderChecker().observe("a", version)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), max_size=80))
def test_every_arrival_is_counted_once_and_delivered_is_the_set_of_versions(
    arrivals: list[tuple[str, int]],
) -> None:
    checker = OrderChecker()
    for key, version in arrivals:
        checker.observe(key, version)
    different = {(key, version) for key, version in arrivals}
    assert checker.first + checker.reordered == len(different)
    assert checker.repeated == len(arrivals) - len(different)
    for name in "abc":
        assert checker.delivered(name) == sum(key == name for key, _ in different)


@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_only_arrivals_in_order_go_without_reordering(rng: random.Random, count: int) -> None:
    versions = list(range(1, count + 1))
    rng.shuffle(versions)
    checker = OrderChecker()
    for version in versions:
        checker.observe("a", version)
    assert (checker.reordered == 0) == (versions == sorted(versions))


def _arrival(version: int, digest: bytes = b"same", at: float = 10.0) -> Arrival:
    return Arrival("a", version, digest, at)


def test_the_audit_passes_what_was_committed_and_tells_latencies() -> None:
    audit = Audit()
    ledger = {("a", 1): Committed(b"same", 9.5), ("a", 2): Committed(b"same", 9.75)}
    assert audit.compare([_arrival(1), _arrival(2), _arrival(1, at=11.5)], ledger) == [0.5, 0.25, 2.0]
    assert (audit.compared, audit.altered, audit.phantom, audit.examples) == (3, 0, 0, [])


def test_the_audit_finds_altered_bytes_also_in_a_repeat() -> None:
    audit = Audit()
    audit.compare([_arrival(1), _arrival(1, b"other")], {("a", 1): Committed(b"same", 9.0)})
    assert audit.altered == 1
    assert audit.examples == ["a version 1 arrived with other bytes than were committed"]


def test_the_audit_finds_rows_of_rolled_back_transactions() -> None:
    audit = Audit()
    assert audit.compare([_arrival(7)], {}) == []
    assert (audit.phantom, audit.examples) == (1, ["a version 7 was never committed"])


def test_the_audit_keeps_few_examples() -> None:
    audit = Audit()
    audit.compare([_arrival(version) for version in range(1, 100)], {})
    assert audit.phantom == 99
    assert len(audit.examples) == Audit.MAX_EXAMPLES
