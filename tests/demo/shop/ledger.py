"""Reads what the shop's databases committed, for comparison with what the consumer received."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from .checker import Arrival, Committed
from .databases import ShopDatabase

DATABASE_OF_ROUTE = {"order": "orders", "invoice": "orders", "payment": "payments"}


def database_of(key: str) -> str:
    """The database in which the history of this key is.

    Raises:
        ValueError: on a key that the shop does not write.
    """
    route = key.partition("-")[0]
    if route not in DATABASE_OF_ROUTE:
        raise ValueError(f"key {key!r} belongs to none of the shop's databases")
    return DATABASE_OF_ROUTE[route]


class Ledger:
    """The history table of one database, over a connection that is opened when needed."""

    def __init__(self, database: ShopDatabase) -> None:
        self.database = database
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def committed(self, arrivals: Iterable[Arrival]) -> dict[tuple[str, int], Committed]:
        """The history rows with the keys and versions of these arrivals.

        Raises:
            psycopg.OperationalError: if the database cannot be reached.
        """
        wanted = {(arrival.key, arrival.version) for arrival in arrivals}
        rows = self._query(
            "select key, version, digest, extract(epoch from committed_at)::float8 from history"
            " join unnest(%s::text[], %s::integer[]) as wanted (key, version) using (key, version)",
            ([key for key, _ in wanted], [version for _, version in wanted]),
        )
        return {(key, version): Committed(digest, at) for key, version, digest, at in rows}

    def rows_per_key(self) -> dict[str, int]:
        """Number of committed rows of each key."""
        return dict(self._query("select key, count(*) from history group by key"))

    def outbox(self) -> tuple[int, int]:
        """Rows in the outbox now, and ids that were drawn for it so far, those of rolled back rows included."""
        ((rows,),) = self._query("select count(*) from outbox")
        ((drawn,),) = self._query(
            "select coalesce(last_value, 0) from pg_sequences"
            " where format('%I.%I', schemaname, sequencename) = pg_get_serial_sequence('public.outbox', 'id')"
        )
        return rows, drawn

    def slots(self) -> dict[int, int]:
        """Delivery slots with the number of orders that hold them, by the orders table."""
        return dict(self._query("select slot, count(*) from orders where state = 'placed' group by slot"))

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _query(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = self.database.connect()
        try:
            return self._connection.execute(statement.encode(), parameters or None).fetchall()
        except psycopg.Error:
            self.close()
            raise
