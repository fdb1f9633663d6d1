"""How long the informer counts as failing: liveness hangs on it, so a mended watch must end it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from outboxrelay_operator import handlers
from outboxrelay_operator.handlers import Informer


async def test_that_kopf_ends_by_itself_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def operator(**_: object) -> None:
        return

    monkeypatch.setattr("kopf.operator", operator)
    informer = Informer(namespace=None, notify=lambda *_: None, listed=lambda: None, clock=lambda: 1000.0)
    with pytest.raises(RuntimeError, match="by itself"):
        await informer._watch()


class FakeInformer(Informer):
    """Fails once, then watches until it is stopped."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.attempts = 0
        self.failure: BaseException = RuntimeError("forbidden")
        self.watching = threading.Event()

    async def _watch(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise self.failure
        self.watching.set()
        await asyncio.to_thread(self._stop.wait)


def test_a_watch_that_is_cancelled_from_inside_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_PAUSES", (0.01,))
    informer = FakeInformer(namespace=None, notify=lambda *_: None, listed=lambda: None, clock=lambda: 1000.0)
    informer.failure = asyncio.CancelledError()
    informer.start()
    try:
        assert informer.watching.wait(10)
    finally:
        informer.stop()
        informer.join(10)


def test_a_watch_that_has_lasted_is_not_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_PAUSES", (0.01,))
    now = [1000.0]
    informer = FakeInformer(namespace=None, notify=lambda *_: None, listed=lambda: None, clock=lambda: now[0])
    informer.start()
    try:
        assert informer.watching.wait(10)
        now[0] += 5
        assert informer.failing_for == 5
        now[0] += 300
        assert informer.failing_for == 0
    finally:
        informer.stop()
        informer.join(10)
