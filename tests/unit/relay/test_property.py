"""Whatever happens to writers, relays, sessions and brokers: 0 lost, 0 reordered per key, no repeat without a reason.

The engine is the real one, over the fakes of the contract suite; `tests/integration/test_property.py` does the like to
real processes. A failure prints the smallest schedule that shows it. To look further than CI does:
`OUTBOXRELAY_PROPERTY_EXAMPLES=20000 .venv/bin/python -m pytest tests/unit/relay/test_property.py -n 0`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, given, settings

from tests.unit.relay import mutants
from tests.unit.relay.fleet import Fleet, Kinds, Setting
from tests.unit.relay.schedules import Step, settings_of_fleets, steps

EXAMPLES = int(os.environ.get("OUTBOXRELAY_PROPERTY_EXAMPLES", "0"))
"""How many new examples to try; 0: the same ones each time, so that the test has one outcome."""

search = settings(
    max_examples=EXAMPLES or 300,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
)


class Faults(logging.Handler):
    """Errors that a relay survives by starting again, and that are faults of the relay (or of this test) itself."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)


@contextmanager
def watching() -> Iterator[Faults]:
    """Collect such errors within the block, and leave out what relays say of outages."""
    logger, handler = logging.getLogger("outboxrelay"), Faults()
    logger.setLevel(logging.ERROR)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


class FoundOutError(Exception):
    """A schedule broke the contract."""


def outcome(setting: Setting, schedule: list[Step], kinds: Kinds | None = None) -> list[str]:
    """Let the schedule happen to two relays, mend everything, and tell what is wrong in the end."""
    with watching() as faults, Fleet(setting, kinds or Kinds()) as fleet:
        fleet.start()
        fleet.start()
        for step in schedule:
            step.happen(fleet)
        fleet.mend()
        try:
            fleet.finish()
        except AssertionError as error:
            return [str(error)]
        return [*fleet.problems(), *map(logging.Formatter().format, faults.seen)]


@given(setting=settings_of_fleets, schedule=steps)
@search
def test_nothing_is_lost_reordered_or_repeated_without_a_reason(setting: Setting, schedule: list[Step]) -> None:
    assert outcome(setting, schedule) == []


STORES = (
    mutants.Cursor,
    mutants.RangeOfIds,
    mutants.SkipLocked,
    mutants.LanesWithoutLocks,
    mutants.KeepsItsAnswer,
    mutants.NeverGoesBack,
    mutants.HeedsNoHeldKeys,
)
PUBLISHERS = (mutants.AcknowledgesAtOnce, mutants.SendsBehindAFault)


@pytest.mark.parametrize(
    "kinds",
    [*(Kinds(store=store) for store in STORES), *(Kinds(publisher=publisher) for publisher in PUBLISHERS)],
    ids=[mutant.__name__ for mutant in (*STORES, *PUBLISHERS)],
)
def test_a_wrong_port_is_found_out(kinds: Kinds) -> None:
    """The proof of the test above: the same schedules show each of these mistakes."""

    @given(setting=settings_of_fleets, schedule=steps)
    @settings(search, phases=[Phase.generate], print_blob=False)
    def find(setting: Setting, schedule: list[Step]) -> None:
        if outcome(setting, schedule, kinds):
            raise FoundOutError

    with pytest.raises(FoundOutError):
        find()
