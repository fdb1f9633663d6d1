"""The delivery service: right slots for right deliveries, and wrong ones for repeats and reordering.

The second half matters as much: slots that stay right whatever happens would prove nothing.
"""

from __future__ import annotations

import pytest

from tests.demo.shop.delivery import Deduplicator, SlotBook, slot_differences

PLACED = ("OrderPlaced", "order-1", 3)
CHANGED = ("SlotChanged", "order-1", 5)
CANCELLED = ("OrderCancelled", "order-1", None)
Event = tuple[str, str, int | None]


def _book(*events: Event) -> dict[int, int]:
    book = SlotBook()
    for event, order, slot in events:
        book.apply(event, order=order, slot=slot)
    return book.taken()


def test_an_order_takes_moves_and_gives_back_its_slot() -> None:
    assert _book(PLACED) == {3: 1}
    assert _book(PLACED, CHANGED) == {5: 1}
    assert _book(PLACED, CHANGED, CANCELLED) == {}
    assert _book(PLACED, ("OrderDelivered", "order-1", None)) == {}
    assert _book(PLACED, ("OrderPlaced", "order-2", 3)) == {3: 2}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((PLACED, PLACED, CHANGED), id="a repeat that was not dropped"),
        pytest.param((CHANGED, PLACED), id="two events in the wrong order"),
        pytest.param((PLACED, CANCELLED, CHANGED), id="a cancellation that overtook"),
        pytest.param((PLACED,), id="a lost event"),
    ],
)
def test_broken_delivery_leaves_wrong_slots(events: tuple[Event, ...]) -> None:
    right = _book(PLACED, CHANGED) if CANCELLED not in events else {}
    assert slot_differences(_book(*events), right)


@pytest.mark.parametrize("event", ["OrderLost", ""])
def test_an_unknown_event_is_an_error(event: str) -> None:
    with pytest.raises(ValueError, match="unknown type"):
        SlotBook().apply(event, order="order-1", slot=1)


def test_a_placed_order_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="OrderPlaced"):
        SlotBook().apply("OrderPlaced", order="order-1", slot=None)


def test_differences_name_both_sides() -> None:
    assert slot_differences({1: 2, 2: 1}, {1: 2, 3: 4}) == {2: (1, 0), 3: (0, 4)}
    assert slot_differences({1: 2}, {1: 2}) == {}


def test_repeats_are_dropped_within_the_window() -> None:
    ids = Deduplicator(window=2)
    assert [ids.is_new(name) for name in (b"1", b"2", b"1", b"3")] == [True, True, False, True]
    assert ids.dropped == 1


def test_the_window_bounds_memory() -> None:
    ids = Deduplicator(window=2)
    for name in (b"1", b"2", b"3"):
        ids.is_new(name)
    assert ids.is_new(b"1")
