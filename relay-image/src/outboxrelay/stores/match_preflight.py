"""The preflight's look at the index that a pair needs where several share a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl
from outboxrelay.stores.columns import ColumnType
from outboxrelay.stores.index_use import partial_index_serves
from outboxrelay.stores.policy import policy_of
from outboxrelay.stores.sql import Statements
from outboxrelay.stores.table import columns_in_use


def examine_match(
    connection: psycopg.Connection[Any],
    config: RelayConfig,
    oid: int,
    *,
    types: Mapping[str, ColumnType],
    partitioned: bool,
) -> list[Finding]:
    """Judge whether reads meet rows of other pairs; nothing where the pair takes every row.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    route = config.table.columns.route
    if config.match.everything or route is None or any(name not in types for name, _ in columns_in_use(config)):
        return []
    statements = Statements(
        table=config.table,
        match=config.match,
        lanes=config.lanes,
        types=types,
        policy=policy_of(config, types),
    )
    try:
        served = partial_index_serves(connection, config, oid, statements.waiting(), exactly=True)
    except (errors.InsufficientPrivilege, errors.DataError):
        # Told by the findings about privileges and about the mark's values.
        return []
    if served:
        return [Finding(level="ok", subject="match index", message="the rows of this pair are indexed by themselves")]
    trouble = "no index holds just the rows of this pair: reads walk over all those that wait for other topics"
    if types[route].kind == "enum":
        return [
            Finding(
                level="warning",
                subject="match index",
                message=f"{trouble}, and PostgreSQL makes none by the text of an enum",
                remedy=f"make {route} a text column, or give the topic a table of its own",
            )
        ]
    return [
        Finding(
            level="warning",
            subject="match index",
            message=trouble,
            statements=(ddl.match_index(config, at_once=partitioned),),
        )
    ]
