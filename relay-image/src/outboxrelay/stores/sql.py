"""The SQL of the outbox table, composed from quoted identifiers and never from strings.

Kept apart from the session so that every statement can be read, and tested, without a database. The statements
are fixed for the life of a session; which of the few shapes is needed depends on what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, LiteralString

from psycopg import sql

from outboxrelay.config import Match, Table
from outboxrelay.extras import FIRST, Extra
from outboxrelay.ports import Row
from outboxrelay.stores.columns import ColumnType, Name
from outboxrelay.stores.expressions import (
    AT_LEAST,
    EXPANSION,
    RECKONED,
    at_least,
    extra_kind,
    extra_value,
    text_of,
    whole,
)
from outboxrelay.stores.lane_column import computed_lane
from outboxrelay.stores.mark import TIME_TYPES
from outboxrelay.stores.matching import matching
from outboxrelay.stores.policy import Policy
from outboxrelay.stores.statement import Statement

ID_TYPES: Final = ("smallint", "integer", "bigint")
PAYLOAD_TYPES: Final = ("bytea", "text", "character varying", "json", "jsonb")
HEADER_TYPES: Final = ("json", "jsonb", "text[]", "character varying[]")
KEY_TYPES: Final = (*ID_TYPES, "uuid", "text", "character varying", "character", "bytea", "numeric", "citext", "enum")
TEXT_TYPES: Final = (*(kind for kind in KEY_TYPES if kind != "bytea"), "name")

SNAPSHOT: Final = -1
"""In place of a size: this row tells the snapshot's xmin."""

BEYOND_BOUND: Final = -2
"""In place of a size: the row does not fit into the byte bound, or its share of it, and came without content."""

LARGEST_VALUE: Final = 1 << 30
"""Bytes. PostgreSQL has no larger value, nor can it make one: the size of a row whose content cannot be had."""

KEY: Final = Row._fields.index("key")
"""Position of the key in a row."""

EXTRA_HEADER_TYPES: Final = (*TEXT_TYPES, "boolean", "bytea")

_WEIGHTLESS: Final = (*ID_TYPES, *TIME_TYPES, "uuid", "enum", "name", "boolean")
"""Types of values that are too small to be weighed."""

_UNBOUNDED: Final = ("text", "character varying", "character", "citext", "bytea")
"""Types of single values that may be too large by themselves."""

_WRITERS: Final = (
    "WITH RECURSIVE below AS (SELECT %(table)s::regclass::oid AS oid"
    " UNION SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid),"
    " above AS (SELECT %(table)s::regclass::oid AS oid"
    " UNION SELECT inhparent FROM pg_inherits JOIN above ON inhrelid = above.oid)"
    " SELECT coalesce(string_agg(DISTINCT virtualtransaction, ','), ''){more}"
    " FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND relation IN (SELECT oid FROM below UNION SELECT oid FROM above)"
    " AND pid IS DISTINCT FROM pg_backend_pid()"
)

JSON_WEIGHED_BELOW: Final = 65_536
"""Stored bytes up to which json and jsonb are weighed by their text: most compress to a third, and the number 1e100000
is stored in ten bytes."""


Weigh = Literal["share", "reckoned", "looked into", "not at all"]
"""How the content of rows is kept within the byte bound, see `Statements.read`."""


@dataclass(frozen=True)
class Shape:
    """Which exclusions one read needs."""

    all_lanes: bool
    held_keys: bool = False
    held_ids: bool = False
    in_flight: Literal["nothing", "run", "list"] = "nothing"
    """Whether rows are in flight, and whether their ids are all those between the first and the last."""

    weigh: Weigh = "reckoned"


@dataclass
class Statements:
    """The statements for one table, one pair's match and one set of column types.

    `types` has each column in use. A statement must fail, not go on with other bytes, when a column's type is changed
    while it is prepared: the server would plan it anew without a word, and the text of a bytea is not its bytes.
    """

    table: Table
    match: Match
    lanes: int
    types: Mapping[str, ColumnType]
    policy: Policy
    extras: Sequence[Extra] = ()
    encoding: str | None = None
    """Of texts that are to come as the bytes they are; None: the server makes UTF-8 of them."""

    _made: dict[Shape | str, Statement] = field(default_factory=dict)

    def read(self, shape: Shape) -> Statement:
        """The next rows, and first a row whose id is the xmin of the snapshot that saw them (hard rule 2).

        The byte bound is in the statement, since the size of the next rows cannot be known before they are read.
        Reckoned: a running sum over sizes that are had without fetching out-of-line values; rows beyond it come with
        nothing but their ids, and so do those that outgrow by far what was reckoned. Of a row above `max_row` bytes all
        but the key and what says where it goes stay in the database.

        Looked into: as before, but each json or array is taken apart before it is turned into text, which it is only if
        that cannot become too large. At least one row comes whole.

        Share: a row whose content is above `share` bytes comes with nothing but its id. It takes half
        of the server's time, since no sum needs to be kept.

        Not at all: rows come as if their content were too large. It may be what the server cannot read.
        """
        compose = self._compose_quick if shape.weigh == "share" else self._compose_read
        return self._once(shape, lambda: self._unconverted(compose(shape)))

    def settle_range(self) -> Statement:
        """Settle a dense run of ids."""
        condition = "{id} BETWEEN %(first)s::int8 AND %(last)s::int8"
        return self._once("settle range", lambda: self.policy.settle(sql.SQL(condition).format(id=self.id)))

    def settle_list(self) -> Statement:
        """Settle single ids."""
        condition = "{id} = ANY (%(ids)s::int8[])"
        return self._once("settle list", lambda: self.policy.settle(sql.SQL(condition).format(id=self.id)))

    def left(self) -> Statement:
        """How many of some ids are not sent."""
        query = "SELECT count(*) FROM {table} WHERE {id} = ANY (%(ids)s::int8[]){unsent}"
        return self._once("left", lambda: sql.SQL(query).format(table=self.name, id=self.id, unsent=self._and_unsent()))

    def lanes_of(self) -> Statement:
        """Ids of some rows, and their lanes."""
        query = "SELECT {id}::int8, ({lane})::int8 FROM {table} WHERE {id} = ANY (%(ids)s::int8[])"
        return self._once("lanes", lambda: sql.SQL(query).format(id=self.id, lane=self._lane(), table=self.name))

    def highest(self) -> Statement:
        """The highest id there is that was not sent."""
        query = "SELECT max({id})::int8 FROM {table} WHERE {id} >= %(start)s::int8{unsent}"
        return self._once(
            "highest", lambda: sql.SQL(query).format(id=self.id, table=self.name, unsent=self._and_unsent())
        )

    def writers(self) -> Statement:
        """The transactions that write to the table: virtual ids, joined by commas.

        Also those that write to a child or partition of it, or to what it is a child of: rows may be on their way from
        there.
        """
        return self._once("writers", lambda: sql.SQL(_WRITERS).format(more=sql.SQL("")))

    def writers_and_xid(self) -> Statement:
        """As `writers`, and an xid that is assigned now. An idle relay that only waits must not use them up."""
        more = sql.SQL(", pg_current_xact_id()::text::int8")
        return self._once("writers and xid", lambda: sql.SQL(_WRITERS).format(more=more))

    @property
    def relation(self) -> bytes:
        """The table's quoted name, as the parameter `table` of `writers`."""
        return sql.Identifier(self.table.schema_, self.table.name).as_bytes(None)

    def _once(self, what: Shape | str, compose: Callable[[], sql.Composed]) -> Statement:
        if what not in self._made:
            self._made[what] = Statement.of(compose())
        return self._made[what]

    def waiting(self) -> sql.Composable:
        """The condition for rows of this pair, in any lane, that were not sent."""
        unsent = self.policy.unsent()
        return sql.SQL(" AND ").join([sql.SQL("true") if unsent is None else unsent, *self._matches()])

    @property
    def name(self) -> Name:
        """The table."""
        return Name(self.table.schema_, self.table.name)

    @property
    def id(self) -> Name:
        """The column of the id."""
        return Name(self.table.columns.id)

    def _compose_read(self, shape: Shape) -> sql.Composed:
        columns, roles = self.table.columns, self._roles()
        return sql.SQL(
            "{snapshot} UNION ALL SELECT * FROM (SELECT i::int8, {key}, CASE WHEN NOT {outgrown} THEN payload END,"
            " {type}, CASE WHEN NOT {outgrown} THEN headers END, {message_id},"
            " CASE WHEN {outgrown} THEN {beyond}::int8 ELSE s END{extras}"
            # Made before it is known whether it is to be sent, and once: hence the OFFSET.
            " FROM (SELECT *, {payload} AS payload, {headers} AS headers"
            # What does not fit any more is told, not left out: the sums here are reckoned, so nobody else can say
            # whether the rows end here or are cut off. What only seems too large is weighed once more.
            " FROM (SELECT i, {aliases}, CASE WHEN running - r >= %(bytes)s::int8 THEN {beyond}::int8"
            " WHEN r > %(max_row)s::int8 THEN {again} ELSE r END AS s"
            " FROM (SELECT *, sum(r) OVER (ORDER BY i ROWS UNBOUNDED PRECEDING) AS running"
            " FROM ({sized}) AS sized) AS reckoned) AS weighed OFFSET 0) AS made ORDER BY i) AS wanted"
        ).format(
            snapshot=self._snapshot(),
            beyond=sql.Literal(BEYOND_BOUND),
            extras=self._extras(self._told, headers=whole),
            key=self._told(columns.key, "k", self._wire(columns.key, "k")),
            payload=whole(self._wire(columns.payload, "p")),
            type=sql.SQL("NULL::text") if columns.type is None else whole(sql.SQL("t::text")),
            headers=whole(self._headers()),
            message_id=sql.SQL("NULL::text") if columns.message_id is None else whole(sql.SQL("m::text")),
            outgrown=self._outgrown(roles),
            aliases=sql.SQL(", ").join(
                Name(each)
                for alias, name in roles.items()
                for each in ((alias, alias + "x") if self._weighed(name) else (alias,))
            ),
            again=self._exact(roles) if shape.weigh == "reckoned" else sql.SQL("r"),
            sized=self._sized(shape, roles),
        )

    def _sized(self, shape: Shape, roles: Mapping[str, str]) -> sql.Composed:
        """The next rows with their sizes as `r`, and the texts of some json and arrays under aliases that end in x."""
        weighed = {alias: name for alias, name in roles.items() if self._weighed(name)}
        source = [sql.SQL("{} AS {}").format(self._typed(name), Name(alias)) for alias, name in roles.items()]
        size: sql.Composable
        made: list[sql.Composable] = []
        if shape.weigh == "looked into":
            size = self._size(roles, large=AT_LEAST)
            for alias, name in weighed.items():
                least, text = at_least(self.types[name].kind, Name(name)), text_of(self.types[name].kind, Name(alias))
                source.append(sql.SQL("{} AS {}").format(least, Name(alias + "l")))
                made.append(
                    sql.SQL(", CASE WHEN {least} <= %(max_row)s::int8 THEN {text} END AS {made}").format(
                        least=Name(alias + "l"), text=text, made=Name(alias + "x")
                    )
                )
        elif shape.weigh == "not at all":
            size = sql.SQL("greatest({}, %(max_row)s::int8 + 1)").format(sql.Literal(LARGEST_VALUE))
            source.extend(sql.SQL("NULL::text AS {}").format(Name(alias + "x")) for alias in weighed)
        else:
            # Text that is both weighed and sent is made once; the LIMIT keeps the planner from doing otherwise.
            size = self._size(roles, large=RECKONED)
            source.extend(
                sql.SQL("CASE WHEN pg_column_size({}) < {} THEN {} END AS {}").format(
                    Name(name),
                    sql.Literal(JSON_WEIGHED_BELOW),
                    text_of(self.types[name].kind, Name(name)),
                    Name(alias + "x"),
                )
                for alias, name in weighed.items()
            )
        return sql.SQL(
            "SELECT *, ({size})::int8 AS r FROM (SELECT *{made} FROM (SELECT {id} AS i, {source} FROM {table}"
            " WHERE {conditions} ORDER BY {id} LIMIT %(limit)s::int8) AS candidate OFFSET 0) AS text"
        ).format(
            size=size,
            made=sql.Composed(made),
            id=self.id,
            source=sql.SQL(", ").join(source),
            table=self.name,
            conditions=sql.SQL(" AND ").join(self._conditions(shape)),
        )

    def _outgrown(self, roles: Mapping[str, str]) -> sql.Composable:
        """Whether the texts of a row are larger by far than what was reckoned."""
        made = {"p": "payload", "h": "headers"}
        texts = [
            # A json payload travels as such, and of a json octets are not counted.
            sql.SQL("coalesce(octet_length({}::text), 0)::int8").format(Name(made[alias]))
            for alias, name in roles.items()
            if self._weighed(name)
        ]
        if not texts:
            return sql.SQL("false")
        # Of json that holds words and usual numbers the text is never twice as large as what is stored.
        return sql.SQL("({} > 2 * s AND s >= 0)").format(sql.SQL(" + ").join(texts))

    def _told(self, column: str, alias: str, value: sql.Composable) -> sql.Composed:
        """What is told even of a row that is too large, unless it alone makes it so."""
        kind = self.types[column].kind
        if kind not in _UNBOUNDED:
            return sql.SQL("CASE WHEN s >= 0 THEN {} END").format(value)
        return sql.SQL(
            "CASE WHEN s BETWEEN 0 AND %(max_row)s::int8 OR (s >= 0 AND octet_length({text}) <= %(max_row)s::int8)"
            " THEN {value} END"
        ).format(text=Name(alias) if kind == "bytea" else sql.SQL("{}::text").format(Name(alias)), value=value)

    def _compose_quick(self, shape: Shape) -> sql.Composed:
        columns = self.table.columns
        source: list[sql.Composable] = []
        sizes: list[sql.Composable] = []
        for alias, name in self._roles().items():
            source.append(sql.SQL("{} AS {}").format(self._typed(name), Name(alias)))
            kind = self.types[name].kind
            if kind in HEADER_TYPES:
                # The text is made once, and only of values that are not larger by far.
                source.append(
                    sql.SQL("CASE WHEN pg_column_size({column}) <= %(share)s::int8 THEN {text} END AS {made}").format(
                        column=Name(name), text=text_of(kind, Name(name)), made=Name(alias + "x")
                    )
                )
                sizes.append(
                    sql.SQL("CASE WHEN {} IS NULL THEN 0 ELSE octet_length({}) END").format(
                        Name(alias), Name(alias + "x")
                    )
                )
            elif kind not in _WEIGHTLESS:
                plain = kind in ("bytea", "text", "character varying")
                sizes.append(
                    sql.SQL("coalesce(octet_length({}), 0)" if plain else "coalesce(octet_length({}::text), 0)").format(
                        Name(alias)
                    )
                )

        def small(value: sql.Composable) -> sql.Composed:
            return sql.SQL("CASE WHEN s <= %(share)s::int8 THEN {} END").format(value)

        payload: sql.Composable = sql.SQL("p::{}").format(self._wire_kind(columns.payload))
        if self.types[columns.payload].kind == "jsonb":
            payload = sql.SQL("px")
        return sql.SQL(
            "{snapshot} UNION ALL SELECT * FROM (SELECT i::int8, {key}, {payload}, {type}, {headers}, {message_id},"
            " CASE WHEN s <= %(share)s::int8 THEN s ELSE {too_large}::int8 END{extras}"
            " FROM (SELECT *, ({size})::int8 AS s"
            " FROM (SELECT {id} AS i, {source} FROM {table} WHERE {conditions}"
            " ORDER BY {id} LIMIT %(limit)s::int8) AS candidate) AS weighed) AS wanted"
        ).format(
            snapshot=self._snapshot(),
            extras=self._extras(lambda _column, _alias, value: small(value), headers=small),
            too_large=sql.Literal(BEYOND_BOUND),
            key=small(sql.SQL("k::{}").format(self._wire_kind(columns.key))),
            payload=small(payload),
            type=sql.SQL("NULL::text") if columns.type is None else small(sql.SQL("t::text")),
            headers=sql.SQL("NULL::text") if columns.headers is None else small(sql.SQL("hx")),
            message_id=sql.SQL("NULL::text") if columns.message_id is None else small(sql.SQL("m::text")),
            size=sql.SQL(" + ").join(sizes or [sql.SQL("0")]),
            id=self.id,
            source=sql.SQL(", ").join(source),
            table=self.name,
            conditions=sql.SQL(" AND ").join(self._conditions(shape)),
        )

    def texts(self) -> frozenset[int]:
        """The positions in a row of what travels as text."""
        columns = self.table.columns
        own = {"key": columns.key, "payload": columns.payload}
        raw = {Row._fields.index(name) for name, column in own.items() if self.types[column].kind == "bytea"}
        always = {Row._fields.index(name) for name in ("key", "payload", "type", "headers", "message_id")}
        extras = {
            FIRST + number
            for number, extra in enumerate(self.extras)
            if extra.role not in ("partition", "timestamp") and self._kind(extra) != "bytea"
        }
        return frozenset(always - raw | extras)

    def _unconverted(self, query: sql.Composed) -> sql.Composed:
        """The same rows with their texts as bytes, if that is wanted."""
        if self.encoding is None:
            return query
        names = [Name(f"c{position}") for position in range(FIRST + len(self.extras))]
        texts = self.texts()
        return sql.SQL("SELECT {columns} FROM ({query}) AS everything ({names})").format(
            columns=sql.SQL(", ").join(
                sql.SQL("convert_to({}::text, {})").format(name, sql.Literal(self.encoding))
                if position in texts
                else name
                for position, name in enumerate(names)
            ),
            query=query,
            names=sql.SQL(", ").join(names),
        )

    def _roles(self) -> dict[str, str]:
        """The columns to be read, under short aliases of our own, with which no column of the table can collide."""
        columns = self.table.columns
        named = {
            "k": columns.key,
            "p": columns.payload,
            "t": columns.type,
            "h": columns.headers,
            "m": columns.message_id,
        }
        return {alias: name for alias, name in named.items() if name is not None} | self._extra_roles()

    def _snapshot(self) -> sql.Composed:
        """The row that comes before all others: the xmin of the snapshot that sees them, in place of an id."""
        return sql.SQL(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8,"
            " NULL::{key_kind}, NULL::{payload_kind}, NULL::text, NULL::text, NULL::text, {snapshot}::int8{no_extras}"
        ).format(
            key_kind=self._wire_kind(self.table.columns.key),
            payload_kind=self._wire_kind(self.table.columns.payload),
            snapshot=sql.Literal(SNAPSHOT),
            no_extras=self._no_extras(),
        )

    def _conditions(self, shape: Shape) -> list[sql.Composable]:
        conditions: list[sql.Composable] = [
            sql.SQL("{id} >= %(start)s::int8{unsent}").format(id=self.id, unsent=self._and_unsent())
        ]
        if shape.in_flight == "run":
            conditions.append(sql.SQL("({id} > %(last)s::int8 OR {id} < %(first)s::int8)").format(id=self.id))
        elif shape.in_flight == "list":
            conditions.append(
                sql.SQL("({id} > %(last)s::int8 OR {id} NOT IN (SELECT unnest(%(in_flight)s::int8[])))").format(
                    id=self.id
                )
            )
        # A subselect is hashed in every server version; `<> ALL (array)` is searched one by one.
        if shape.held_ids:
            conditions.append(sql.SQL("{id} NOT IN (SELECT unnest(%(held_ids)s::int8[]))").format(id=self.id))
        if shape.held_keys:
            raw = self.types[self.table.columns.key].kind == "bytea"
            conditions.append(
                sql.SQL("({column} IS NULL OR {key} NOT IN (SELECT unnest(%(held_keys)s::bytea[])))").format(
                    column=Name(self.table.columns.key),
                    key=sql.SQL("{}" if raw else "convert_to({}::text, {encoding})").format(
                        Name(self.table.columns.key), encoding=sql.Literal(self.encoding or "UTF8")
                    ),
                )
            )
        if not shape.all_lanes:
            conditions.append(sql.SQL("{lane} = ANY (%(owned)s::int8[])").format(lane=self._lane()))
        conditions.extend(self._matches())
        return conditions

    def _matches(self) -> list[sql.Composable]:
        column = self.table.columns.route
        condition = None if column is None else matching(self.match, Name(column))
        if column is None or condition is None:
            return []
        # What `_typed` makes of a column is no longer the column for which an index may have a condition.
        return [condition, sql.SQL("({} IS NULL OR true)").format(self._typed(column))]

    def _lane(self) -> sql.Composable:
        """The lane of a row, computed if the table does not."""
        columns = self.table.columns
        if columns.lane is not None:
            return Name(columns.lane)
        return computed_lane(columns, lanes=self.lanes)

    def _and_unsent(self) -> sql.Composable:
        unsent = self.policy.unsent()
        return sql.SQL("") if unsent is None else sql.SQL(" AND {}").format(unsent)

    def _typed(self, column: str) -> sql.Composed:
        """The column, if it still has the type that was found; else an error. Costs nothing: the planner drops it."""
        kind = self.types[column]
        return sql.SQL("coalesce({}, NULL::{})").format(Name(column), Name(kind.schema, kind.name))

    def _wire_kind(self, column: str) -> sql.SQL:
        """The type in which a key or payload travels: one whose binary form is the bytes wanted."""
        kind = self.types[column].kind
        if kind == "bytea":
            return sql.SQL("bytea")
        if kind == "json" and column == self.table.columns.payload:
            return sql.SQL("json")
        return sql.SQL("text")

    def _weighed(self, column: str) -> bool:
        """Whether small values of the column are weighed by their text."""
        return self.types[column].kind in HEADER_TYPES

    def _wire(self, column: str, alias: LiteralString) -> sql.Composable:
        kind = self._wire_kind(column)
        if self.types[column].kind == "jsonb":
            return sql.SQL("coalesce({}, {}::text)").format(Name(alias + "x"), Name(alias))
        return sql.SQL("{}::{}").format(Name(alias), kind)

    def _headers(self) -> sql.SQL:
        column = self.table.columns.headers
        if column is None:
            return sql.SQL("NULL::text")
        return sql.SQL(
            "coalesce(hx, array_to_json(h)::text)"
            if self.types[column].kind.endswith("[]")
            else "coalesce(hx, h::text)"
        )

    def _extra_roles(self) -> dict[str, str]:
        return {f"e{number}": extra.column for number, extra in enumerate(self.extras)}

    def _no_extras(self) -> sql.Composed:
        """NULLs of the types that the further columns have."""
        return sql.Composed(
            [sql.SQL(", NULL::{}").format(extra_kind(self._kind(extra), extra)) for extra in self.extras]
        )

    def _extras(
        self,
        others: Callable[[str, str, sql.Composable], sql.Composed],
        *,
        headers: Callable[[sql.Composable], sql.Composed],
    ) -> sql.Composed:
        """The further columns, each put into `headers` or, if it becomes none, into `others`."""
        parts: list[sql.Composable] = []
        for number, extra in enumerate(self.extras):
            alias = f"e{number}"
            value = extra_value(self._kind(extra), extra, Name(alias))
            # As bounded as the headers column: it may be what makes the row too large.
            parts += [sql.SQL(", "), headers(value) if extra.role == "header" else others(extra.column, alias, value)]
        return sql.Composed(parts)

    def _kind(self, extra: Extra) -> str:
        return self.types[extra.column].kind

    def _size(self, roles: Mapping[str, str], *, large: sql.SQL) -> sql.Composable:
        """Bytes of a row without fetching out-of-line values: exact but for json of which no text was made."""
        parts: list[sql.Composable] = []
        for alias, name in roles.items():
            kind = self.types[name].kind
            if kind in HEADER_TYPES:
                parts.append(
                    sql.SQL("coalesce(octet_length({text}), {large}, 0)::int8").format(
                        text=Name(alias + "x"),
                        large=large.format(column=Name(alias), least=Name(alias + "l"), expansion=EXPANSION),
                    )
                )
            elif kind in ("numeric", "citext", "character"):
                parts.append(sql.SQL("coalesce(octet_length({}::text), 0)").format(Name(alias)))
            elif kind in ("bytea", "text", "character varying"):
                parts.append(sql.SQL("coalesce(octet_length({}), 0)").format(Name(alias)))
        return sql.SQL("({})::int8").format(sql.SQL(" + ").join(parts or [sql.SQL("0")]))

    def _exact(self, roles: Mapping[str, str]) -> sql.Composable:
        """Bytes of a row, from the aliases, by what will be sent; this may fetch and decompress."""
        parts = [
            sql.SQL("coalesce(octet_length({}), 0)::int8").format(text_of(self.types[name].kind, Name(alias)))
            for alias, name in roles.items()
        ]
        return sql.SQL("({})").format(sql.SQL(" + ").join(parts))
