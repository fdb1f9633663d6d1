"""Outbox tables in the layout of Debezium's event router, with one more column for our order, and their rows.

The rows hold what is easily changed on the way: spaces and key order in json, numbers as they are written, text beyond
ASCII, empty and missing keys and payloads. Their ids are fixed, so that records can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HEADERS = (("type", "eventType"), ("tenant", "tenant"), ("attempt", "attempt"))
"""Columns that become headers, and under which names: table.fields.additional.placement."""


@dataclass(frozen=True)
class Table:
    """`rows` are pairs of key and payload, as literals that PostgreSQL casts to the column's type."""

    name: str
    key: str
    payload: str
    rows: tuple[tuple[str | None, str | None], ...]

    def statements(self) -> list[tuple[str, list[Any]]]:
        """What creates and fills the table."""
        made: list[tuple[str, list[Any]]] = [
            (
                f"create table {self.name} (seq bigint generated always as identity unique, id uuid primary key,"
                f" aggregatetype varchar(255) not null, aggregateid {self.key}, type varchar(255), payload"
                f" {self.payload}, tenant text, attempt integer)",
                [],
            )
        ]
        for number, (key, payload) in enumerate(self.rows, start=1):
            made.append(
                (
                    f"insert into {self.name} (id, aggregatetype, aggregateid, type, payload, tenant, attempt) values"
                    f" (%s, %s, %s::{self.key}, %s, %s::{self.payload}, %s, %s)",
                    [
                        f"00000000-0000-4000-8000-{number:012d}",
                        "order" if number % 2 else "payment",
                        key,
                        "OrderPlaced" if number % 3 else "B\u00e4ume",
                        payload,
                        None if number % 4 == 0 else "te\u00f1ant",
                        None if number % 5 == 0 else number * 10,
                    ],
                )
            )
        return made


_DOCUMENTS = (
    '{"b": 1.10, "a": {"z": [1, 2,   3], "y": null}, "text": "\u00e4\u20ac\U0001f600", "big": 12345678901234567890.50}',
    '{"a":1,"a":2}',
    "[]",
    '"text"',
    "12.30",
    "null",
    None,
)
_TEXTS = ("plain", "", " ", '{"x" : 1.0}', "\u00e4\u20ac\U0001f600\n\t", None)

TABLES = (
    Table("of_jsonb", "varchar(255)", "jsonb", tuple((f"k\u00e9y-{n}", each) for n, each in enumerate(_DOCUMENTS))),
    Table("of_json", "text", "json", tuple((None if n == 3 else "", each) for n, each in enumerate(_DOCUMENTS))),
    Table(
        "of_text",
        "uuid",
        "text",
        tuple((f"00000000-0000-4000-8000-00000000ABC{n}", each) for n, each in enumerate(_TEXTS)),
    ),
    Table("of_varchar", "bigint", "varchar", tuple((str(-9 * 10**18 + n), each) for n, each in enumerate(_TEXTS))),
    Table("of_bytea", "integer", "bytea", (("1", "\\x00ff0a"), ("-2", "\\x"), (None, None), ("3", "\\x7b7d"))),
)
