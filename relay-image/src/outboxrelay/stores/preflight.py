"""The preflight's look at the outbox table: all that is wrong with it, not only the first thing."""

from __future__ import annotations

from typing import Any, Literal

import psycopg
from psycopg import sql

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.ports import StoreError
from outboxrelay.stores import ddl
from outboxrelay.stores.columns import ColumnType
from outboxrelay.stores.errors import place, translate
from outboxrelay.stores.keep import sent_table
from outboxrelay.stores.keep_preflight import examine_keep
from outboxrelay.stores.lane_column import disagreement
from outboxrelay.stores.locks import examine_locks
from outboxrelay.stores.mark_preflight import examine_mark
from outboxrelay.stores.match_preflight import examine_match
from outboxrelay.stores.policy import policy_of
from outboxrelay.stores.session import Connection, acting_user, connect
from outboxrelay.stores.standing import standing
from outboxrelay.stores.table import (
    LANE_REMEDY,
    ROW_SECURITY_REMEDY,
    ColumnUse,
    column_types,
    columns_in_use,
    columns_not_read,
    is_partitioned,
    missing_privileges,
    require_settling,
    row_security,
    table_oid,
    unlogged,
)
from outboxrelay.stores.wake_preflight import examine_notifications, examine_wake

_SEQUENCE = """
SELECT s.seqcache, s.seqincrement, s.seqcycle, format('%%I.%%I', n.nspname, c.relname)
FROM pg_depend d
JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_sequence s ON s.seqrelid = c.oid
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refobjid = %s AND a.attname = %s AND d.deptype IN ('a', 'i')
"""

_INDEXES = """
SELECT i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL
FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND a.attname = %s AND i.indisvalid AND i.indpred IS NULL
"""

_STORAGE = """
SELECT format('%%I.%%I', n.nspname, c.relname),
       (SELECT option_value FROM pg_options_to_table(c.reloptions)
        WHERE option_name = 'autovacuum_vacuum_scale_factor'),
       (SELECT option_value FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_enabled')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND (c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s)))
ORDER BY 1
"""
"""Settings of the table, or of its partitions: a partitioned table itself holds no rows and takes no settings."""

_LARGEST_SCALE_FACTOR = 0.02

_OPEN_SCHEMAS = """
SELECT format('%I', n.nspname) FROM unnest(current_schemas(false)) AS searched
JOIN pg_namespace n ON n.nspname = searched WHERE has_schema_privilege('public', n.oid, 'CREATE')
"""
"""Of those that the session searches: before PostgreSQL 15 the schema public is one."""


def examine_database(config: RelayConfig) -> list[Finding]:
    """Connect to the database and judge the table."""
    try:
        connection = connect(config)
    except StoreError as error:
        return [Finding(level="error", subject="database", message=f"{error.reason}: {error.message}")]
    with connection:
        findings = [
            Finding(
                level="ok",
                subject="database",
                message=f"{config.database.dbname} on {_host(connection, config)} answers,"
                f" PostgreSQL {connection.info.parameter_status('server_version')}, TLS {config.database.tls.mode}",
            )
        ]
        try:
            findings.extend(examine_table(connection, config))
            if not any(finding.level == "error" for finding in findings):
                findings.extend(_settling(connection, config))
            findings.extend(examine_notifications(connection, config))
            findings.extend(examine_locks(connection, config))
        except psycopg.Error as error:
            failure = translate(error, config=config, attempt="looking at the table")
            findings.append(Finding(level="error", subject="table", message=f"{failure.reason}: {failure.message}"))
    return findings


def _host(connection: psycopg.Connection[Any], config: RelayConfig) -> str:
    """The address that was connected to."""
    return place(config, host=connection.info.host).address


def examine_table(
    connection: psycopg.Connection[Any], config: RelayConfig, *, user: str | None = None
) -> list[Finding]:
    """Judge the table, and the grants of `user` (the session's own if None).

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    table = config.table.qualified
    role = user or acting_user(connection)
    oid = table_oid(connection, config)
    if oid is None:
        return [
            Finding(
                level="error",
                subject="table",
                message=f"TableMissing: there is no {place(config)}",
                remedy="create it (`outboxrelay sql` prints how), or correct spec.databases[].table",
                statements=(*ddl.new_table(config), *ddl.grants(config, role=role)),
            )
        ]
    partitioned = is_partitioned(connection, oid)
    findings = [Finding(level="ok", subject="table", message=f"{table} is there")]
    types = column_types(connection, oid)
    findings.extend(_columns(types, config))
    findings.extend(_lane(connection, config, oid, types=types))
    findings.extend(examine_keep(connection, config, role=role))
    findings.extend(examine_mark(connection, config, oid, types=types, partitioned=partitioned))
    findings.extend(_index(connection, config, oid, partitioned=partitioned))
    findings.extend(examine_match(connection, config, oid, types=types, partitioned=partitioned))
    findings.extend(_identity(connection, config, oid))
    findings.extend(_logging(connection, config))
    findings.extend(_storage(connection, oid))
    findings.extend(examine_wake(connection, config))
    findings.extend(_grants(connection, config, oid, types=types, role=role))
    findings.extend(_search_path(connection))
    return findings


def _settling(connection: Connection, config: RelayConfig) -> list[Finding]:
    """What the server says to the statements that settle rows and clean up: a rule or a publication may be in the way.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    oid = table_oid(connection, config)
    if oid is None:
        return []
    found = standing(connection, config)
    policy = policy_of(config, column_types(connection, oid), columns=found.columns, may_stay=found.may_stay)
    forget = policy.cleanup()
    tried: list[tuple[Literal["error", "warning"], str, sql.Composed]] = [
        ("error", "settling rows", policy.settle(sql.SQL("false")))
    ]
    if forget is not None:
        tried.append(("warning", "removing rows that were kept long enough", forget.statement))
    findings = []
    for level, attempt, statement in tried:
        try:
            require_settling(connection, statement)
        except psycopg.Error as error:
            failure = translate(error, config=config, attempt=attempt)
            findings.append(Finding(level=level, subject="settling", message=f"{failure.reason}: {failure.message}"))
    return findings


def _columns(types: dict[str, ColumnType], config: RelayConfig) -> list[Finding]:
    return [
        *(_column(name, use, types=types, config=config) for name, use in columns_in_use(config)),
        *(_unread(_column(name, use, types=types, config=config)) for name, use in columns_not_read(config)),
    ]


def _column(name: str, use: ColumnUse, *, types: dict[str, ColumnType], config: RelayConfig) -> Finding:
    if name not in types:
        return Finding(
            level="error",
            subject=f"column {name}",
            message=f"ColumnMissing: {config.table.qualified} has no column {name}",
            remedy=use.if_missing,
            statements=(ddl.add_column(config, name=name, key_kind=_kind(types, config.table.columns.key)),),
        )
    if use.kinds and types[name].kind not in use.kinds:
        return Finding(
            level="error",
            subject=f"column {name}",
            message=f"ColumnUnsupported: type {types[name].kind} cannot be {use.field}",
            remedy=f"use one of: {', '.join(use.kinds)}",
        )
    return Finding(level="ok", subject=f"column {name}", message=f"{types[name].kind}, as {use.field}")


def _unread(finding: Finding) -> Finding:
    """Rows flow without what the relay does not read."""
    if finding.level == "ok":
        return finding
    message = f"{finding.message}: rows flow, but backlog and lag are not measured"
    return finding.model_copy(update={"level": "warning", "message": message})


def _kind(types: dict[str, ColumnType], name: str) -> str:
    return types[name].kind if name in types else "text"


def _lane(
    connection: psycopg.Connection[Any], config: RelayConfig, oid: int, *, types: dict[str, ColumnType]
) -> list[Finding]:
    columns = config.table.columns
    if columns.lane is None or any(
        name not in types or types[name].kind not in use.kinds for name, use in columns_in_use(config)
    ):
        return []
    wrong = disagreement(connection, config, oid, types=types)
    if wrong is None:
        return [Finding(level="ok", subject="lane", message=f"{columns.lane} holds the lanes of {config.lanes}")]
    return [
        Finding(level="error", subject="lane", message=f"LaneColumnWrong: {wrong}", remedy=LANE_REMEDY),
    ]


def _grants(
    connection: psycopg.Connection[Any], config: RelayConfig, oid: int, *, types: dict[str, ColumnType], role: str
) -> list[Finding]:
    if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
        return [
            Finding(
                level="error",
                subject="privileges",
                message=f"PermissionDenied: the server knows no user {role}",
                remedy="create the user, or correct the Secret",
                statements=ddl.grants(config, role=role),
            )
        ]
    missing = missing_privileges(connection, config, oid, types=types, user=role)
    if missing:
        return [
            Finding(
                level="error",
                subject="privileges",
                message=f"PermissionDenied: user {role} lacks what it needs",
                statements=tuple(f"{each};" for each in missing),
            )
        ]
    return [Finding(level="ok", subject="privileges", message=f"{role} may do what the relay does")]


def _search_path(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Whether anybody can put a function in the way that is then called in the relay's name."""
    names = [name for (name,) in connection.execute(_OPEN_SCHEMAS).fetchall()]
    if not names:
        return []
    schemas = ", ".join(names)
    return [
        Finding(
            level="warning",
            subject="search path",
            message=f"everybody may create functions in {schemas}, where sessions of {connection.info.user} look for"
            " them: they can be made to run with its rights",
            remedy=f"REVOKE CREATE ON SCHEMA {schemas} FROM PUBLIC; or set an empty search_path for the role, if no"
            " trigger of the table needs another",
        )
    ]


def _index(connection: psycopg.Connection[Any], config: RelayConfig, oid: int, *, partitioned: bool) -> list[Finding]:
    name = config.table.columns.id
    unique = [row[0] for row in connection.execute(_INDEXES, (oid, name)).fetchall()]
    if not unique:
        return [
            Finding(
                level="error",
                subject="index",
                message=f"no index begins with {name}: every read would sort the whole table",
                remedy=f"make {name} the primary key",
                statements=(ddl.id_index(config, partitioned=partitioned),),
            )
        ]
    if not any(unique):
        return [
            Finding(
                level="warning",
                subject="index",
                message=f"nothing guarantees that {name} is unique: rows with one id are settled together",
                remedy=f"make {name} the primary key",
                # A unique index on a partitioned table needs the partition key, and then says nothing of the id alone.
                statements=() if partitioned else (ddl.id_index(config, partitioned=False),),
            )
        ]
    return [Finding(level="ok", subject="index", message=f"a unique index on {name}")]


def _identity(connection: psycopg.Connection[Any], config: RelayConfig, oid: int) -> list[Finding]:
    name = config.table.columns.id
    row = connection.execute(_SEQUENCE, (oid, name)).fetchone()
    if row is None:
        return [
            Finding(
                level="warning",
                subject="ids",
                message=f"{name} has no sequence of its own: its values must ascend in the order of each key's lock",
                remedy=f"make {name} GENERATED ALWAYS AS IDENTITY",
            )
        ]
    cache, increment, cycles, sequence = row
    if cache != 1:
        return [
            Finding(
                level="error",
                subject="ids",
                message=f"sequence {sequence} hands out blocks of {cache} ids: ids do not follow the order of commits",
                statements=(f"ALTER SEQUENCE {sequence} CACHE 1;",),
            )
        ]
    if increment < 0:
        return [
            Finding(
                level="error",
                subject="ids",
                message=f"sequence {sequence} descends: later rows have lower ids",
                remedy=f"ALTER SEQUENCE {sequence} INCREMENT 1",
            )
        ]
    if cycles:
        return [
            Finding(
                level="error",
                subject="ids",
                message=f"sequence {sequence} begins anew at its end: later rows will have lower ids",
                statements=(f"ALTER SEQUENCE {sequence} NO CYCLE;",),
            )
        ]
    if increment > 1:
        return [
            Finding(
                level="warning",
                subject="ids",
                message=f"sequence {sequence} advances by {increment}, as for writers that draw ids in blocks ahead of"
                " their transactions: such ids do not follow the order of commits",
                remedy=f"let the database draw each id, and ALTER SEQUENCE {sequence} INCREMENT 1",
            )
        ]
    return [Finding(level="ok", subject="ids", message=f"drawn one by one from sequence {sequence}")]


def _logging(connection: psycopg.Connection[Any], config: RelayConfig) -> list[Finding]:
    """Whether a crash of the server would take rows along: those that wait, or those that were kept."""
    names = [config.table.name, *([sent_table(config)] if config.retention.policy == "Keep" else [])]
    return [
        Finding(
            level="error",
            subject="logging",
            message=f"{table} is UNLOGGED: after a crash of the server it is empty",
            remedy="make it LOGGED: this rewrites the table and locks it meanwhile",
            statements=(ddl.make_logged(table),),
        )
        for name in names
        for table in unlogged(connection, schema=config.table.schema_, name=name)
    ]


def _storage(connection: psycopg.Connection[Any], oid: int) -> list[Finding]:
    findings: list[Finding] = []
    if row_security(connection, oid):
        findings.append(
            Finding(
                level="error",
                subject="row security",
                message="row-level security applies to this user: rows may be hidden, or sent for ever",
                remedy=ROW_SECURITY_REMEDY,
            )
        )
    lax = [
        name
        for name, scale_factor, enabled in connection.execute(_STORAGE, {"oid": oid}).fetchall()
        if enabled in ("false", "off") or scale_factor is None or float(scale_factor) > _LARGEST_SCALE_FACTOR
    ]
    if not lax:
        return [
            *findings,
            Finding(level="ok", subject="autovacuum", message="set for a table that fills and empties"),
        ]
    statements = [f"ALTER TABLE {name} SET ({ddl.AUTOVACUUM});" for name in lax]
    findings.append(
        Finding(
            level="warning",
            subject="autovacuum",
            message=f"{', '.join(lax[:3])}{' and more' if lax[3:] else ''} fills and empties all day; with the default"
            " settings dead rows slow reads down",
            statements=tuple(statements),
        )
    )
    return findings
