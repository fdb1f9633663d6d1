"""What a session's statements are made for, beyond what the configuration says: all that may change while it lasts.

A session looks again now and then, and whoever finds something else begins anew: with it come other statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outboxrelay.config import RelayConfig
from outboxrelay.stores.keep import rows_may_stay
from outboxrelay.stores.lane_column import Generated, generated
from outboxrelay.stores.session import Connection
from outboxrelay.stores.table import columns_to_move, row_security, table_oid


class Standing(NamedTuple):
    """How things are."""

    columns: Sequence[str]
    """See `columns_to_move`."""

    lanes: Sequence[Generated]
    """See `generated`."""

    may_stay: bool
    """See `rows_may_stay`; asked with policy Keep alone."""

    hidden: bool
    """See `row_security`."""

    def change(self, now: Standing) -> str | None:
        """What is different now, and what for it is begun anew; None if nothing is."""
        if now.columns != self.columns:
            return "other columns than before: starting again, so that all of them are kept"
        if now.lanes != self.lanes:
            return "another lane column than before: starting again, so that it is compared with what lanes asks for"
        if now.may_stay != self.may_stay:
            return "other triggers or rules than before: starting again, so that no row is kept twice"
        if now.hidden != self.hidden:
            return "row-level security switched on or off: starting again, so that no row is hidden"
        return None


def standing(connection: Connection, config: RelayConfig) -> Standing:
    """How things are now.

    Raises:
        StoreError: TableMissing or ColumnMissing, about the second table of policy Keep.
        psycopg.Error: the catalog could not be read.
    """
    oid = table_oid(connection, config)
    return Standing(
        columns=columns_to_move(connection, config),
        lanes=() if oid is None else generated(connection, config, oid),
        may_stay=oid is not None and config.retention.policy == "Keep" and rows_may_stay(connection, oid),
        hidden=oid is not None and row_security(connection, oid),
    )
