"""Databases in other encodings than UTF-8, and texts in them that have no form in UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outboxrelay.ports import Row, StoreError
from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.settings import relay_config
from tests.testbed.services.postgres import Database, LocalPostgres

ODD = {
    # A byte without a character.
    "WIN1252": (b"caf\xe9 \x81", "caf\u00e9 ".encode() + b"\x81"),
    # Two bytes that the encoding allows, and no table has.
    "EUC_JP": (b"\xa4\xa2 \xa9\xa1", "\u3042 ".encode() + b"\xa9\xa1"),
    # Bytes of an unknown kind.
    "SQL_ASCII": (b"caf\xe9 \xff", b"caf\xe9 \xff"),
}
"""For each encoding what is stored, and what is to be sent."""

Written = tuple[Database, bytes]


@pytest.fixture(params=ODD)
def written(request: pytest.FixtureRequest, postgres: LocalPostgres) -> Iterator[Written]:
    """Rows 1 to 5, of which 2 and 4 have an odd key, and 2 is odd altogether; and what the odd text is to become."""
    encoding: str = request.param
    database = postgres.create_database(encoding=encoding)
    database.execute(
        "create table outbox (id bigint generated always as identity primary key, aggregatetype text, aggregateid text,"
        " type text, payload text, headers json, trace text)"
    )
    raw, wanted = ODD[encoding]
    with database.connect(client_encoding=encoding) as connection:
        for row in (b"'a', 'T', '1'", b"'%b', '%b', '%b'" % (raw, raw, raw), b"'b', 'T', '3'", b"'%b', 'T', '4'" % raw):
            result = connection.pgconn.exec_(
                b"insert into outbox (aggregatetype, aggregateid, type, payload, trace) values ('order', %b, 'x%b')"
                % (row, raw)
            )
            assert result.command_tuples == 1, connection.pgconn.error_message
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'c', '5')")
    yield database, wanted
    postgres.drop_database(database)


def opened(database: Database, directory: Path) -> PostgresStore:
    columns = {"headers": "headers", "extra_headers": ({"column": "trace", "header": "trace"},)}
    store = PostgresStore(relay_config(directory, database=database, table={"columns": columns}))
    store.open()
    store.rebalance()
    if store._connection is not None and store._connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        with pytest.raises(StoreError, match="no form in UTF-8"):
            store.read(limit=100, held_keys=[], held_ids=[])
        store.open()
        store.rebalance()
    return store


def test_dv_10_an_odd_text_comes_as_it_is_and_keeps_nobody_back(written: Written, tmp_path: Path) -> None:
    """cases.md DV-10: the server refuses to read such a row, and with it all that are asked for together."""
    database, odd = written
    store = opened(database, tmp_path)
    try:

        def rows(*held: bytes) -> list[Row]:
            found = store.read(limit=100, held_keys=held, held_ids=[]).rows
            store.rewind(1)
            return found

        assert [row[:4] for row in rows()] == [
            (1, b"a", b"1", b"T"),
            (2, odd, odd, odd),
            (3, b"b", b"3", b"T"),
            (4, odd, b"4", b"T"),
            (5, b"c", b"5", None),
        ]
        assert [tuple(row)[-1] for row in rows()] == [b"x" + odd] * 4 + [None]
        assert [row.id for row in rows(odd)] == [1, 3, 5]
        assert [row.id for row in rows(b"a", odd)] == [3, 5]
        store.settle([1, 2, 3, 4, 5])
        assert rows() == []
    finally:
        store.close()
