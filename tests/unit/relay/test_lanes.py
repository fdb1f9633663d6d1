"""Fair shares: their size, that relays on their own come to an agreement, and that all lanes are taken in the end."""

from __future__ import annotations

import random

import pytest

from outboxrelay.lanes import Plan, fair_share, plan


@pytest.mark.parametrize(("lanes", "members", "share"), [(16, 1, 16), (16, 3, 6), (16, 16, 1), (16, 20, 1), (1, 5, 1)])
def test_the_share(lanes: int, members: int, share: int) -> None:
    assert fair_share(lanes=lanes, members=members) == share


def test_what_is_above_the_share_is_given_up() -> None:
    assert plan(lanes=8, members=2, owned=range(8), held_by_others=[]) == Plan(give=(4, 5, 6, 7), take=())


def test_free_lanes_are_taken_up_to_the_share() -> None:
    assert plan(lanes=8, members=2, owned=[1], held_by_others=[0, 2]) == Plan(give=(), take=(3, 4, 5))


def test_nothing_changes_at_the_share() -> None:
    assert plan(lanes=4, members=2, owned=[0, 1], held_by_others=[]) == Plan(give=(), take=())


@pytest.mark.parametrize("seed", range(50))
def test_relays_come_to_an_agreement_whatever_the_order(seed: int) -> None:
    rng = random.Random(seed)
    lanes = rng.randrange(1, 40)
    owned: list[set[int]] = [set() for _ in range(rng.randrange(1, 8))]
    for _ in range(40):
        change = rng.random()
        if change < 0.1:
            owned.append(set())
        elif change < 0.2 and len(owned) > 1:
            owned.pop(rng.randrange(len(owned)))
        _round(lanes, owned, rng)
    for _ in range(3):
        _round(lanes, owned, rng)
    assert sorted(lane for mine in owned for lane in mine) == list(range(lanes))
    assert max(len(mine) for mine in owned) <= fair_share(lanes=lanes, members=len(owned))
    before = [set(mine) for mine in owned]
    _round(lanes, owned, rng)
    assert owned == before


def _round(lanes: int, owned: list[set[int]], rng: random.Random) -> None:
    for mine in rng.sample(owned, len(owned)):
        others = [lane for other in owned if other is not mine for lane in other]
        step = plan(lanes=lanes, members=len(owned), owned=mine, held_by_others=others)
        mine -= set(step.give)
        mine |= set(step.take)
