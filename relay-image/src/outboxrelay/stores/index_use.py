"""Whether an index on some of the rows will do for a condition: only the server can tell for sure, so it is asked.

The relay's sessions plan without sequential scans wherever an index will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import sql

from outboxrelay.config import RelayConfig
from outboxrelay.stores.columns import Name

_PARTIAL = """
SELECT c.relname
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid IN (SELECT %(oid)s::oid UNION SELECT relid FROM pg_partition_tree(%(oid)s::oid))
  AND a.attname = %(id)s AND i.indisvalid AND i.indpred IS NOT NULL
"""


def partial_index_serves(
    connection: psycopg.Connection[Any], config: RelayConfig, oid: int, condition: sql.Composable, *, exactly: bool
) -> bool:
    """Whether rows of a condition can be read from partial indexes that begin with the id.

    `exactly`: and no other rows are met on the way.

    Raises:
        psycopg.Error: the rows may not be read, or the condition does not fit the columns.
    """
    row_id = config.table.columns.id
    partial = {name for (name,) in connection.execute(_PARTIAL, {"oid": oid, "id": row_id}).fetchall()}
    table = Name(config.table.schema_, config.table.name)
    for query in (
        # In this order the planner prefers such an index, unless statistics say that nearly all rows are in it.
        "EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE {condition} ORDER BY {id} LIMIT 1",
        # Without it there is no use for an index on all ids, but perhaps for one on another column.
        "EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE {condition}",
    ):
        (plan,) = connection.execute(
            sql.SQL(query).format(table=table, condition=condition, id=Name(row_id)), {}
        ).fetchone() or ([],)
        scans = list(_scans(plan[0]["Plan"]))
        if all(scan.get("Index Name") in partial and not (exactly and "Filter" in scan) for scan in scans):
            return True
    return False


def _scans(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The nodes of a plan that read a table, or an index in its place."""
    if "Relation Name" in node or "Index Name" in node:
        yield node
    for below in node.get("Plans", ()):
        yield from _scans(below)
