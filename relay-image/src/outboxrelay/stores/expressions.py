"""What is read of single columns: how large a value is, its text, and the form in which it travels.

Pure, like the statements that are made of these parts: nothing here knows a table.
"""

from __future__ import annotations

from typing import Final

from psycopg import sql

from outboxrelay.extras import Extra
from outboxrelay.stores.columns import Name
from outboxrelay.stores.mark import WITH_ZONE

JSON_EXPANSION: Final = {"pglz": 91, "lz4": 255}
"""The most bytes of text that one stored byte of compressed json or jsonb can become.

Only the stored size of a large value can be had without decompressing it. A guess that is too high makes batches of
such rows small; one that is too low lets them outgrow the pod.
"""


EXPANSION: Final = sql.SQL(" ").join(
    sql.SQL("WHEN {} THEN {}").format(sql.Literal(method), sql.Literal(factor))
    for method, factor in JSON_EXPANSION.items()
)
"""The same, as the branches of a CASE."""

RECKONED: Final = sql.SQL(
    "pg_column_size({column})::int8 * CASE pg_column_compression({column}) {expansion} ELSE 1 END"
)
AT_LEAST: Final = sql.SQL("{least}")
"""The sizes of json and arrays of which no text was made."""

_LENGTH_OF_NUMBERS: Final = sql.SQL(
    "(SELECT coalesce(sum(greatest((get_byte(n, 2) * 256 + get_byte(n, 3) + 32768) %% 65536 - 32768, 0) * 4"
    " + get_byte(n, 6) * 256 + get_byte(n, 7)), 0) FROM (SELECT numeric_send(number::numeric) AS n FROM"
    " jsonb_array_elements(jsonb_path_query_array({column}, 'strict $.** ? (@.type() == \"number\")')) AS number"
    " OFFSET 0) AS numbers)::int8"
)
"""Digits of all the numbers in a jsonb, but for some of each: those of the groups of four before the point, by the
weight of the first, and those behind it. See numeric_send in the server's source: four int16, of which these are the
second and the last."""


def at_least(kind: str, column: Name) -> sql.Composable:
    """Bytes that the text of a json or an array has at least, had without making it.

    If this is within a bound, the text is within some thirty times the bound: stored, uncompressed, a value has at most
    four times the bytes of its text (small numbers), and the text has at most six times those (control characters),
    but for numbers and NULL elements, which are counted.
    """
    if kind == "json":
        return sql.SQL("0::int8")
    if kind == "jsonb":
        plain, counted = sql.SQL("{} #> '{{}}'").format(column), _LENGTH_OF_NUMBERS.format(column=column)
    else:
        plain = sql.SQL("array_cat({}::text[], '{{}}'::text[])").format(column)
        counted = sql.SQL("3 * cardinality({})::int8").format(column)
    return sql.SQL(
        "(SELECT CASE WHEN plain / 4 > %(max_row)s::int8 THEN plain / 4 ELSE {counted} END"
        " FROM (SELECT pg_column_size({plain})::int8 AS plain OFFSET 0) AS stored)"
    ).format(plain=plain, counted=counted)


def whole(value: sql.Composable) -> sql.Composed:
    """What is read only of rows that are not too large."""
    return sql.SQL("CASE WHEN s BETWEEN 0 AND %(max_row)s::int8 THEN {} END").format(value)


def text_of(kind: str, column: Name) -> sql.Composable:
    """What a column's octets are counted of."""
    if kind == "bytea":
        return column
    return sql.SQL("array_to_json({})::text" if kind.endswith("[]") else "{}::text").format(column)


def extra_kind(kind: str, extra: Extra) -> sql.SQL:
    """The type in which a further column travels."""
    if extra.role in ("partition", "timestamp"):
        return sql.SQL("int8")
    return sql.SQL("bytea" if kind == "bytea" else "text")


def _rfc3339(kind: str, column: Name) -> sql.Composable:
    """A moment in UTC as RFC 3339 has it; NULL for one that is infinite, or not well within its four digits of a year.

    See https://www.rfc-editor.org/rfc/rfc3339#section-5.6.
    """
    zone = sql.SQL(" AT TIME ZONE 'UTC'" if kind == WITH_ZONE else "")
    return sql.SQL(
        "CASE WHEN {column} >= '0001-01-02' AND {column} < '9999-12-31'"
        """ THEN to_char({column}{zone}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END"""
    ).format(column=column, zone=zone)


def extra_value(kind: str, extra: Extra, column: Name) -> sql.Composable:
    """A further column as it travels: a moment as Kafka has it, in milliseconds since 1970 and not before."""
    if extra.role == "timestamp":
        # A single infinite moment must not fail the whole read.
        return sql.SQL(
            "CASE WHEN isfinite({column}) AND extract(epoch FROM {column}) >= 0"
            " THEN floor(extract(epoch FROM {column}) * 1000)::int8 END"
        ).format(column=column)
    if extra.role == "time":
        return _rfc3339(kind, column)
    return sql.SQL("{}::{}").format(column, extra_kind(kind, extra))
