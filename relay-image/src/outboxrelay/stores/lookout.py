"""When to look at the server for the sake of the floor: who writes to the table, and what lies at the low end.

Rarely enough to cost a busy server little, often enough for the floor to follow. The rule itself is in `floor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from outboxrelay.stores.floor import Floor
from outboxrelay.stores.opened import Opened

SLOW_READ_SECONDS: Final = 0.02
"""A read that takes longer walks over what is not ours, or over dead rows."""

_LOOK_FURTHER_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
"""How often to look at who writes to the table. The floor lags that far behind, and reads walk over dead rows."""

_SWEEP_SHARE: Final = 20
"""A full sweep may take no more than about this fraction of the time."""


class Lookout:
    """Looks over sessions on which no question is open; each look may raise `psycopg.Error`."""

    def __init__(self, floor: Floor, *, clock: Callable[[], float], full_sweep_seconds: float) -> None:
        self._floor = floor
        self._clock = clock
        self._full_sweep = self._sweep_interval = full_sweep_seconds
        self._settled_up_to: int | None = None
        """The highest id that was read and settled, until the server was looked at."""

        self._looked_at = float("-inf")
        self._swept_at = float("-inf")
        self._looked_further_at = float("-inf")

    def begin_anew(self) -> None:
        """Rows may lie anywhere."""
        self._floor.reset()
        self._settled_up_to = None

    def settled(self, row_id: int) -> None:
        """Up to here nothing of ours is left to be read; the next look at the server is about that."""
        before = self._settled_up_to
        self._settled_up_to = row_id if before is None else max(row_id, before)

    def sweep_if_due(self) -> bool:
        """Whether the next read is to begin at the low end, only for what nobody expects there."""
        now = self._clock()
        if now - self._swept_at < self._sweep_interval:
            return False
        self._floor.look_below()
        self._swept_at = now
        self._sweep_interval = self._full_sweep
        return True

    def spread_sweeps(self, seconds: float) -> None:
        """A sweep took so long, or would."""
        self._sweep_interval = max(self._full_sweep, _SWEEP_SHARE * seconds)

    def look(self, session: Opened) -> None:
        """Let the floor know who writes to the table, if it can learn anything from that."""
        now = self._clock()
        if now - self._looked_at < _LOOK_SECONDS or (self._settled_up_to is None and not self._floor.waits()):
            return
        self._looked_at = now
        settled = self._settled_up_to
        look = session.statements.writers() if settled is None else session.statements.writers_and_xid()
        session.questions.ask(look, {"table": session.statements.relation})
        names, *xid = session.questions.only()
        writers = names.decode().split(",") if names else []
        if settled is None:
            self._floor.still_writing(writers)
        else:
            self._floor.observed(highest_id=settled, own_xid=xid[0], writers=writers)
            self._settled_up_to = None

    def look_further(self, session: Opened, seconds: float) -> None:
        """Raise the floor over rows that are not ours: another topic's or other lanes' backlog in the same table.

        Our own batches never do, and without this each read and each sweep, which takes so many seconds, would walk
        over that backlog again.
        """
        self.spread_sweeps(seconds)
        if self._clock() - self._looked_further_at < _LOOK_FURTHER_SECONDS:
            return
        self._looked_further_at = self._clock()
        session.questions.ask(session.statements.highest(), {"start": b"%d" % self._floor.start})
        (highest,) = session.questions.only()
        if highest is not None:
            self.settled(highest)
