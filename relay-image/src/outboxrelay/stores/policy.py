"""How a row of the outbox table is known as sent: one policy per value of `retention.policy`.

A policy is SQL alone. Which rows are read, in which order and from where, is the store's affair and the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from psycopg import sql

from outboxrelay.config import RelayConfig
from outboxrelay.stores.columns import ColumnType, Forget, Name
from outboxrelay.stores.keep import KeepPolicy, sent_table
from outboxrelay.stores.mark import MarkPolicy


class Policy(Protocol):
    """What sets the policies apart."""

    def unsent(self) -> sql.Composable | None:
        """The condition for rows that were not sent; None if every row there is was not sent."""

    def settle(self, condition: sql.Composable) -> sql.Composed:
        """The statement that makes the rows of a condition sent."""

    def note(self) -> sql.Composed | None:
        """Write %(message)s beside the row %(id)s, unless it is sent or locked; None if there is no place for it."""

    def cleanup(self) -> Forget | None:
        """One step of the clean-up; None if nothing is ever cleaned up."""


class DeletePolicy:
    """A row that was sent is removed."""

    def __init__(self, table: Name) -> None:
        self._table = table

    def unsent(self) -> sql.Composable | None:
        """See `Policy.unsent`."""
        return None

    def settle(self, condition: sql.Composable) -> sql.Composed:
        """See `Policy.settle`."""
        return sql.SQL("DELETE FROM {table} WHERE {condition}").format(table=self._table, condition=condition)

    def note(self) -> sql.Composed | None:
        """See `Policy.note`."""
        return None

    def cleanup(self) -> Forget | None:
        """See `Policy.cleanup`."""
        return None


def policy_of(
    config: RelayConfig, types: Mapping[str, ColumnType], *, columns: Sequence[str] = (), may_stay: bool = False
) -> Policy:
    """The policy of a configuration, for a table whose columns have these types.

    `columns` are the names of all of them, as Keep has to move them, and `may_stay` is what `rows_may_stay` says of the
    table; who settles nothing need not know either.
    """
    table, row_id = Name(config.table.schema_, config.table.name), Name(config.table.columns.id)
    keep_for = config.retention.keep_for_seconds
    if config.retention.policy == "Keep":
        sent = Name(config.table.schema_, sent_table(config))
        return KeepPolicy(
            table=table, row_id=row_id, sent=sent, columns=columns, may_stay=may_stay, keep_for_seconds=keep_for
        )
    mark = config.retention.mark
    if mark is not None:
        return MarkPolicy(mark, table=table, row_id=row_id, types=types, keep_for_seconds=keep_for)
    return DeletePolicy(table)
