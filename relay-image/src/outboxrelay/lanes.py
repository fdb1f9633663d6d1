"""Which key lanes a relay should own: the fair share among the live relays of one pair.

A lane is a fixed slice of the keys, and the unit in which relays share a table without breaking the order of a
key. Pure: who holds what is read from the database elsewhere, and the locks are taken there. Nothing here may
decide on anything but these numbers, since every relay must come to compatible answers on its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Plan(NamedTuple):
    """Lanes to give up and lanes to try to take, both ascending."""

    give: tuple[int, ...]
    take: tuple[int, ...]


def fair_share(*, lanes: int, members: int) -> int:
    """The most lanes that one of `members` relays may own."""
    return -(-lanes // max(1, members))


def plan(*, lanes: int, members: int, owned: Collection[int], held_by_others: Collection[int]) -> Plan:
    """The step towards the fair share.

    The highest lanes are given first and the lowest taken first, so that relays which start together settle after
    few exchanges. Between them all lanes are always taken in the end: `members` shares cover every lane.
    """
    share = fair_share(lanes=lanes, members=members)
    mine = sorted(owned)
    if len(mine) > share:
        return Plan(give=tuple(mine[share:]), take=())
    free = [lane for lane in range(lanes) if lane not in owned and lane not in held_by_others]
    return Plan(give=(), take=tuple(free[: share - len(mine)]))
