"""The final table: every promise of the demo fails for the figure that breaks it, and for no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.demo.verdict import Check, describe_latency, judge_delivery, judge_memory, passed

GOOD: dict[str, Any] = {
    "committed": 1_000,
    "rolled_back": 52,
    "received": 1_004,
    "delivered": 1_000,
    "undelivered": 0,
    "undelivered_keys": {},
    "repeated": 4,
    "dropped": 4,
    "reordered": 0,
    "keys": 64,
    "outdated_keys": 0,
    "compared": 1_004,
    "altered": 0,
    "phantom": 0,
    "orders_in_slots": 60,
    "slots_equal": True,
    "slot_differences": {},
}


def _failed(**changes: Any) -> list[str]:
    return [check.name for check in judge_delivery(GOOD | changes) if check.ok is False]


def test_a_good_run_passes() -> None:
    assert _failed() == []


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"committed": 0, "delivered": 0}, "rows committed"),
        ({"delivered": 999}, "delivered"),
        ({"undelivered": 1, "undelivered_keys": {"order-1": 1}}, "lost"),
        ({"reordered": 1}, "reordered within a key"),
        ({"outdated_keys": 1}, "keys left at an old row"),
        ({"altered": 1}, "bytes compared by SHA-256"),
        ({"compared": 1_003}, "bytes compared by SHA-256"),
        ({"phantom": 1}, "messages of rolled back rows"),
        ({"slots_equal": False, "slot_differences": {"3": (1, 2)}}, "delivery slots"),
        ({"orders_in_slots": 0}, "delivery slots"),
    ],
)
def test_each_broken_promise_fails(changes: dict[str, Any], failed: str) -> None:
    assert _failed(**changes) == [failed]


def test_repeats_are_told_and_no_failure() -> None:
    assert _failed(repeated=900, dropped=900, received=1_900, compared=1_900) == []


def test_passed_is_the_conjunction_of_the_claims() -> None:
    assert passed([Check("a", ""), Check("b", "", ok=True)])
    assert not passed([Check("a", "", ok=True), Check("b", "", ok=False)])


def test_latency_for_people() -> None:
    assert describe_latency({}) == "no rows"
    assert describe_latency({40: 99, 200: 1}) == "p50 1 ms, p99 1 ms"
    assert describe_latency({40: 50, 200: 50}) == "p50 1 ms, p99 10.0 s"


def test_memory_is_judged_by_its_highest_figure() -> None:
    assert judge_memory("a relay pod", [40.2, 61.7], limit_mib=96) == Check(
        "memory of a relay pod", "at most 62 MiB (limit 96)", ok=True
    )
    assert judge_memory("a relay pod", [40.2, 97.0], limit_mib=96).ok is False
    assert judge_memory("a relay pod", [], limit_mib=96).ok is False
