"""A relay in a world without time: fakes for both sides, a clock that only sleeps move, and a stop on a condition."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.config import OnError, RelayConfig, Tuning
from outboxrelay.engine import Engine
from outboxrelay.ports import DeadLetters, Publisher
from outboxrelay.status import StatusBoard
from tests.contract.relay.fakes import (
    FakePublisher,
    FakeStore,
    FakeTable,
    FakeTopic,
    FaultyPublisher,
    FaultyStore,
    Interference,
    fake_dead_letters,
)

TUNING: dict[str, Any] = {"batch_rows": 10, "row_retry_min_seconds": 5.0, "row_retry_max_seconds": 40.0}

CONFIG = RelayConfig.model_validate(
    {
        "pair": {"namespace": "shop", "relay": "r", "name": "pair", "database": "d", "topic": "t"},
        "database": {
            "host": "h",
            "dbname": "d",
            "credentials": {"username_file": Path("/u"), "password_file": Path("/p")},
        },
        "kafka": {"bootstrap_servers": ("b:1",), "topic": "t"},
        "lanes": 4,
    }
)
"""What the status board shows; the loop itself reads none of it."""


class Clock:
    """Monotonic seconds; starts at an odd number so that nobody takes it for an interval."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class StopWhen:
    """A stop request that comes when a condition holds; fails the test if time runs out first."""

    def __init__(self, clock: Clock, condition: Callable[[], bool], *, within: float) -> None:
        self._clock = clock
        self._condition = condition
        self._deadline = clock.now + within
        self.sleeps: list[float] = []

    def is_set(self) -> bool:
        if self._condition():
            return True
        if self._clock.now > self._deadline:
            pytest.fail("the condition did not come true in time")
        # Each look costs a little, so that a loop which never sleeps ends as well.
        self._clock.sleep(0.0001)
        return False

    def wait(self, timeout: float, *, also: int | None = None) -> bool:  # noqa: ARG002  # no files here
        self.sleeps.append(timeout)
        self._clock.sleep(timeout)
        return self.is_set()


def nothing(_moment: str) -> None:
    """No interference."""


class World:
    """One table, one topic, and relays between them that run one after the other."""

    def __init__(self, **tuning: Any) -> None:
        self.clock = Clock()
        self.table = FakeTable(lanes=4)
        self.topic = FakeTopic()
        self.tuning = Tuning(**(TUNING | tuning))
        self.config = CONFIG
        self.on_error = OnError()
        self.letters = FakeTopic()
        """The dead-letter topic, if the policy asks for one."""

        self.on_letters: Interference = nothing

        self.board = self._board()
        self.store = FakeStore(self.table)
        self.publisher: Publisher = FakePublisher(self.topic, sleep=self.clock.sleep)

    def _board(self) -> StatusBoard:
        return StatusBoard(
            self.config,
            pod="pod",
            config_digest="0",
            monotonic=self.clock,
            wall=lambda: self.clock.now + 1_000_000,
        )

    def run(
        self,
        until: Callable[[], bool] | None = None,
        *,
        within: float = 600.0,
        on_store: Interference = nothing,
        on_publisher: Interference = nothing,
        seed: int = 0,
    ) -> StopWhen:
        """Run a new relay until the condition holds (by default: until the table is empty)."""
        self.board = self._board()
        stop = StopWhen(self.clock, until or (lambda: not self.table.rows), within=within)
        Engine(
            store=FaultyStore(self.store, on_store),
            publisher=FaultyPublisher(self.publisher, on_publisher),
            tuning=self.tuning,
            status=self.board,
            stop=stop,
            clock=self.clock,
            rng=random.Random(seed),
            on_error=self.on_error,
            dead_letters=self._dead_letters(),
        ).run()
        return stop

    def _dead_letters(self) -> DeadLetters | None:
        if self.on_error.topic is None:
            return None
        return fake_dead_letters(self.letters, sleep=self.clock.sleep, interfere=self.on_letters)

    def sent(self, key: bytes | None = None) -> list[int]:
        """Row ids in the order of their first arrival, of one key or of all."""
        return list(dict.fromkeys(self.copies(key)))

    def copies(self, key: bytes | None = None) -> list[int]:
        """Row ids in the order of arrival, repeats included."""
        return [
            int(message.outbox_id.rpartition(b":")[2])
            for message in self.topic.messages
            if key is None or message.key == key
        ]
