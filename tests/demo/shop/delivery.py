"""The delivery service: it reserves and releases delivery slots as the order events tell it to.

Pure, and deliberately naive: it counts up and down as the events come, so a repeat that is not dropped or two
events of one order in the wrong order leave its slots wrong. `Deduplicator` is all the protection that a
consumer of an outbox needs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping


class Deduplicator:
    """Remembers the newest message ids, and tells which ones come again.

    Repeats come from batches that were in flight when a relay died, so a window many times larger than
    such batches is enough; a service with a database keeps the ids in a table instead.
    """

    def __init__(self, *, window: int = 200_000) -> None:
        self._window = window
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self.dropped = 0

    def is_new(self, message_id: bytes) -> bool:
        """Whether this id is not among the remembered ones; remembers it."""
        if message_id in self._seen:
            self.dropped += 1
            return False
        self._seen[message_id] = None
        if len(self._seen) > self._window:
            self._seen.popitem(last=False)
        return True


class SlotBook:
    """Which delivery slots are taken, and by which order."""

    def __init__(self) -> None:
        self._taken: Counter[int] = Counter()
        self._slot_of: dict[str, int] = {}

    def apply(self, event_type: str, *, order: str, slot: int | None) -> None:
        """Follow one order event; `slot` is the slot that the event asks for.

        Raises:
            ValueError: on an event that the service does not know.
        """
        match event_type, slot:
            case "OrderPlaced", int():
                self._reserve(order, slot)
            case "SlotChanged", int():
                self._release(order)
                self._reserve(order, slot)
            case (("OrderCancelled" | "OrderDelivered"), None):
                self._release(order)
            case _:
                raise ValueError(f"order event of unknown type {event_type!r} with slot {slot!r}")

    def taken(self) -> dict[int, int]:
        """Slots with the number of orders in them, without empty ones."""
        return {slot: count for slot, count in sorted(self._taken.items()) if count != 0}

    def _reserve(self, order: str, slot: int) -> None:
        self._taken[slot] += 1
        self._slot_of[order] = slot

    def _release(self, order: str) -> None:
        slot = self._slot_of.pop(order, None)
        if slot is not None:
            self._taken[slot] -= 1


def slot_differences(booked: Mapping[int, int], ordered: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Slots whose number of orders differs: slot -> (what the delivery service holds, what the orders say)."""
    return {
        slot: (booked.get(slot, 0), ordered.get(slot, 0))
        for slot in sorted(booked.keys() | ordered.keys())
        if booked.get(slot, 0) != ordered.get(slot, 0)
    }
