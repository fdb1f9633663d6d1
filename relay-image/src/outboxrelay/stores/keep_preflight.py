"""The preflight's look at the second table that `retention.policy: Keep` needs."""

from __future__ import annotations

from typing import Any

import psycopg

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl
from outboxrelay.stores.keep import SENT_AT, moved_columns, sent_table
from outboxrelay.stores.retire import Shape, partitions, shape_of
from outboxrelay.stores.table import ROW_SECURITY_REMEDY

_KINDS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
"""


def examine_keep(connection: psycopg.Connection[Any], config: RelayConfig, *, role: str) -> list[Finding]:
    """Judge the second table; nothing where the policy is another.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    if config.retention.policy != "Keep":
        return []
    name, shape = sent_table(config), shape_of(connection, config)
    if shape is None:
        return [
            Finding(
                level="error",
                subject="sent table",
                message=f"TableMissing: there is no table {name} for rows that were sent",
                remedy="create it (`outboxrelay sql` prints how), or correct spec.retention.keep.table",
                statements=(*ddl.new_sent_table(config), ddl.sent_grant(config, role=role)),
            )
        ]
    findings = [_lacking(config, column, kind) for column, kind in _missing(connection, config).items()]
    findings += _partitions(connection, config, role=role) if shape.by_time else _index(config, shape)
    if shape.hidden:
        findings.append(
            Finding(
                level="warning",
                subject="sent table",
                message=f"row-level security applies to this user and {name}: rows that were sent may be refused, or be"
                " hidden from the clean-up",
                remedy=ROW_SECURITY_REMEDY,
            )
        )
    return findings or [Finding(level="ok", subject="sent table", message=f"{name} takes rows that were sent")]


def _index(config: RelayConfig, shape: Shape) -> list[Finding]:
    if shape.indexed or config.retention.keep_for_seconds is None:
        return []
    return [
        Finding(
            level="error",
            subject="sent table",
            message=f"no index of {sent_table(config)} begins with {config.table.columns.id}: clean-up needs one",
            remedy="make one",
            statements=(ddl.sent_index(config, at_once=shape.partitioned),),
        )
    ]


def _partitions(connection: psycopg.Connection[Any], config: RelayConfig, *, role: str) -> list[Finding]:
    """Whether rows have where to go, and old partitions can go."""
    name, found = sent_table(config), partitions(connection, config, user=role)
    findings = []
    if not any(each.current for each in found):
        findings.append(
            Finding(
                level="error",
                subject="sent table",
                message=f"{name} has no partition for rows that are sent now: none could be settled",
                remedy="create it, and have partitions created ahead of time",
            )
        )
    lacking = [each.identifier for each in found if each.ends and not each.may_truncate]
    if lacking and config.retention.keep_for_seconds is not None:
        findings.append(
            Finding(
                level="warning",
                subject="sent table",
                message=f"{role} may not truncate {len(lacking)} of the partitions of {name}: rows kept long enough are"
                " removed one by one, and without an index on the id not at all",
                remedy="grant it, also on each new partition",
                statements=(ddl.truncate_grant(config, lacking, role=role),),
            )
        )
    return findings


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
