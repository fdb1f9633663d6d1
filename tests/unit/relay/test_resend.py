"""Sending a refused batch again: the culprits are found, nobody else is left out, and no key is overtaken."""

from __future__ import annotations

import random

import pytest

from outboxrelay.ports import Row
from outboxrelay.publishers.resend import Resend


def rows(*keys: bytes | None) -> list[Row]:
    return [Row(number, key, b"p", None, None, None, 1) for number, key in enumerate(keys, start=1)]


def play(batch: list[Row], bad: set[int], *, neighbours: int = 10**9) -> tuple[list[int], list[int], list[int]]:
    """Ids delivered, at fault and left out; a refusal takes up to `neighbours` rows around the culprit with it."""
    resend = Resend(batch)
    delivered: list[int] = []
    culprits: list[int] = []
    left_out: list[int] = []
    stuck: set[bytes] = set()
    while True:
        group, dropped = resend.next_group(stuck)
        left_out += [row.id for row in dropped]
        if not group:
            return delivered, culprits, left_out
        keys = [row.key for row in group if row.key is not None]
        assert len(keys) == len(set(keys)), "two rows of a key in flight at once"
        hit = [index for index, row in enumerate(group) if row.id in bad]
        refused = [row for index, row in enumerate(group) if any(abs(index - other) <= neighbours for other in hit)]
        delivered += [row.id for row in group if row not in refused]
        if not refused:
            continue
        culprit = resend.refused(group, refused)
        if culprit is not None:
            culprits.append(culprit.id)
            if culprit.key is not None:
                stuck.add(culprit.key)


def test_without_a_culprit_everything_goes_in_waves() -> None:
    assert play(rows(b"a", b"b", b"a", None, b"a"), set()) == ([1, 2, 4, 3, 5], [], [])


def test_the_culprit_stays_with_what_follows_it() -> None:
    delivered, culprits, left_out = play(rows(b"a", b"b", b"c", b"b", b"a", None), {2})
    assert (sorted(delivered), culprits, left_out) == ([1, 3, 5, 6], [2], [4])


def test_nothing_to_send() -> None:
    assert play([], set()) == ([], [], [])


@pytest.mark.parametrize("seed", range(100))
def test_any_batch_ends_with_exactly_the_culprits(seed: int) -> None:
    rng = random.Random(seed)
    batch = rows(*(rng.choice((None, b"a", b"b", b"c", b"d", b"%d" % n)) for n in range(rng.randrange(1, 80))))
    bad = set(rng.sample([row.id for row in batch], min(len(batch), rng.randrange(4))))
    delivered, culprits, left_out = play(batch, bad, neighbours=rng.choice((0, 2, 10**9)))
    stuck_from: dict[bytes, int] = {}
    for row in batch:
        if row.id in bad and row.key is not None:
            stuck_from.setdefault(row.key, row.id)
    behind = [row.id for row in batch if row.key in stuck_from and row.id > stuck_from[row.key or b""]]
    assert sorted(culprits) == sorted(bad - set(behind))
    assert sorted(left_out) == behind
    assert sorted(delivered) == sorted({row.id for row in batch} - set(culprits) - set(behind))
    for key in {row.key for row in batch if row.key is not None}:
        order = [row_id for row_id in delivered if batch[row_id - 1].key == key]
        assert order == sorted(order)
