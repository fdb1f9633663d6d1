"""The shop's decisions: every transaction's step is one that the delivery service understands."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.demo.shop.delivery import SlotBook
from tests.demo.shop.orders import (
    LONG_SHARE,
    ROLLBACK_SHARE,
    SLOTS,
    State,
    money_payload,
    next_step,
    order_payload,
    plan,
)


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_slots_follow_the_orders(rng: random.Random, steps: int) -> None:
    book = SlotBook()
    state: State = "new"
    slot: int | None = None
    for _ in range(steps):
        step = next_step(state, slot, rng=rng)
        book.apply(step.event, order="order-1", slot=step.slot)
        state, slot = step.state, step.slot
        assert slot is None or 0 <= slot < SLOTS
        assert book.taken() == ({slot: 1} if state == "placed" else {})


@given(st.randoms(use_true_random=False), st.integers(0, SLOTS - 1))
def test_a_changed_slot_is_another_slot(rng: random.Random, slot: int) -> None:
    step = next_step("placed", slot, rng=rng)
    assert step.slot != slot


def test_plans_hold_every_kind_of_transaction() -> None:
    rng = random.Random(1)
    plans = [plan(rng) for _ in range(20_000)]
    assert abs(sum(made.rollback for made in plans) / len(plans) - ROLLBACK_SHARE) < 0.01
    assert abs(sum(made.open_seconds > 0 for made in plans) / len(plans) - LONG_SHARE) < 0.01
    assert any(made.other_table_first for made in plans)
    assert any(made.other_table_first and made.open_seconds and made.rollback for made in plans)


def test_payloads_carry_what_the_consumer_reads() -> None:
    rng = random.Random(2)
    step = next_step("new", None, rng=rng)
    order = order_payload("order-1", 7, step, rng=rng)
    assert (order["order"], order["version"], order["slot"]) == ("order-1", 7, step.slot)
    assert money_payload("invoice-1", 3, rng=rng)["version"] == 3
