"""The entry point: light enough that no signal is lost before somebody listens."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_entry_point_imports_nothing_large() -> None:
    script = "import sys, outboxrelay_operator.__main__; print(sorted(m for m in sys.modules if m in {large}))"
    large = {"pydantic", "kopf", "aiohttp", "psycopg", "asyncio"}
    result = subprocess.run(
        [sys.executable, "-c", script.format(large=large)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_does_not_start_it(argument: str) -> None:
    command = [sys.executable, "-m", "outboxrelay_operator", argument]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "OUTBOXRELAY_" in result.stdout
