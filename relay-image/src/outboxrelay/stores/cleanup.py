"""Removing rows that were sent and kept long enough: a little at a time, and never in anybody's way.

It walks up the ids in short steps. A step looks at some hundred rows, removes those that are old enough, and gives up
at once when another session locks one of them. A row that a foreign key or a trigger keeps, or takes long about, is
found by ever shorter steps, and passed over. The walk rests where rows are too young: those above are younger still.
From there it begins at the low end again now and then, for what was sent late or locked then. So no step scans a table,
however much in it is to stay, and a busy relay cleans up as well as an idle one.

Where whole partitions can go at once (`retire`), they go first, and the walk meets what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import psycopg
from psycopg import errors, sql
from psycopg.types.numeric import Int8

from outboxrelay.stores.columns import Forget
from outboxrelay.stores.errors import raised_by_function
from outboxrelay.stores.retire import Retirement
from outboxrelay.stores.session import Connection, wait_briefly

LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1

_BUDGET_SECONDS: Final = 0.05
"""For one call; calls are a second apart, so this is the share of the time that cleaning may take."""

_STEP_SECONDS: Final = 0.01
_FEWEST: Final = 50
_MOST: Final = 5000
_FEWER: Final = 4


class Cleanup:
    """The walk over one table."""

    def __init__(
        self, forget: Forget, *, clock: Callable[[], float], rest_seconds: float, retirement: Retirement | None = None
    ) -> None:
        """`rest_seconds`: how long to wait where nothing is old enough."""
        self._statement = forget.statement
        self._seen = sql.SQL(
            "SELECT count(*), max(i)::int8 FROM (SELECT {id} AS i FROM {table} WHERE {id} >= %(start)s::int8"
            " ORDER BY {id} LIMIT %(rows)s::int8) AS step"
        ).format(id=forget.row_id, table=forget.table)
        self._retirement = retirement
        self._clock = clock
        self._rest = rest_seconds
        self._start = LOWEST
        self._rows = 500
        self._not_before = float("-inf")
        self._again_at = clock() + 60 * rest_seconds
        self._ended = False
        """Whether this walk came to where it rests. Until then none begins anew: over many rows that are kept it may
        take longer than it is until the next one."""

        self._refused: str | None = None
        """The SQLSTATE with which the server did not remove a row that was passed over in this walk."""

    @property
    def complaint(self) -> str | None:
        """Why rows stay although the walk goes on, or take more work than they need."""
        if self._refused is not None:
            return (
                f"removing some rows that were kept long enough fails (SQLSTATE {self._refused}; the server's log says"
                " more): a foreign key or a trigger keeps them, or is slow; they stay, and the others go"
            )
        return None if self._retirement is None else self._retirement.complaint

    def failed(self) -> None:
        """A step failed: rest, then try a smaller one. What cannot be removed must not keep rows from being sent."""
        self._rows = max(1, self._rows // _FEWER)
        self._not_before = self._clock() + self._rest

    def run(self, connection: Connection) -> bool:
        """One partition, or as many steps as fit; False if it rests.

        Raises:
            psycopg.Error: the session is lost, or rows cannot be removed; then call `failed`.
        """
        began = self._clock()
        if began < self._not_before:
            return False
        if self._retirement is not None:
            outcome = self._retirement.run(connection)
            if outcome == "emptied":
                return True
            if outcome == "busy" or not self._retirement.indexed:
                self._not_before = began + self._rest
                return True
        if self._ended and began >= self._again_at:
            self._start = LOWEST
            self._ended = False
            self._again_at = began + 60 * self._rest
            self._refused = None
        while True:
            before, rows = self._clock(), self._rows
            more = self._step(connection)
            now = self._clock()
            if rows == self._rows:
                self._pace(now - before)
            if not more:
                self._ended = True
                self._not_before = now + self._rest
            if not more or now - began >= _BUDGET_SECONDS:
                return True

    def _pace(self, seconds: float) -> None:
        """A step of this many rows took so long."""
        if seconds < _STEP_SECONDS / 2:
            self._rows = min(_MOST, 2 * self._rows)
        elif seconds > _STEP_SECONDS and self._rows > _FEWEST:
            self._rows = max(_FEWEST, self._rows // 2)

    def _step(self, connection: Connection) -> bool:
        """Whether to go on at once."""
        parameters = {"start": Int8(self._start), "rows": Int8(self._rows)}
        try:
            with connection.transaction():
                wait_briefly(connection)
                seen, last, young = connection.execute(self._statement, parameters).fetchone() or (0, None, None)
        except psycopg.Error as error:
            if isinstance(error, errors.QueryCanceled):
                if self._rows == 1:
                    # To be told of, and rested from, like a longer step. But it will be no quicker the next time.
                    self._refused = error.sqlstate
                    self._pass_over(connection, parameters)
                raise
            if not isinstance(error, errors.LockNotAvailable):
                if not _refuses(error):
                    raise
                if self._rows > 1:
                    self._rows = max(1, self._rows // _FEWER)
                    return True
                self._refused = error.sqlstate
            return self._pass_over(connection, parameters)
        if young is not None:
            self._start = young
            return False
        return self._go_on(seen, last)

    def _pass_over(self, connection: Connection, parameters: Mapping[str, object]) -> bool:
        """Leave for the next walk what is locked, kept or slow; whether to go on at once."""
        seen, last = connection.execute(self._seen, parameters).fetchone() or (0, None)
        return self._go_on(seen, last)

    def _go_on(self, seen: int, last: int | None) -> bool:
        """The next step begins behind this one, unless that came to the end."""
        if last is not None:
            self._start = min(last + 1, _HIGHEST)
        return seen == self._rows and last != _HIGHEST


def _refuses(error: psycopg.Error) -> bool:
    """Whether it is a constraint or a trigger that keeps rows, and was quick to say so."""
    return raised_by_function(error) or isinstance(error, psycopg.IntegrityError)
