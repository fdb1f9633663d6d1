"""The SQL that prepares an outbox table, as text for its owner to read and run. Pure; nothing here is ever executed.

Nothing may be taken away by it: no statement drops, truncates, or changes what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from outboxrelay.config import Mark, RelayConfig
from outboxrelay.stores.columns import Name
from outboxrelay.stores.keep import SENT_AT, sent_table
from outboxrelay.stores.lane_column import definition
from outboxrelay.stores.mark import unsent
from outboxrelay.stores.matching import matching
from outboxrelay.stores.table import changed_columns, deletes, sent_privileges
from outboxrelay.stores.wake import channel

AUTOVACUUM: Final = (
    "autovacuum_enabled = on, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,"
    " autovacuum_vacuum_cost_delay = 0"
)
"""For a table that fills and empties all day: vacuum by the number of dead rows, not by a share of a table whose size
says nothing, and without pauses."""

_ID_TYPE: Final = "bigint GENERATED ALWAYS AS IDENTITY"

_COLUMNS: Final = {
    "id": (f"{_ID_TYPE} PRIMARY KEY", "order; sequences hand ids out one by one by default, and must"),
    "route": ("text", "route: what spec.topics[].match looks at"),
    "key": ("text", "key: the Kafka key; order is kept per key"),
    "type": ("text", "becomes the header outbox-type"),
    "payload": ("jsonb", "or json, text, bytea: sent byte for byte"),
    "headers": ("jsonb", '{"name": "value"}'),
    "created_at": ("timestamptz NOT NULL DEFAULT now()", "makes the lag exact"),
    "message_id": ("text", "becomes the header outbox-id"),
    "topic": ("text", "what ${topic} in a topic's name stands for"),
    "partition": ("integer", "chooses the partition; NULL: the key does"),
    "lane": ("", "lane of the key, so that relays need not compute it"),
}
"""Field of `config.Columns` to the type in a new table, and what it is for; extra headers are text."""


def new_table(config: RelayConfig) -> tuple[str, ...]:
    """Create the table with every column that the configuration names, and the indexes that policy and match need."""
    columns = _columns(config)
    width = max(len(quoted(name)) for name in columns)
    lines: list[str] = []
    for number, (name, (kind, purpose)) in enumerate(columns.items(), start=1):
        comma = "," if number < len(columns) else ""
        lines.append(f"  {quoted(name):<{width}} {kind}{comma}" + (f"  -- {purpose}" if purpose else ""))
    schema = config.table.schema_
    first = () if schema == "public" else (f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};",)
    table = f"CREATE TABLE {quoted_table(config)} (\n" + "\n".join(lines) + f"\n) WITH ({AUTOVACUUM});"
    return (*first, table, *_beside(config))


def _beside(config: RelayConfig) -> tuple[str, ...]:
    """What the policy, a match and `wake` need beside a new outbox table."""
    match = () if config.match.everything else (match_index(config, at_once=True),)
    wake = wake_trigger(config) if config.table.wake == "Notify" else ()
    if config.retention.mark is not None:
        return (unsent_index(config, config.retention.mark, at_once=True), *match, *wake)
    return (*(new_sent_table(config) if config.retention.policy == "Keep" else ()), *match, *wake)


def wake_trigger(config: RelayConfig) -> tuple[str, ...]:
    """Announce new rows: once a statement, and without content, so that the server merges those of a transaction.

    The function is the same for every table of the schema.
    """
    function = sql.Identifier(config.table.schema_, "outboxrelay_wake").as_string(None)
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_catalog.pg_notify(TG_ARGV[0], ''); RETURN NULL; END $$;",
        f"CREATE TRIGGER outboxrelay_wake AFTER INSERT ON {quoted_table(config)} FOR EACH STATEMENT"
        f" EXECUTE FUNCTION {function}({_literal(channel(config.table))});",
    )


def new_sent_table(config: RelayConfig) -> tuple[str, ...]:
    """Create the second table of policy Keep: the outbox table's columns without its constraints and identity."""
    return (
        f"CREATE TABLE {_sent(config)} (LIKE {quoted_table(config)}, {SENT_AT} timestamptz NOT NULL DEFAULT now());",
        *(() if config.retention.keep_for_seconds is None else (sent_index(config, at_once=True),)),
    )


def sent_grant(config: RelayConfig, *, role: str) -> str:
    """What the relay's user may do with the second table."""
    return f"GRANT {', '.join(sent_privileges(config))} ON {_sent(config)} TO {quoted(role)};"


def truncate_grant(config: RelayConfig, partitions: Sequence[sql.Identifier], *, role: str) -> str:
    """What lets old partitions of the second table go at once.

    Also on the table as a whole, since what creates partitions can copy its grants to them.
    """
    names = ", ".join([_sent(config), *(each.as_string(None) for each in partitions)])
    return f"GRANT TRUNCATE ON {names} TO {quoted(role)};"


def sent_index(config: RelayConfig, *, at_once: bool) -> str:
    """The index of the second table that the clean-up needs; not `at_once`: made without keeping rows out.

    It is not unique: a row that was put back for replay comes a second time.
    """
    how = "INDEX" if at_once else "INDEX CONCURRENTLY"
    return f"CREATE {how} ON {_sent(config)} ({quoted(config.table.columns.id)});"


def add_sent_column(config: RelayConfig, *, name: str, kind: str) -> str:
    """Add a column to the second table."""
    return f"ALTER TABLE {_sent(config)} ADD COLUMN {quoted(name)} {kind};"


def _sent(config: RelayConfig) -> str:
    return sql.Identifier(config.table.schema_, sent_table(config)).as_string(None)


def _columns(config: RelayConfig, *, key_kind: str = "text") -> dict[str, tuple[str, str]]:
    """Name of each column to its type in a new table and what it is for; the first use decides."""
    named = config.table.columns.model_dump(exclude={"extra_headers"})
    fields = [*(field for field in _COLUMNS if field in named), *(field for field in named if field not in _COLUMNS)]
    columns = {named[field]: _COLUMNS.get(field, ("text", "")) for field in fields if named[field]}
    if config.table.columns.lane is not None:
        columns[config.table.columns.lane] = (definition(config, key_kind=key_kind), _COLUMNS["lane"][1])
    extra = {each.column: ("text", "becomes a header") for each in config.table.columns.extra_headers}
    columns = extra | columns
    mark = config.retention.mark
    if mark is not None:
        kind = "timestamptz" if mark.sent is None else "text"
        pending = "" if mark.pending is None else f" NOT NULL DEFAULT {_literal(mark.pending)}"
        wanted = {
            mark.column: (kind + pending, "whether the row was sent"),
            mark.sent_at_column: ("timestamptz", "when it was sent"),
            mark.error_column: ("text", "why it could not be sent"),
        }
        columns |= {name: use for name, use in wanted.items() if name is not None and name not in columns}
    return columns


def add_column(config: RelayConfig, *, name: str, key_kind: str = "text") -> str:
    """Add one of the columns that the configuration names, to a table whose key is of this type."""
    columns = _columns(config, key_kind=key_kind)
    kind = _ID_TYPE if name == config.table.columns.id else columns.get(name, ("text", ""))[0]
    return f"ALTER TABLE {quoted_table(config)} ADD COLUMN {quoted(name)} {kind};"


def unsent_index(config: RelayConfig, mark: Mark, *, at_once: bool) -> str:
    """The index on rows that were not sent; not `at_once`: made without keeping writers out."""
    return _partial_index(config, unsent(mark), at_once=at_once)


def match_index(config: RelayConfig, *, at_once: bool) -> str:
    """The index on this pair's rows that were not sent, for a pair that has a match and so a route column."""
    route = config.table.columns.route
    parts = [
        None if config.retention.mark is None else unsent(config.retention.mark),
        None if route is None else matching(config.match, Name(route)),
    ]
    condition = sql.SQL(" AND ").join([part for part in parts if part is not None])
    return _partial_index(config, condition, at_once=at_once)


def _partial_index(config: RelayConfig, condition: sql.Composable, *, at_once: bool) -> str:
    how = "" if at_once else " CONCURRENTLY"
    # What the condition doubles for statements with parameters is single here.
    predicate = condition.as_string(None).replace("%%", "%")
    return f"CREATE INDEX{how} ON {quoted_table(config)} ({quoted(config.table.columns.id)}) WHERE {predicate};"


def make_logged(table: str) -> str:
    """Let a table, whose name is quoted already, survive a crash of the server."""
    return f"ALTER TABLE {table} SET LOGGED;"


def comment(text: str) -> str:
    """A comment in a script, also of a text with line ends: names may have them, and the rest must be no statement."""
    return "\n".join(f"-- {line}" for line in text.splitlines())


def id_index(config: RelayConfig, *, partitioned: bool) -> str:
    """An index that begins with the id, made without keeping writers out where that is possible."""
    how = "INDEX" if partitioned else "UNIQUE INDEX CONCURRENTLY"
    return f"CREATE {how} ON {quoted_table(config)} ({quoted(config.table.columns.id)});"


def grants(config: RelayConfig, *, role: str) -> tuple[str, ...]:
    """Everything that the relay's user may do, and no more."""
    user = quoted(role)
    return (
        comment(f"CREATE ROLE {user} LOGIN PASSWORD '...';"),
        f"GRANT CONNECT ON DATABASE {quoted(config.database.dbname)} TO {user};",
        f"GRANT USAGE ON SCHEMA {quoted(config.table.schema_)} TO {user};",
        *_table_grants(config, role),
    )


def _table_grants(config: RelayConfig, role: str) -> tuple[str, ...]:
    user = quoted(role)
    if config.retention.policy == "Keep":
        return (
            f"GRANT SELECT, DELETE ON {quoted_table(config)} TO {user};",
            sent_grant(config, role=role),
        )
    if config.retention.mark is None:
        return (f"GRANT SELECT, DELETE ON {quoted_table(config)} TO {user};",)
    changed = ", ".join(quoted(name) for name in changed_columns(config))
    kinds = ["SELECT", f"UPDATE ({changed})", *(["DELETE"] if deletes(config) else [])]
    return (f"GRANT {', '.join(kinds)} ON {quoted_table(config)} TO {user};",)


def optional_grants(*, role: str) -> tuple[str, ...]:
    """What is of use but not needed, as comments."""
    return (
        comment("Optional: lets the relay and `outboxrelay lag` name the session that holds vacuum back."),
        comment(f"GRANT pg_read_all_stats TO {quoted(role)};"),
    )


def quoted_table(config: RelayConfig) -> str:
    return sql.Identifier(config.table.schema_, config.table.name).as_string(None)


def quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _literal(value: str) -> str:
    return sql.Literal(value).as_string(None)
