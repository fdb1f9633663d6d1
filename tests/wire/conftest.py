"""Fixtures of the wire tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.world import World, cluster


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    """A fake cluster without an operator."""
    async with cluster(monkeypatch, tmp_path) as fake:
        yield fake
