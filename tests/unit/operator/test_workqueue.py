"""The work queue: no duplicates, serial per key, back-off with jitter, delays; with a fake clock."""

from __future__ import annotations

import asyncio

import pytest

from outboxrelay_operator.workqueue import Backoff, Schedule, WorkQueue


def schedule(backoff: Backoff | None = None) -> Schedule[str]:
    return Schedule(backoff=backoff or Backoff(first=1, longest=8, jitter=0), chance=lambda: 0.5)


def test_a_key_waits_once() -> None:
    queue = schedule()
    queue.add("a")
    queue.add("b")
    queue.add("a")
    assert [queue.take(0), queue.take(0), queue.take(0)] == ["a", "b", None]


def test_a_key_is_worked_on_by_one_at_a_time_and_once_more_afterwards() -> None:
    queue = schedule()
    queue.add("a")
    assert queue.take(0) == "a"
    queue.add("a")
    queue.add("a")
    assert queue.take(0) is None
    queue.done("a", now=1, failed=False)
    assert queue.take(1) == "a"
    queue.done("a", now=2, failed=False)
    assert queue.take(2) is None


def test_failures_come_back_later_each_time_until_one_succeeds() -> None:
    queue, now, pauses = schedule(), 0.0, []
    queue.add("a")
    for _ in range(6):
        assert queue.take(now) == "a"
        queue.done("a", now=now, failed=True)
        due = queue.next_due()
        assert due is not None
        pauses.append(due - now)
        assert queue.take(due - 0.001) is None
        now = due
    assert pauses == [1, 2, 4, 8, 8, 8]
    assert queue.take(now) == "a"
    queue.done("a", now=now, failed=False)
    queue.add("a")
    assert queue.take(now) == "a"
    queue.done("a", now=now, failed=True)
    assert queue.next_due() == now + 1


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 3.2), (0.5, 4.0), (1.0, 4.8)])
def test_jitter_spreads_around_the_delay(chance: float, delay: float) -> None:
    assert Backoff(first=1, longest=60, jitter=0.2).delay(3, chance=chance) == pytest.approx(delay)


def test_many_failures_do_not_overflow() -> None:
    assert Backoff(first=1, longest=60, jitter=0).delay(10_000, chance=0.5) == 60


def test_of_several_delays_the_earliest_counts() -> None:
    queue = schedule()
    queue.add_at("a", 10)
    queue.add_at("a", 5)
    queue.add_at("a", 20)
    assert queue.next_due() == 5
    assert queue.take(4.9) is None
    assert queue.take(5) == "a"
    queue.done("a", now=5, failed=False)
    assert queue.take(100) is None


def test_an_event_overtakes_a_delay() -> None:
    queue = schedule()
    queue.add_at("a", 10)
    queue.add("a")
    assert queue.take(0) == "a"
    queue.done("a", now=0, failed=False)
    assert queue.take(10) is None


def test_a_delay_that_ends_while_the_key_is_worked_on_is_not_lost() -> None:
    queue = schedule()
    queue.add("a")
    assert queue.take(0) == "a"
    queue.add_at("a", 1)
    assert queue.take(2) is None
    queue.done("a", now=3, failed=False)
    assert queue.take(3) == "a"


def test_what_is_urgent_overtakes_and_lets_one_of_the_others_through_now_and_then() -> None:
    queue = schedule()
    for key in ("old", "older", "raised"):
        queue.add(key)
    for number in range(5):
        queue.add(f"urgent {number}", urgent=True)
    queue.add("raised", urgent=True)
    assert (queue.depth, queue.pressed) == (8, True)
    order = [queue.take(0) for _ in range(8)]
    assert order == ["urgent 0", "urgent 1", "urgent 2", "old", "urgent 3", "urgent 4", "raised", "older"]
    assert (queue.take(0), queue.pressed) == (None, False)


def test_what_was_urgent_and_failed_is_urgent_when_it_comes_back() -> None:
    queue = schedule()
    queue.add("edited", urgent=True)
    assert queue.take(0) == "edited"
    queue.done("edited", now=0, failed=True)
    for key in ("old", "older"):
        queue.add(key)
    assert (queue.take(1), queue.pressed) == ("edited", False)
    queue.done("edited", now=1, failed=False)
    queue.add("edited")
    assert [queue.take(2) for _ in range(3)] == ["old", "older", "edited"]


def test_what_is_urgent_stays_so() -> None:
    queue = schedule()
    queue.add("busy")
    assert queue.take(0) == "busy"
    queue.add("other")
    queue.add("busy", urgent=True)
    queue.add("busy")
    queue.done("busy", now=0, failed=False)
    queue.add("busy")
    assert [queue.take(0), queue.take(0), queue.take(0)] == ["busy", "other", None]


def test_depth_counts_what_waits_and_what_is_worked_on() -> None:
    queue = schedule()
    queue.add("a")
    queue.add("b")
    queue.add_at("c", 5)
    queue.take(0)
    assert queue.depth == 2


async def test_workers_wait_for_keys_and_end_when_the_queue_is_closed() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=asyncio.get_running_loop().time)
    taken: list[str] = []
    both = asyncio.Event()

    async def work() -> None:
        while (key := await queue.take()) is not None:
            taken.append(key)
            queue.done(key, failed=False)
            if len(taken) == 2:
                both.set()

    workers = [asyncio.create_task(work()) for _ in range(3)]
    queue.add_after("late", 0.01)
    queue.add("now")
    await both.wait()
    assert taken == ["now", "late"]
    queue.close()
    await asyncio.gather(*workers)
