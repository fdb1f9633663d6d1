"""The floor's rule, case by case, and that it thins out instead of giving up behind a long transaction."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from outboxrelay.stores.floor import NONE, Floor


def settled(*entries: tuple[int, int]) -> Floor:
    floor = Floor()
    for own_xid, highest_id in entries:
        floor.observed(highest_id=highest_id, own_xid=own_xid, writers=())
    return floor


def test_a_new_session_starts_at_the_true_start() -> None:
    floor = Floor()
    floor.read(xmin=10**9, last_id=50, complete=True)
    assert floor.value == NONE


def test_it_rises_when_every_transaction_before_our_own_has_ended() -> None:
    floor = settled((100, 50))
    floor.read(xmin=99, last_id=None, complete=True)
    assert floor.value == NONE
    floor.read(xmin=100, last_id=None, complete=True)
    assert floor.value == 50


def test_it_rises_in_full_batches_once_they_pass_the_id() -> None:
    floor = settled((100, 50))
    floor.read(xmin=200, last_id=49, complete=False)
    assert floor.value == NONE
    floor.read(xmin=200, last_id=50, complete=False)
    assert floor.value == 50


def test_it_rises_as_far_as_each_entry_allows() -> None:
    floor = settled((100, 50), (110, 60), (120, 70))
    floor.read(xmin=115, last_id=65, complete=False)
    assert floor.value == 60
    floor.read(xmin=120, last_id=80, complete=True)
    assert floor.value == 70


def test_a_batch_of_late_rows_does_not_lower_what_is_known() -> None:
    floor = settled((100, 50), (110, 7))
    floor.read(xmin=100, last_id=None, complete=True)
    assert floor.value == 50


def test_rewinding_lowers_it_and_never_raises_it() -> None:
    floor = settled((100, 50))
    floor.read(xmin=100, last_id=None, complete=True)
    floor.rewind(70)
    assert floor.value == 50
    floor.rewind(20)
    assert floor.value == 19
    floor.rewind(NONE)
    assert floor.value == NONE


def test_a_sweep_starts_over_and_keeps_what_is_known() -> None:
    floor = settled((100, 50), (110, 60))
    floor.read(xmin=100, last_id=None, complete=True)
    floor.sweep()
    assert floor.value == NONE
    floor.read(xmin=110, last_id=None, complete=True)
    assert floor.value == 60


def test_an_idle_relay_returns_to_its_floor_after_a_sweep_or_a_rewind() -> None:
    floor = settled((100, 50))
    floor.read(xmin=100, last_id=None, complete=True)
    for go_back in (floor.sweep, lambda: floor.rewind(20)):
        go_back()
        floor.read(xmin=100, last_id=49, complete=False)
        assert floor.value < 49, "rows up to the floor were left behind"
        floor.read(xmin=100, last_id=None, complete=True)
        assert floor.value == 50


def test_what_is_found_below_takes_the_floor_down_with_it() -> None:
    """A sequence that begins anew goes on from there, and its rows must not all wait for the next sweep."""
    floor = settled((100, 50))
    floor.read(xmin=100, last_id=None, complete=True)
    floor.observed(highest_id=60, own_xid=110, writers=())
    floor.look_below()
    assert floor.start < 1
    floor.found_below([1, 2, 70])
    floor.read(xmin=200, last_id=70, complete=True)
    assert floor.value == 2
    floor.observed(highest_id=3, own_xid=120, writers=())
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == 3


def test_a_look_below_that_finds_nothing_changes_nothing() -> None:
    floor = settled((100, 50))
    floor.read(xmin=100, last_id=None, complete=True)
    for found in ([], [51]):
        floor.look_below()
        assert floor.looks_below()
        floor.found_below(found)
        assert not floor.looks_below()
        floor.read(xmin=100, last_id=None, complete=True)
        assert floor.value == 50


def test_what_a_sweep_finds_was_expected() -> None:
    """The rows of lanes that were left out, for example: those of others go on above."""
    floor = settled((100, 50))
    floor.read(xmin=100, last_id=None, complete=True)
    floor.look_below()
    floor.sweep()
    assert not floor.looks_below()


def test_every_id_can_be_read() -> None:
    floor = settled((100, 2**63 - 1))
    assert floor.start == -(2**63)
    floor.read(xmin=100, last_id=None, complete=True)
    assert floor.start == 2**63 - 1
    floor.rewind(-(2**63))
    assert floor.start == -(2**63)


def test_a_new_session_or_lane_forgets_everything() -> None:
    floor = settled((100, 50))
    floor.reset()
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == NONE


def test_behind_a_long_transaction_old_entries_are_kept() -> None:
    floor = Floor(max_entries=16)
    for number in range(1, 1000):
        floor.observed(highest_id=number * 10, own_xid=number, writers=())
    floor.read(xmin=500, last_id=None, complete=True)
    assert 3000 <= floor.value <= 5000


def test_it_waits_for_writers_that_had_no_xid_yet() -> None:
    floor = Floor()
    floor.observed(highest_id=50, own_xid=100, writers=["3/7", "4/1"])
    assert floor.waits()
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == NONE
    floor.still_writing(["4/1", "3/8"])
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == NONE
    floor.still_writing(["3/8"])
    assert not floor.waits()
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == 50


def test_a_later_look_also_tells_who_has_ended() -> None:
    floor = Floor()
    floor.observed(highest_id=50, own_xid=100, writers=["3/7"])
    floor.observed(highest_id=60, own_xid=110, writers=["5/5"])
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == 50
    floor.still_writing([])
    floor.read(xmin=200, last_id=None, complete=True)
    assert floor.value == 60


def test_no_row_is_ever_passed() -> None:
    """A model of the server: locks and ids before xids, commits in any order, reads with a limit."""
    for seed in range(300):
        _simulate(random.Random(seed))


@dataclass
class Writer:
    """A transaction: its virtual id, its xid once it has stored a row, and the ids it has drawn."""

    name: str
    xid: int | None = None
    rows: list[int] = field(default_factory=list)


@dataclass
class Server:
    """What there is of transactions and rows."""

    next_xid: int = 100
    next_id: int = 1
    running: list[Writer] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1

    def xmin(self) -> int:
        return min((writer.xid for writer in self.running if writer.xid is not None), default=self.next_xid)

    def end(self, writer: Writer, *, commits: bool) -> None:
        self.running.remove(writer)
        if commits and writer.xid is not None:
            self.visible |= set(writer.rows)
            self.written |= set(writer.rows)

    def step(self, rng: random.Random, number: int) -> None:
        """One of the writers does something."""
        action = rng.random()
        if action < 0.35:
            self.running.append(Writer(name=f"3/{number}"))
            return
        if not self.running:
            return
        writer = rng.choice(self.running)
        if action < 0.6:
            # The id is drawn while the row is made; the xid comes when it is stored.
            writer.rows.append(self.next_id)
            self.next_id += 1
        elif action < 0.8:
            if writer.rows and writer.xid is None:
                writer.xid = self.xid()
        else:
            if writer.rows and writer.xid is None:
                writer.xid = self.xid()
            self.end(writer, commits=rng.random() < 0.8)


def _simulate(rng: random.Random) -> None:
    floor, server = Floor(max_entries=8), Server()
    sent: set[int] = set()
    highest = 0
    for number in range(400):
        action = rng.random()
        if action < 0.65 and number < 300:
            server.step(rng, number)
            continue
        if highest and action > 0.85:
            names = [writer.name for writer in server.running]
            floor.observed(highest_id=highest, own_xid=server.xid(), writers=names)
            continue
        limit = rng.choice((1, 3, 50))
        batch = sorted(row for row in server.visible if row > floor.value)[:limit]
        if floor.looks_below():
            floor.found_below(batch)
        floor.read(xmin=server.xmin(), last_id=batch[-1] if batch else None, complete=len(batch) < limit)
        if rng.random() < 0.05:
            rng.choice((floor.sweep, floor.look_below))()
        if batch and rng.random() < 0.15:
            floor.rewind(batch[0])
        elif batch:
            server.visible -= set(batch)
            sent |= set(batch)
            highest = max(highest, batch[-1])
    for writer in list(server.running):
        if writer.rows and writer.xid is None:
            writer.xid = server.xid()
        server.end(writer, commits=True)
    left = sorted(row for row in server.visible if row > floor.value)
    assert sent | set(left) == server.written
