"""The preflight's look at what `retention.policy: Mark` needs of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors, sql

from outboxrelay.config import Mark, RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl
from outboxrelay.stores.columns import ColumnType, Name, Text
from outboxrelay.stores.index_use import partial_index_serves
from outboxrelay.stores.mark import unsent
from outboxrelay.stores.table import columns_in_use

_NOT_NULL = "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND attnotnull"


def examine_mark(
    connection: psycopg.Connection[Any],
    config: RelayConfig,
    oid: int,
    *,
    types: Mapping[str, ColumnType],
    partitioned: bool,
) -> list[Finding]:
    """Judge the values and the index of rows that were not sent; nothing where the policy is another.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    mark = config.retention.mark
    if mark is None or any(name not in types for name, _ in columns_in_use(config)):
        return []
    not_null = {name for (name,) in connection.execute(_NOT_NULL, (oid,)).fetchall()}
    cleared = [name for name in (mark.error_column,) if name is not None]
    findings = [
        Finding(
            level="error",
            subject=f"column {name}",
            message=f"{name} is NOT NULL, but is empty until a row fails and again when it was sent",
            remedy=f"ALTER TABLE {ddl.quoted_table(config)} ALTER COLUMN {ddl.quoted(name)} DROP NOT NULL",
        )
        for name in cleared
        if name in not_null
    ]
    if mark.pending is not None and mark.column not in not_null:
        column = ddl.quoted(mark.column)
        findings.append(
            Finding(
                level="warning",
                subject=f"column {mark.column}",
                message=f"{mark.column} may be NULL: such a row is not pending, and would never be sent",
                remedy=f"ALTER TABLE {ddl.quoted_table(config)} ALTER COLUMN {column} SET NOT NULL",
            )
        )
    try:
        _compare_values(connection, config, mark)
        served = partial_index_serves(connection, config, oid, unsent(mark), exactly=False)
    except errors.InsufficientPrivilege:
        # Told by the finding about privileges.
        return findings
    except errors.DataError:
        findings.append(
            Finding(
                level="error",
                subject="retention",
                message=f"column {mark.column} of type {types[mark.column].kind} cannot hold the values of"
                " spec.retention.mark",
                remedy="correct pending, sent and failed",
            )
        )
        return findings
    if served:
        findings.append(Finding(level="ok", subject="pending index", message="rows that were not sent are indexed"))
        return findings
    findings.append(
        Finding(
            level="error",
            subject="pending index",
            message="no index holds just the rows that were not sent: reads would walk over all that were",
            remedy="make a partial index on the id",
            statements=(ddl.unsent_index(config, mark, at_once=partitioned),),
        )
    )
    return findings


def _compare_values(connection: psycopg.Connection[Any], config: RelayConfig, mark: Mark) -> None:
    """A value of the wrong type is an error only where it is compared.

    Raises:
        psycopg.errors.DataError: the column cannot hold one of the values.
    """
    for value in (mark.pending, mark.sent, mark.failed):
        if value is not None:
            connection.execute(
                sql.SQL("EXPLAIN SELECT FROM {table} WHERE {column} = {value}").format(
                    table=Name(config.table.schema_, config.table.name), column=Name(mark.column), value=Text(value)
                ),
                {},
            )
