"""The next batch is looked for while one is in flight, and never sent when it may be wrong.

Covered: when it is asked for and when not; a fault in the batch before; a lost session or broker with a question open;
lanes that change hands; parked rows that are due; rows that become visible meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest

from outboxrelay.ports import Batch, PublisherError, StoreError, Wake
from tests.contract.relay.fakes import FakeStore
from tests.unit.relay.world import World

KEYS = 3


def fill(world: World, *, rows: int = 45) -> list[int]:
    return [world.table.insert(b"key %d" % (number % KEYS)) for number in range(rows)]


class Diary:
    """Remembers the moments of both sides."""

    def __init__(self) -> None:
        self.moments: list[str] = []

    def __call__(self, moment: str) -> None:
        self.moments.append(moment)

    def count(self, moment: str) -> int:
        return self.moments.count(moment)


def test_a_full_batch_is_in_flight_while_the_next_is_asked_for() -> None:
    world, diary = World(), Diary()
    written = fill(world)
    world.run(on_store=diary, on_publisher=diary)
    assert world.copies() == written
    asked = [at for at, moment in enumerate(diary.moments) if moment == "after ask"]
    assert len(asked) == 4
    # The first time before anything is handed over, then in the middle of it: always in front of the wait.
    assert diary.moments[asked[0] + 1] == "before publish"
    assert all(diary.moments[at + 1 : at + 3] == ["after publish", "before wait"] for at in asked[1:])


def test_a_batch_is_removed_while_the_next_is_handed_over() -> None:
    world, diary = World(), Diary()
    fill(world)
    world.run(on_store=diary, on_publisher=diary)
    begun = [at for at, moment in enumerate(diary.moments) if moment == "after start_settling"]
    assert len(begun) == 4
    for at in begun:
        assert diary.moments[at + 1 : at + 5] == ["before read", "after read", "before publish", "before settle"]


def test_the_last_batch_and_an_idle_relay_ask_for_nothing() -> None:
    world, diary = World(), Diary()
    fill(world, rows=9)
    world.run(lambda: diary.count("before read") > 20, on_store=diary)
    assert diary.count("before ask") == 0


@pytest.mark.parametrize("position", range(10))
def test_rows_read_ahead_of_a_fault_of_their_key_are_not_sent(position: int) -> None:
    world = World()
    written = fill(world)
    bad = written[position]
    world.topic.refuses = lambda row: row.id == bad
    held = [row_id for row_id in written if row_id % KEYS == bad % KEYS and row_id >= bad]
    world.run(lambda: len(world.table.rows) == len(held))
    assert not set(held) & set(world.copies())
    world.topic.refuses = lambda _row: False
    world.run()
    for number in range(KEYS):
        assert world.sent(b"key %d" % number) == written[number::KEYS]


@pytest.mark.parametrize("moment", ["before ask", "after ask"])
@pytest.mark.parametrize("lost", [StoreError("DatabaseUnreachable", "x"), PublisherError("BrokerUnreachable", "x")])
def test_a_fault_with_a_question_open_repeats_nothing(moment: str, lost: Exception) -> None:
    world = World()
    written = fill(world)
    occurrences = itertools.count()

    def interfere(now: str) -> None:
        if now == moment and next(occurrences) == 1:
            raise lost

    world.run(on_store=interfere)
    assert world.copies() == written


def test_lanes_are_shared_only_when_no_question_is_open() -> None:
    world, diary = World(rebalance_seconds=0.0001), Diary()
    written = fill(world, rows=100)
    newcomer = FakeStore(world.table)
    newcomer.open()
    joined: list[int] = []

    def interfere(moment: str) -> None:
        diary(moment)
        if moment == "after ask" and not joined:
            joined.append(1)
            newcomer.rebalance()

    world.run(lambda: bool(joined) and len(world.table.holders) > 0 and len(world.sent()) > 60, on_store=interfere)
    asks = [at for at, moment in enumerate(diary.moments) if moment == "after ask"]
    assert asks
    for at in asks:
        following = itertools.takewhile(lambda moment: moment != "before read", diary.moments[at + 1 :])
        assert "before rebalance" not in following
    newcomer.close()
    world.run()
    assert sorted(world.sent()) == written
    for number in range(KEYS):
        assert world.sent(b"key %d" % number) == written[number::KEYS]


def test_parked_rows_that_are_due_come_before_reading_ahead() -> None:
    world = World()
    bad = world.table.insert(b"bad")
    world.topic.refuses = lambda row: row.id == bad
    world.run(lambda: world.board.row_faults == 1)
    late: list[int] = []

    def interfere(moment: str) -> None:
        if moment == "after read" and len(late) < 200:
            late.append(world.table.insert(b"bad" if len(late) % 20 == 0 else b"good"))
            world.clock.sleep(0.5)
        world.topic.refuses = lambda row: row.id == bad and len(late) < 150

    fill(world)
    world.run(on_store=interfere, within=2000)
    assert world.sent(b"bad") == [bad, *late[::20]]


def test_a_row_that_becomes_visible_below_a_batch_in_flight_keeps_its_keys_order() -> None:
    world = World()
    late = world.table.begin()
    lower = late.insert(b"late")
    fill(world)
    occurrences = itertools.count()

    def interfere(moment: str) -> None:
        if moment == "before ask" and next(occurrences) == 1:
            late.commit()
            follower.append(world.table.insert(b"late"))

    follower: list[int] = []
    world.run(on_store=interfere)
    assert world.copies(b"late") == [lower, *follower]


def test_nobody_rests_while_a_batch_is_being_removed() -> None:
    """A parked row is tried while the relay rests for long, and is gone; the read finds rows that nobody announced."""
    world = World(announced_poll_ms=3_600_000)
    world.table.wake = Wake(ok=True, reason="Listening", message="")
    bad = world.table.insert(b"bad")
    world.topic.refuses = lambda row: row.id == bad
    written: list[int] = []

    def over() -> bool:
        if world.board.row_faults == 2 and not written:
            del world.table.rows[bad]
            written.extend(fill(world))
            world.table.announcements = 1
        return bool(written) and not world.table.rows

    world.run(over)
    assert world.copies() == written


class RefusingStore(FakeStore):
    """Its server refuses each question once that is put while rows are in flight."""

    refused = 0

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        if self._settling is None:
            return super().read(limit=limit, held_keys=held_keys, held_ids=held_ids)
        self.drop()
        self.refused += 1
        return Batch(rows=[], complete=False)


def test_a_refused_question_lets_the_batch_before_be_removed_and_is_put_again() -> None:
    world = World()
    world.store = store = RefusingStore(world.table)
    written = fill(world)
    world.run()
    assert store.refused == 4
    assert world.copies() == written
    assert world.board.store_failures == 0
