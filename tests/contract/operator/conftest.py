"""Fixtures of the operator's contract tests."""

from __future__ import annotations

from tests.testbed.services.fixtures import database, postgres

__all__ = ["database", "postgres"]
