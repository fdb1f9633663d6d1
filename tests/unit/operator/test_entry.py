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


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("-h", 0), ("--verbose", 2)])
def test_arguments_do_not_start_it(argument: str, status: int) -> None:
    command = [sys.executable, "-m", "outboxrelay_operator", argument]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == status
    assert "OUTBOXRELAY_" in (result.stdout if status == 0 else result.stderr)
