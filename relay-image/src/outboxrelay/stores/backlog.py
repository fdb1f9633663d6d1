"""How many rows of a pair wait, looked at again and again for an operator that reads no Secrets. Reads only.

It has a session of its own: that of the relay has lanes to keep and rows to send, and must never wait for a count.
What bounds the cost is the LIMIT in a subquery, the walk along the index on id from a floor, and the time-out of the
statement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.report import WaitingRows
from outboxrelay.stores.errors import translate
from outboxrelay.stores.lag import age_of, estimate, statements_of
from outboxrelay.stores.session import connect
from outboxrelay.stores.sql import Statements

COUNT_LIMIT: Final = 10_000
"""Up to here rows are counted; above, the planner is asked."""

_STATEMENT_SECONDS: Final = 3.0

_SWEEP_SECONDS: Final = 60.0
"""How often to look from the true start: a transaction that ends late may leave a row below the floor."""

_LOWEST_ID: Final = -(2**63)

_INDEXED: Final = """
SELECT EXISTS (
    SELECT FROM pg_index i
    JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND a.attname = %(id)s
      AND i.indisvalid
      -- Where rows that were sent stay, an index of all rows leads over all of them.
      AND (i.indpred IS NOT NULL) = %(partial)s
)
"""

_Row = tuple[int | None, int | None, float | None, int | None, float]


class BacklogMeter:
    """Keeps one session, and the id below which nothing of the pair waits. Not for use in two threads at once."""

    def __init__(self, config: RelayConfig, *, clock: Callable[[], float], count_limit: int = COUNT_LIMIT) -> None:
        """`clock` is monotonic."""
        tuning = config.tuning.model_copy(update={"statement_timeout_seconds": _STATEMENT_SECONDS})
        self._config = config.model_copy(update={"tuning": tuning})
        self._clock = clock
        self._limit = count_limit
        self._connection: psycopg.Connection[Any] | None = None
        self._statements: Statements | None = None
        self._floor = _LOWEST_ID
        self._sweep_at = 0.0

    def look(self) -> WaitingRows:
        """Look at the rows that wait now.

        Raises:
            StoreError: the database cannot be asked, or the table cannot be used; the next look connects again.
        """
        try:
            if self._connection is None or self._statements is None:
                self._connection = connect(self._config)
                self._connection.execute("SET default_transaction_read_only = on")
                self._statements = statements_of(self._connection, self._config)
            return self._look(self._connection, self._statements)
        except psycopg.Error as error:
            self.close()
            raise translate(error, config=self._config, attempt="measuring the backlog") from None
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """End the session; never raises."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._statements = None

    def _look(self, connection: psycopg.Connection[Any], statements: Statements) -> WaitingRows:
        swept = self._clock() >= self._sweep_at
        counted, oldest_id, age, highest_id, clock = self._sample(
            connection, statements, floor=_LOWEST_ID if swept else self._floor
        )
        if swept:
            self._sweep_at = self._clock() + _SWEEP_SECONDS
        if oldest_id is not None:
            self._floor = oldest_id
        elif highest_id is not None:
            # Everything of the pair below the newest id of the table is gone.
            self._floor = highest_id
        exact = counted is not None and counted <= self._limit
        # A count that took too long found nothing out, but the oldest row is one.
        rows = int(oldest_id is not None) if counted is None else counted
        return WaitingRows(
            rows=rows if exact else max(rows, estimate(connection, statements)),
            exact=exact,
            oldest_id=oldest_id,
            oldest_age_seconds=None if age is None else max(0.0, age),
            highest_id=highest_id,
            clock=clock,
            indexed=self._indexed(connection),
        )

    def _sample(self, connection: psycopg.Connection[Any], statements: Statements, *, floor: int) -> _Row:
        """Look from the floor; if that takes too long, from where the last look ended, then without counting."""
        for start, count in ((floor, True), (self._floor, True)):
            try:
                return self._ask(connection, statements, floor=start, count=count)
            except psycopg.errors.QueryCanceled:
                if start == self._floor:
                    break
        return self._ask(connection, statements, floor=self._floor, count=False)

    def _ask(self, connection: psycopg.Connection[Any], statements: Statements, *, floor: int, count: bool) -> _Row:
        waiting = sql.SQL("{id} >= %(floor)s AND {waiting}").format(id=statements.id, waiting=statements.waiting())
        counted: sql.Composable = sql.SQL("NULL::int8")
        if count:
            counted = sql.SQL(
                "(SELECT count(*) FROM (SELECT FROM {table} WHERE {waiting} ORDER BY {id} LIMIT {limit}) AS bounded)"
            ).format(table=statements.name, waiting=waiting, id=statements.id, limit=sql.Literal(self._limit + 1))
        row = connection.execute(
            sql.SQL(
                "WITH oldest AS (SELECT {id} AS i, {age} AS age FROM {table} WHERE {waiting} ORDER BY {id} LIMIT 1)"
                " SELECT {counted}, (SELECT i FROM oldest)::int8, (SELECT age FROM oldest),"
                " (SELECT max({id}) FROM {table} WHERE {id} >= %(floor)s)::int8,"
                " extract(epoch FROM clock_timestamp())::float8"
            ).format(
                id=statements.id,
                age=age_of(self._config, statements),
                table=statements.name,
                waiting=waiting,
                counted=counted,
            ),
            {"floor": floor},
        ).fetchone()
        return row or (0, None, None, None, 0.0)

    def _indexed(self, connection: psycopg.Connection[Any]) -> bool:
        table = self._config.table
        partial = self._config.retention.mark is not None
        row = connection.execute(
            _INDEXED, {"schema": table.schema_, "table": table.name, "id": table.columns.id, "partial": partial}
        ).fetchone()
        return row is not None and bool(row[0])
