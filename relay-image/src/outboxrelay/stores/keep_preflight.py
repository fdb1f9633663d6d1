"""The preflight's look at the second table that `retention.policy: Keep` needs."""

from __future__ import annotations

from typing import Any

import psycopg

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl
from outboxrelay.stores.keep import SENT_AT, moved_columns, sent_table

_KINDS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
"""

_INDEXED = """
SELECT c.relkind = 'p', EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND a.attname = %(id)s)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(sent)s AND c.relkind IN ('r', 'p')
"""


def examine_keep(connection: psycopg.Connection[Any], config: RelayConfig, *, role: str) -> list[Finding]:
    """Judge the second table; nothing where the policy is another.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    if config.retention.policy != "Keep":
        return []
    name = sent_table(config)
    where = {"schema": config.table.schema_, "sent": name, "id": config.table.columns.id}
    found = connection.execute(_INDEXED, where).fetchone()
    if found is None:
        return [
            Finding(
                level="error",
                subject="sent table",
                message=f"TableMissing: there is no table {name} for rows that were sent",
                remedy="create it (`outboxrelay sql` prints how), or correct spec.retention.keep.table",
                statements=(*ddl.new_sent_table(config), ddl.sent_grant(config, role=role)),
            )
        ]
    partitioned, indexed = found
    findings = [_lacking(config, column, kind) for column, kind in _missing(connection, config).items()]
    if not indexed:
        findings.append(
            Finding(
                level="error" if config.retention.keep_for_seconds is not None else "warning",
                subject="sent table",
                message=f"no index of {name} begins with {config.table.columns.id}: clean-up and replay need one",
                remedy="make one",
                statements=(ddl.sent_index(config, partitioned=partitioned),),
            )
        )
    return findings or [Finding(level="ok", subject="sent table", message=f"{name} takes rows that were sent")]


def _missing(connection: psycopg.Connection[Any], config: RelayConfig) -> dict[str, str]:
    """Columns that the second table lacks, and their types."""
    _, missing = moved_columns(connection, config)
    kinds = dict(connection.execute(_KINDS, {"schema": config.table.schema_, "table": config.table.name}).fetchall())
    lacking = {name: kinds[name] for name in missing}
    there = connection.execute(_KINDS, {"schema": config.table.schema_, "table": sent_table(config)}).fetchall()
    if SENT_AT not in dict(there):
        lacking[SENT_AT] = "timestamptz NOT NULL DEFAULT now()"
    return lacking


def _lacking(config: RelayConfig, column: str, kind: str) -> Finding:
    return Finding(
        level="error",
        subject="sent table",
        message=f"ColumnMissing: {sent_table(config)} has no column {column}, or computes it",
        remedy="add it to both tables, to this one first",
        statements=(ddl.add_sent_column(config, name=column, kind=kind),),
    )
