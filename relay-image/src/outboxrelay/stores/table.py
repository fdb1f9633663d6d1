"""What the outbox table looks like: proves that it can be used, before the first row is read.

Looks into the catalog only, so it also works without any right on the table and can then say which right is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import errors, sql
from psycopg.types.numeric import Int8

from outboxrelay.basetype import BASE_TYPE
from outboxrelay.config import RelayConfig
from outboxrelay.extras import Role, extras_of
from outboxrelay.ports import StoreError
from outboxrelay.stores.columns import ColumnType
from outboxrelay.stores.errors import place
from outboxrelay.stores.keep import moved_columns, sent_table
from outboxrelay.stores.lane_column import disagreement
from outboxrelay.stores.mark import TIME_TYPES
from outboxrelay.stores.session import Connection, acting_user, wait_briefly
from outboxrelay.stores.sql import (
    EXTRA_HEADER_TYPES,
    HEADER_TYPES,
    ID_TYPES,
    KEY_TYPES,
    PAYLOAD_TYPES,
    TEXT_TYPES,
)

_COLUMNS = f"""
SELECT a.attname,
       CASE WHEN base.typtype = 'e' THEN 'enum'
            -- Whatever schema the extension is in, and whether the session looks there.
            WHEN base.typname = 'citext' AND base.typtype = 'b' THEN 'citext'
            ELSE format_type(base.oid, NULL) END,
       n.nspname, base.typname,
       -- The length is stored with four bytes added.
       CASE WHEN base.oid = 'varchar'::regtype THEN nullif(under.typmod, -1) - 4 END
FROM pg_attribute a
CROSS JOIN LATERAL {BASE_TYPE} AS under
JOIN pg_type base ON base.oid = under.oid
JOIN pg_namespace n ON n.oid = base.typnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""  # noqa: S608  of constants

DEBEZIUM_KEY_TYPES: Final = tuple(kind for kind in KEY_TYPES if kind not in ("character", "bytea", "numeric"))
"""Types whose text is what Kafka Connect's StringConverter makes of Debezium's value."""

UNGENERATED_KEY_TYPES: Final = ("enum",)
"""Types whose text PostgreSQL does not let a generated column depend on: labels can be renamed."""

ROW_SECURITY_REMEDY: Final = "give the user BYPASSRLS, or let it own the table"

_SCHEMA_PRIVILEGES = """
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I', nspname, %(user)s::text)
FROM pg_namespace WHERE nspname = ANY (%(schemas)s::text[]) AND NOT has_schema_privilege(%(user)s, oid, 'USAGE')
ORDER BY 1
"""
"""The statements name the table, and the types of what they read."""

_PRIVILEGES = """
SELECT -- A column that is still to be added is not covered by grants on single columns.
       CASE WHEN NOT has_table_privilege(%(user)s, c.oid, 'SELECT')
             AND (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (%(columns)s::text[])
                  AND has_column_privilege(%(user)s, c.oid, a.attnum, 'SELECT')) < cardinality(%(columns)s::text[])
       THEN format('GRANT SELECT ON %%I.%%I TO %%I', n.nspname, c.relname, %(user)s::text) END,
       (SELECT format('GRANT UPDATE (%%s) ON %%I.%%I TO %%I', string_agg(quote_ident(name), ', '),
                      n.nspname, c.relname, %(user)s::text)
        FROM unnest(%(changed)s::text[]) AS name
        WHERE NOT has_table_privilege(%(user)s, c.oid, 'UPDATE')
          AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = name
                          AND has_column_privilege(%(user)s, c.oid, a.attnum, 'UPDATE')) HAVING count(*) > 0),
       CASE WHEN %(deletes)s AND NOT has_table_privilege(%(user)s, c.oid, 'DELETE')
       THEN format('GRANT DELETE ON %%I.%%I TO %%I', n.nspname, c.relname, %(user)s::text) END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s
"""

_SENT_PRIVILEGES = """
SELECT format('GRANT %%s ON %%I.%%I TO %%I', string_agg(privilege, ', '), n.nspname, c.relname, %(user)s::text)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, unnest(%(sent_privileges)s::text[]) AS privilege
WHERE n.nspname = %(schema)s AND c.relname = %(sent)s AND NOT has_table_privilege(%(user)s, c.oid, privilege)
GROUP BY n.nspname, c.relname
"""

_STATUS_TYPES: Final = (*TEXT_TYPES, "boolean")
_ERROR_TYPES: Final = ("text", "character varying")


_EXTRA_TYPES: Final[dict[Role, tuple[str, ...]]] = {
    "route": TEXT_TYPES,
    "topic": TEXT_TYPES,
    "partition": ID_TYPES,
    "timestamp": TIME_TYPES,
    "time": TIME_TYPES,
    "header": EXTRA_HEADER_TYPES,
}
_EXTRA_FIELDS: Final[dict[Role, str]] = {
    "route": "route",
    "topic": "topic",
    "partition": "partition",
    "timestamp": "createdAt",
    "time": "createdAt",
    "header": "extraHeaders",
}


LANE_REMEDY: Final = (
    "rows of one key would pass each other, or never be sent, so none are; leave"
    " spec.databases[].table.columns.lane out, or name another column, which `outboxrelay sql` then prints"
)


class ColumnUse(NamedTuple):
    """What a column is used for."""

    field: str
    """Where the resource names it."""

    kinds: tuple[str, ...]
    """The types that it may have; none given: any."""

    dispensable: bool = False
    """Whether the empty name, for a table without such a column, would do in this configuration."""

    @property
    def if_missing(self) -> str:
        """What to do about a table that has no column of this name."""
        correct = f"add it, or correct {self.field}"
        return f'if the table is to have none, set {self.field}: ""; else {correct}' if self.dispensable else correct


def columns_in_use(config: RelayConfig) -> list[tuple[str, ColumnUse]]:
    """Names of columns and what they are for; one column may have several uses, and its type must fit each of them."""
    columns, mark = config.table.columns, config.retention.mark
    keys = DEBEZIUM_KEY_TYPES if config.format == "Debezium" else KEY_TYPES
    if columns.lane is not None:
        keys = tuple(kind for kind in keys if kind not in UNGENERATED_KEY_TYPES)
    uses: list[tuple[str | None, str, tuple[str, ...]]] = [
        (None if config.match.everything else columns.route, "route", TEXT_TYPES),
        *((extra.column, _EXTRA_FIELDS[extra.role], _EXTRA_TYPES[extra.role]) for extra in extras_of(config)),
        (columns.id, "id", ID_TYPES),
        (columns.key, "key", keys),
        (columns.type, "type", TEXT_TYPES),
        (columns.payload, "payload", PAYLOAD_TYPES),
        (columns.headers, "headers", HEADER_TYPES),
        (columns.message_id, "messageId", TEXT_TYPES),
        (columns.lane, "lane", ID_TYPES),
    ]
    found = [
        (
            name,
            ColumnUse(
                f"spec.databases[].table.columns.{role}",
                kinds,
                dispensable=role == "type" and config.format != "CloudEvents",
            ),
        )
        for name, role, kinds in uses
    ]
    if mark is not None:
        found += [
            (mark.column, ColumnUse("spec.retention.mark.column", TIME_TYPES if mark.sent is None else _STATUS_TYPES)),
            (mark.sent_at_column, ColumnUse("spec.retention.mark.sentAtColumn", TIME_TYPES)),
            (mark.error_column, ColumnUse("spec.retention.mark.errorColumn", _ERROR_TYPES)),
        ]
    return [(name, use) for name, use in found if name is not None]


def columns_not_read(config: RelayConfig) -> list[tuple[str, ColumnUse]]:
    """Columns that are named and that this relay does without; the operator measures nothing while one is missing."""
    columns = config.table.columns
    read = {name for name, _ in columns_in_use(config)}
    uses = (
        (columns.route, "route", ()),
        (columns.topic, "topic", ()),
        (columns.created_at, "createdAt", TIME_TYPES),
    )
    return [
        (name, ColumnUse(f"spec.databases[].table.columns.{role}", kinds, dispensable=role == "route"))
        for name, role, kinds in uses
        if name is not None and name not in read
    ]


def changed_columns(config: RelayConfig) -> list[str]:
    """Columns that the relay writes."""
    mark = config.retention.mark
    if mark is None:
        return []
    return [name for name in (mark.column, mark.sent_at_column, mark.error_column) if name is not None]


def deletes(config: RelayConfig) -> bool:
    """Whether the relay removes rows from the outbox table."""
    return config.retention.policy != "Mark" or config.retention.keep_for_seconds is not None


def table_oid(connection: psycopg.Connection[Any], config: RelayConfig) -> int | None:
    """The table's oid, or None if there is no such table."""
    row = connection.execute(
        "SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
        (config.table.schema_, config.table.name),
    ).fetchone()
    return None if row is None else int(row[0])


def unlogged(connection: psycopg.Connection[Any], *, schema: str, name: str) -> list[str]:
    """Quoted names of the table or those of its partitions that PostgreSQL empties when it restarts after a crash."""
    found = connection.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname)"
        " FROM pg_class parent JOIN pg_namespace p ON p.oid = parent.relnamespace"
        " JOIN pg_class c ON c.oid = parent.oid OR c.oid IN (SELECT relid FROM pg_partition_tree(parent.oid))"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.nspname = %s AND parent.relname = %s AND c.relpersistence = 'u' AND c.relkind = 'r' ORDER BY 1",
        (schema, name),
    ).fetchall()
    return [each for (each,) in found]


def is_partitioned(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Whether the table is the parent of partitions."""
    row = connection.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = %s", (oid,)).fetchone()
    return row is not None and bool(row[0])


def column_types(connection: psycopg.Connection[Any], oid: int) -> dict[str, ColumnType]:
    """Names of all columns, with their base types."""
    return {name: ColumnType(*kind) for name, *kind in connection.execute(_COLUMNS, (oid,)).fetchall()}


def row_security(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Whether row-level security applies to this user: what it hides would never be sent, or never be removed."""
    row = connection.execute("SELECT row_security_active(%s::oid)", (oid,)).fetchone()
    return row is not None and bool(row[0])


def inspect(connection: psycopg.Connection[Any], config: RelayConfig) -> dict[str, ColumnType]:
    """The types of the table's columns.

    Raises:
        StoreError: TableMissing, ColumnMissing, ColumnUnsupported, PermissionDenied or LaneColumnWrong.
        psycopg.Error: the catalog could not be read.
    """
    oid = table_oid(connection, config)
    if oid is None:
        raise StoreError(
            "TableMissing",
            f"there is no {place(config)}; create it (`outboxrelay sql` prints how), or correct spec.databases[].table",
        )
    types = column_types(connection, oid)
    for name, use in columns_in_use(config):
        if name not in types:
            raise StoreError(
                "ColumnMissing",
                f"the table has no column {name} ({place(config)}); {use.if_missing}",
            )
        if types[name].kind not in use.kinds:
            raise StoreError(
                "ColumnUnsupported",
                f"column {name} has type {types[name].kind} ({place(config)}), but {use.field} can be:"
                f" {', '.join(use.kinds)}",
            )
    missing = missing_privileges(connection, config, oid, types=types)
    if missing:
        raise StoreError(
            "PermissionDenied",
            f"user {acting_user(connection)} may not do what the relay does ({place(config)}); {'; '.join(missing)}",
        )
    if row_security(connection, oid):
        raise StoreError(
            "PermissionDenied",
            f"row-level security applies to user {acting_user(connection)} ({place(config)}): rows may be hidden from"
            f" the relay or be sent for ever; {ROW_SECURITY_REMEDY}",
        )
    wrong = disagreement(connection, config, oid, types=types)
    if wrong is not None:
        raise StoreError("LaneColumnWrong", f"{wrong} ({place(config)}); {LANE_REMEDY}")
    return types


def columns_to_move(connection: psycopg.Connection[Any], config: RelayConfig) -> list[str]:
    """The columns that policy Keep moves to its second table; none with another policy.

    Raises:
        StoreError: TableMissing or ColumnMissing, about the second table.
        psycopg.Error: the catalog could not be read.
    """
    if config.retention.policy != "Keep":
        return []
    columns, missing = moved_columns(connection, config)
    if missing and not columns:
        raise StoreError(
            "TableMissing",
            f"there is no table {sent_table(config)} beside the outbox table ({place(config)}); create it (`outboxrelay"
            " sql` prints how), or correct spec.retention.keep.table",
        )
    if missing:
        raise StoreError(
            "ColumnMissing",
            f"table {sent_table(config)} cannot take column {', '.join(missing)} of the outbox table ({place(config)});"
            " add it there",
        )
    return columns


def require_settling(connection: Connection, settle: sql.Composed) -> None:
    """Let the server look at a statement that settles rows or cleans up: what is never settled would be sent for ever.

    Raises:
        psycopg.Error: it refuses the statement, for the types of the second table, say.
    """
    try:
        with connection.transaction():
            wait_briefly(connection)
            connection.execute(sql.SQL("EXPLAIN {}").format(settle), {"start": Int8(0), "rows": Int8(0)})
    except (errors.LockNotAvailable, errors.QueryCanceled):
        # Somebody works on the table. Rows can be read meanwhile, and settled later.
        return


def missing_privileges(
    connection: psycopg.Connection[Any],
    config: RelayConfig,
    oid: int,
    *,
    types: Mapping[str, ColumnType],
    user: str | None = None,
) -> list[str]:
    """The GRANT statements that the user (the session's own if None) lacks; grants on single columns count as well.

    `types` are those of the table's columns.
    """
    read = {types[name].schema for name, _ in columns_in_use(config) if name in types}
    given = {
        "oid": oid,
        "schemas": [config.table.schema_, *read],
        "columns": _read_columns(connection, config),
        "changed": changed_columns(config),
        "deletes": deletes(config),
        "user": user or acting_user(connection),
        "schema": config.table.schema_,
        "sent": sent_table(config) if config.retention.policy == "Keep" else None,
        "sent_privileges": sent_privileges(config),
    }
    queries = [_SCHEMA_PRIVILEGES, _PRIVILEGES, *([] if given["sent"] is None else [_SENT_PRIVILEGES])]
    rows = [row for query in queries for row in connection.execute(query, given).fetchall()]
    return [statement for row in rows for statement in row if statement is not None]


def _read_columns(connection: psycopg.Connection[Any], config: RelayConfig) -> list[str]:
    """Columns that the relay reads: with Keep all of them, since it moves whole rows."""
    moved = moved_columns(connection, config)[0] if config.retention.policy == "Keep" else []
    return list({*(name for name, _ in columns_in_use(config)), *moved})


def sent_privileges(config: RelayConfig) -> list[str]:
    """What the relay does with the second table of policy Keep."""
    return ["INSERT"] if config.retention.keep_for_seconds is None else ["SELECT", "INSERT", "DELETE"]
