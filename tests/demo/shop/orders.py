"""What the shop does in one transaction: which order moves, how, and how awkwardly.

Pure: the random generator is given. The awkward parts are those that break careless relays: transactions
that stay open after they drew their outbox id, transactions that got their xid before they waited for a key's
lock, and rollbacks that leave holes in the ids.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

SLOTS = 48
ORDERS = 240
ACCOUNTS = 160
ROLLBACK_SHARE = 0.05
LONG_SHARE = 0.04
OTHER_TABLE_SHARE = 0.15
INVOICE_SHARE = 0.3

State = Literal["new", "placed", "cancelled", "delivered"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one transaction behaves apart from its business."""

    other_table_first: bool
    """Write another table before the key's lock is taken: an early xid for a late event."""
    open_seconds: float
    """Stay open this long between the outbox row and the commit."""
    rollback: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The next event of an order, and the order after it."""

    event: str
    state: State
    slot: int | None


def plan(rng: random.Random) -> Plan:
    """Draw the behaviour of one transaction."""
    return Plan(
        other_table_first=rng.random() < OTHER_TABLE_SHARE,
        open_seconds=rng.uniform(0.05, 0.5) if rng.random() < LONG_SHARE else 0.0,
        rollback=rng.random() < ROLLBACK_SHARE,
    )


def next_step(state: State, slot: int | None, *, rng: random.Random) -> Step:
    """What happens to an order next; a finished order is placed anew, so that slots are released and taken again."""
    if state != "placed" or slot is None:
        return Step("OrderPlaced", "placed", rng.randrange(SLOTS))
    draw = rng.random()
    if draw < 0.5:
        return Step("SlotChanged", "placed", (slot + rng.randrange(1, SLOTS)) % SLOTS)
    if draw < 0.75:
        return Step("OrderCancelled", "cancelled", None)
    return Step("OrderDelivered", "delivered", None)


def order_payload(order: str, version: int, step: Step, *, rng: random.Random) -> dict[str, Any]:
    """The order event's payload; the comment makes it as long as real ones are, and not ASCII only."""
    return {
        "order": order,
        "version": version,
        "slot": step.slot,
        "comment": _words(rng, rng.randrange(8, 30)),
    }


def money_payload(key: str, version: int, *, rng: random.Random) -> dict[str, Any]:
    """The payload of an invoice or a payment."""
    return {
        "account": key,
        "version": version,
        "amount": f"{rng.randrange(100, 100_000) / 100:.2f}",
        "currency": "EUR",
        "note": _words(rng, rng.randrange(4, 20)),
    }


_WORDS = (
    "bell",
    "twice",
    "Straße",
    "leave",
    "neighbour",
    "garden",
    "crème",
    "fragile",
    "Zürich",
    "gate",
    "日本",
    "box",
)


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))
