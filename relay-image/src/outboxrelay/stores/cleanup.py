"""Removing rows that were sent and kept long enough: a little at a time, and never in anybody's way.

It walks up the ids in short steps. A step looks at some hundred rows, removes those that are old enough, and gives up
at once when another session locks one of them. The walk rests where rows are too young: those above are younger still.
Now and then it begins at the low end again, for what was sent late or locked then. So no step scans a table, however
much in it is to stay, and a busy relay cleans up as well as an idle one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from psycopg import errors, sql
from psycopg.types.numeric import Int8

from outboxrelay.stores.columns import Forget
from outboxrelay.stores.session import Connection

LOWEST: Final = -(2**63)

_BUDGET_SECONDS: Final = 0.05
"""For one call; calls are a second apart, so this is the share of the time that cleaning may take."""

_STEP_SECONDS: Final = 0.01
_FEWEST: Final = 50
_MOST: Final = 5000
_LOCK_WAIT: Final = "50ms"
_STEP_LIMIT: Final = "2s"
"""Rows wait while a step is slow, because of a trigger or a foreign key without an index, say."""


class Cleanup:
    """The walk over one table."""

    def __init__(self, forget: Forget, *, clock: Callable[[], float], rest_seconds: float) -> None:
        """`rest_seconds`: how long to wait where nothing is old enough."""
        self._statement = forget.statement
        self._pass_over = sql.SQL(
            "SELECT count(*), max(i)::int8 FROM (SELECT {id} AS i FROM {table} WHERE {id} >= %(start)s::int8"
            " ORDER BY {id} LIMIT %(rows)s::int8) AS step"
        ).format(id=forget.row_id, table=forget.table)
        self._clock = clock
        self._rest = rest_seconds
        self._start = LOWEST
        self._rows = 500
        self._not_before = float("-inf")
        self._again_at = clock() + 60 * rest_seconds

    def failed(self) -> None:
        """A step failed: rest, then try a smaller one. What cannot be removed must not keep rows from being sent."""
        self._rows = max(1, self._rows // 4)
        self._not_before = self._clock() + self._rest

    def run(self, connection: Connection) -> int | None:
        """As many steps as fit; returns the number of rows removed, or None if it rests.

        Raises:
            psycopg.Error: the session is lost, or rows cannot be removed; then call `failed`.
        """
        began = self._clock()
        if began < self._not_before:
            return None
        if began >= self._again_at:
            self._start = LOWEST
            self._again_at = began + 60 * self._rest
        removed = 0
        while True:
            before = self._clock()
            gone, more = self._step(connection)
            removed += gone
            now = self._clock()
            self._rows = max(_FEWEST, min(_MOST, self._rows * 2 if now - before < _STEP_SECONDS / 2 else self._rows))
            if now - before > _STEP_SECONDS:
                self._rows = max(_FEWEST, self._rows // 2)
            if not more:
                self._not_before = now + self._rest
            if not more or now - began >= _BUDGET_SECONDS:
                return removed

    def _step(self, connection: Connection) -> tuple[int, bool]:
        """Rows removed, and whether to go on at once."""
        parameters = {"start": Int8(self._start), "rows": Int8(self._rows)}
        try:
            with connection.transaction():
                connection.execute(
                    f"SELECT set_config('lock_timeout', '{_LOCK_WAIT}', true),"
                    f" set_config('statement_timeout', '{_STEP_LIMIT}', true)"
                )
                seen, last, young, gone = connection.execute(self._statement, parameters).fetchone() or (
                    0,
                    None,
                    None,
                    0,
                )
        except errors.LockNotAvailable:
            # What is locked stays for the next walk.
            seen, last = connection.execute(self._pass_over, parameters).fetchone() or (0, None)
            young, gone = None, 0
        if young is not None:
            self._start = young
            return gone, False
        if last is not None:
            self._start = last + 1
        return gone, seen == self._rows
