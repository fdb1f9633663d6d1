"""The tests' own hygiene."""

from __future__ import annotations

import logging

import outboxrelay.logs
import outboxrelay_operator.logs
from tests.isolation import own_logging


def test_logging_set_up_by_a_program_ends_with_the_test() -> None:
    root, kopf = logging.getLogger(), logging.getLogger("kopf")
    before = (root.level, list(root.handlers), kopf.level)
    with own_logging():
        outboxrelay.logs.configure(style="text", level="error", pair="a")
        outboxrelay_operator.logs.configure(form="json", level="warning")
        assert (root.level, list(root.handlers), kopf.level) != before
    assert (root.level, list(root.handlers), kopf.level) == before
