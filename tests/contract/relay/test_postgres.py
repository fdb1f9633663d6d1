"""What is PostgreSQL's own about the store.

Covered: the reason and remedy for everything that can be wrong with server, login or table, and that no message holds a
password; column types and byte-exact payloads; odd identifiers; rows picked by route; the session's settings; the floor
under dead rows, another topic's backlog and foreign ids; the weight of large json.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outboxrelay.config import Match, RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.expressions import JSON_EXPANSION
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.question import Questions
from outboxrelay.stores.session import Connection, connect
from tests.contract.relay.reads import ids, read, refusal, tuples_read
from tests.contract.relay.settings import MakeStore, relay_config
from tests.testbed.services.certificates import Authority
from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table


def reason_of(config: RelayConfig) -> tuple[str, str]:
    error = refusal(config)
    return error.reason, error.message


def with_database(config: RelayConfig, **changes: Any) -> RelayConfig:
    return config.model_copy(update={"database": config.database.model_copy(update=changes)})


# -- what can be wrong


def test_a_wrong_password(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    (tmp_path / "password").write_text("not-the-password")
    reason, message = reason_of(config)
    assert reason == "AuthenticationFailed"
    assert f"{database.host}:{database.port}" in message
    assert database.dbname in message
    assert "public.outbox" in message
    assert "not-the-password" not in message


def test_the_password_is_read_again_at_each_connect(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    password = tmp_path / "password"
    password.write_text("old")
    store = PostgresStore(config)
    with pytest.raises(StoreError):
        store.open()
    password.write_text(database.password + "\n")
    store.open()
    store.close()


@pytest.mark.parametrize("which", ["username", "password"])
@pytest.mark.parametrize("content", [None, "", "\n"])
def test_missing_credentials(tmp_path: Path, which: str, content: str | None) -> None:
    config = relay_config(tmp_path)
    path = tmp_path / which
    path.unlink()
    if content is not None:
        path.write_text(content)
    reason, message = reason_of(config)
    assert reason == "CredentialsMissing"
    assert str(path) in message


def test_an_unknown_user(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database.as_role(user="nobody_here", password="x"))
    assert reason_of(config)[0] == "AuthenticationFailed"


def test_a_missing_database(database: Database, tmp_path: Path) -> None:
    config = with_database(relay_config(tmp_path, database=database), dbname="nowhere")
    assert reason_of(config)[0] == "DatabaseMissing"


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_unreachable_server(tmp_path: Path, host: str) -> None:
    config = with_database(relay_config(tmp_path), host=host)
    reason, message = reason_of(config)
    assert reason == "DatabaseUnreachable"
    assert f"{host}:1" in message


def test_a_certificate_of_another_authority(database: Database, tmp_path: Path) -> None:
    other = Authority().write(tmp_path / "other.crt")
    config = relay_config(tmp_path, database=database)
    tls = config.database.tls.model_copy(update={"ca_file": other})
    assert reason_of(with_database(config, tls=tls))[0] == "TlsFailed"


def test_a_ca_file_that_is_not_there(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database)
    tls = config.database.tls.model_copy(update={"ca_file": tmp_path / "missing.crt"})
    assert reason_of(with_database(config, tls=tls))[0] == "TlsFailed"


def test_a_server_without_tls(tmp_path: Path) -> None:
    with LocalPostgres(fsync=False, tls=False) as plain:
        config = relay_config(tmp_path, database=plain.superuser)
        assert reason_of(config)[0] == "TlsFailed"


def test_a_missing_table(database: Database, tmp_path: Path) -> None:
    reason, message = reason_of(relay_config(tmp_path, database=database, table={"name": "nowhere"}))
    assert reason == "TableMissing"
    assert message.startswith(f"there is no table public.nowhere in database {database.dbname} on {database.host}:")
    assert "`outboxrelay sql` prints how" in message


def test_a_view_is_no_table(database: Database, tmp_path: Path) -> None:
    database.execute("create view seen as select * from outbox")
    assert reason_of(relay_config(tmp_path, database=database, table={"name": "seen"}))[0] == "TableMissing"


@pytest.mark.parametrize("role", ["id", "key", "type", "payload", "headers", "message_id"])
def test_a_missing_column(database: Database, tmp_path: Path, role: str) -> None:
    config = relay_config(tmp_path, database=database, table={"columns": {role: "nope"}})
    reason, message = reason_of(config)
    assert reason == "ColumnMissing"
    assert "column nope" in message


def test_a_missing_route_column_matters_only_if_it_is_used(database: Database, tmp_path: Path) -> None:
    table = {"columns": {"route": "nope"}}
    store = PostgresStore(relay_config(tmp_path, database=database, table=table))
    store.open()
    store.close()
    picky = relay_config(tmp_path, database=database, table=table, match={"include": ("order",)})
    assert reason_of(picky)[0] == "ColumnMissing"


@pytest.mark.parametrize(
    ("role", "column"),
    [
        ("id", "aggregateid"),
        ("payload", "created_at"),
        ("headers", "aggregateid"),
        ("key", "payload"),
        # It would travel as the text \x6f72..., which nobody asked for.
        *((role, "raw") for role in ("type", "message_id")),
    ],
)
def test_an_unsupported_column_type(database: Database, tmp_path: Path, role: str, column: str) -> None:
    database.execute("alter table outbox add raw bytea")
    config = relay_config(tmp_path, database=database, table={"columns": {role: column}})
    reason, message = reason_of(config)
    assert reason == "ColumnUnsupported"
    assert f"column {column} has type" in message


@pytest.mark.parametrize(
    ("revoke", "remedy"),
    [
        ("revoke select on outbox from {}", "GRANT SELECT ON public.outbox"),
        ("revoke delete on outbox from {}", "GRANT DELETE ON public.outbox"),
        ("revoke usage on schema public from public, {}", "GRANT USAGE ON SCHEMA public"),
    ],
)
def test_missing_privileges_are_named_with_their_remedy(
    database: Database, tmp_path: Path, revoke: str, remedy: str
) -> None:
    role = database.relay_role()
    store = PostgresStore(relay_config(tmp_path, database=role))
    store.open()
    store.close()
    database.execute(revoke.format(role.user))
    reason, message = reason_of(relay_config(tmp_path, database=role))
    assert reason == "PermissionDenied"
    assert remedy in message


def test_privileges_on_the_columns_in_use_are_enough(database: Database, make_store: MakeStore) -> None:
    role = database.relay_role()
    database.execute(f"revoke select on outbox from {role.user}")
    database.execute(f"grant select (id, aggregateid, type, payload) on outbox to {role.user}")
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'k', '{}')")
    store = make_store(role)
    store.settle(ids(read(store)))
    assert database.execute("select count(*) from outbox") == [(0,)]


def test_a_read_only_server(database: Database, tmp_path: Path) -> None:
    role = database.relay_role()
    database.execute(f"alter role {role.user} set default_transaction_read_only = on")
    assert reason_of(relay_config(tmp_path, database=role))[0] == "ReadOnly"


# -- columns


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("bytea", b"\x00\xff\x80", b"\x00\xff\x80"),
        ("text", "caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600".encode()),
        ("varchar(100)", "caf\u00e9", "caf\u00e9".encode()),
        ("json", '{"b": "\\u0000",  "a":\t"\\ud800"}', b'{"b": "\\u0000",  "a":\t"\\ud800"}'),
        ("jsonb", '{"b":1,"a":  "\U0001f600"}', '{"a": "\U0001f600", "b": 1}'.encode()),
        ("text", "", b""),
        ("jsonb", "null", b"null"),
    ],
)
def test_dv_10_payload_bytes_are_what_the_table_holds(
    database: Database, make_store: MakeStore, kind: str, written: object, wanted: bytes
) -> None:
    database.execute(
        "create table events (id bigint generated always as identity primary key, aggregateid text, type text,"
        f" payload {kind})"
    )
    database.execute("insert into events (aggregateid, payload) values ('k', %s)", (written,))
    (row,) = read(make_store(database, table={"name": "events"})).rows
    assert row.payload == wanted


def test_dv_10_text_of_another_server_encoding_arrives_as_utf8(postgres: LocalPostgres, make_store: MakeStore) -> None:
    latin = postgres.create_database(encoding="LATIN1")
    latin.execute(
        "create table outbox (id int generated always as identity primary key, aggregateid text, payload text)"
    )
    latin.execute("insert into outbox (aggregateid, payload) values (%s, %s)", ("k\u00e9y", "caf\u00e9"))
    store = make_store(latin, table={"columns": {"type": None}})
    (row,) = read(store).rows
    assert (row.key, row.payload) == ("k\u00e9y".encode(), "caf\u00e9".encode())
    assert ids(store.read(limit=10, held_keys=["k\u00e9y".encode()], held_ids=[])) == []
    store.close()
    postgres.drop_database(latin)


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("bigint", 42, b"42"),
        ("smallint", -1, b"-1"),
        ("uuid", uuid.UUID(int=10), b"00000000-0000-0000-0000-00000000000a"),
        ("varchar(20)", "k\u00e9y", "k\u00e9y".encode()),
        ("bytea", b"\x00\xff", b"\x00\xff"),
        ("numeric", 7, b"7"),
        ("mood", "happy", b"happy"),
        ("label", "name", b"name"),
    ],
)
def test_keys_of_every_kind_can_be_read_and_held(
    database: Database, make_store: MakeStore, kind: str, written: object, wanted: bytes
) -> None:
    database.execute("create type mood as enum ('happy', 'sad')")
    database.execute("create domain label as text")
    database.execute(
        f"create table events (id bigint generated always as identity primary key, aggregateid {kind}, payload text)"
    )
    insert = "insert into events (aggregateid, payload) values (%s, 'p')"
    database.execute(insert, (written,))
    database.execute(insert, (None,))
    table = {"name": "events", "columns": {"type": None}}
    first = make_store(database, table=table)
    assert [row.key for row in read(first).rows] == [wanted, None]
    first.rewind(1)
    assert [row.key for row in first.read(limit=9, held_keys=[wanted], held_ids=[]).rows] == [None]
    first.rewind(1)
    second = make_store(database, table=table)
    first.rebalance()
    second.rebalance()
    assert sorted([*ids(read(first)), *ids(read(second))]) == [1, 2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("payload text", "payload bytea using convert_to(payload, 'UTF8')"),
        ("payload json", "payload bytea using convert_to(payload::text, 'UTF8')"),
        ("payload jsonb", "payload bytea using convert_to(payload::text, 'UTF8')"),
        ("payload jsonb", "payload text"),
        ("payload bytea", "payload text using convert_from(payload, 'UTF8')"),
        ("aggregateid text", "aggregateid bytea using convert_to(aggregateid, 'UTF8')"),
        ("aggregateid bigint", "aggregateid bytea using int8send(aggregateid)"),
        ("aggregatetype text", "aggregatetype bytea using convert_to(aggregatetype, 'UTF8')"),
        ("hdr json", "hdr bytea using convert_to(hdr::text, 'UTF8')"),
    ],
)
def test_a_column_whose_type_changes_ends_the_session(
    database: Database, make_store: MakeStore, before: str, after: str
) -> None:
    """Hard rule 6: a prepared read is planned anew without a word, and the text of a bytea is not its bytes."""
    columns = {
        "id": "bigint",
        "aggregatetype": "text",
        "aggregateid": "text",
        "type": "text",
        "payload": "text",
        "hdr": "json",
    } | dict([before.split(" ", 1)])
    database.execute(f"create table events ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
    values = {"id": "1", "aggregatetype": "'order'", "aggregateid": "'1'", "payload": "'{}'", "hdr": "'{}'"}
    database.execute(f"insert into events ({', '.join(values)}) values ({', '.join(values.values())})")
    table = {"name": "events", "columns": {"headers": "hdr"}}
    store = make_store(database, table=table, match={"exclude": ("payment",)})
    assert ids(read(store)) == [1]
    database.execute(f"alter table events alter {after.replace(' ', ' type ', 1)}")
    with pytest.raises(StoreError):
        read(store)


def test_the_lowest_and_the_highest_id_are_read(database: Database, make_store: MakeStore) -> None:
    extremes = [-(2**63), 2**63 - 1]
    for row_id in extremes:
        database.execute(
            "insert into outbox (id, aggregatetype, aggregateid, payload) overriding system value"
            " values (%s, 'o', 'k', '{}')",
            (row_id,),
        )
    store = make_store(database)
    assert ids(read(store)) == extremes
    store.settle(extremes)
    assert ids(read(store)) == []
    assert ids(read(store)) == []
    assert database.execute("select count(*) from outbox") == [(0,)]


@pytest.mark.parametrize("kind", ["smallint", "integer", "bigint"])
def test_ids_of_every_kind(database: Database, make_store: MakeStore, kind: str) -> None:
    database.execute(
        f"create table events (id {kind} generated always as identity primary key, aggregateid text, payload text)"
    )
    database.execute("insert into events (aggregateid, payload) select 'k', i::text from generate_series(1, 5) i")
    store = make_store(database, table={"name": "events", "columns": {"type": None}})
    assert ids(read(store)) == [1, 2, 3, 4, 5]
    store.settle([1, 2, 5])
    store.rewind(3)
    assert ids(read(store)) == [3, 4]


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("jsonb", '{"a": "1", "b": 2.50}', {"a": "1", "b": 2.5}),
        ("json", '{"a": "1"}', {"a": "1"}),
        ("text[]", ["a", "1", "b", None], ["a", "1", "b", None]),
        ("varchar(9)[]", ["a", "1"], ["a", "1"]),
    ],
)
def test_headers_arrive_as_json(
    database: Database, make_store: MakeStore, kind: str, written: object, wanted: object
) -> None:
    database.execute(f"alter table outbox add hdr {kind}, add message uuid")
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload, hdr, message) values ('o', 'k', '{}', %s, %s)",
        (written, uuid.UUID(int=1)),
    )
    store = make_store(database, table={"columns": {"headers": "hdr", "message_id": "message"}})
    (row,) = read(store).rows
    assert json.loads(row.headers or b"") == wanted
    assert row.message_id == b"00000000-0000-0000-0000-000000000001"


def test_odd_identifiers(database: Database, make_store: MakeStore) -> None:
    """Names that would break, or break out of, a statement built from strings."""
    schema, name = 'We"ird%s', "out box;--%(id)s"
    columns = {"id": "i%d", "key": "select", "payload": 'p"ay', "type": "s", "headers": "size", "route": "running"}
    with database.connect() as connection:
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        connection.execute(
            sql.SQL(
                "create table {} ({} bigint generated always as identity primary key,"
                " {} text, {} text, {} text, {} json, {} text)"
            ).format(
                sql.Identifier(schema, name),
                *(sql.Identifier(columns[each]) for each in ("id", "key", "payload", "type", "headers", "route")),
            )
        )
        for key in ("a", "b"):
            connection.execute(
                sql.SQL("insert into {} ({}, {}, {}, {}, {}) values ('{{}}', 'r', {}, 'p', 't')").format(
                    sql.Identifier(schema, name),
                    *(sql.Identifier(columns[each]) for each in ("headers", "route", "key", "payload", "type")),
                    sql.Literal(key),
                )
            )
    table = {"schema": schema, "name": name, "columns": columns}
    store = make_store(database, table=table, match={"include": ("r",)})
    assert ids(store.read(limit=9, held_keys=[b"a"], held_ids=[7])) == [2]
    store.settle([2])
    store.rewind(1)
    other = make_store(database, table=table, match={"include": ("r",)})
    store.rebalance()
    other.rebalance()
    assert [*ids(read(store)), *ids(read(other))] == [1]


@pytest.mark.parametrize(
    ("match", "wanted"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"include": ("order",)}, [1]),
        ({"include": ("order", "Order", "none")}, [1, 2]),
        ({"include": ("\\'%(x)s%%",)}, [5]),
        ({"exclude": ("order",)}, [2, 3, 4, 5]),
        ({"exclude": ("order", "payment'--")}, [2, 4, 5]),
        ({"exclude": ("\\'%(x)s%%", "\\")}, [1, 2, 3, 4]),
    ],
)
def test_rows_are_picked_by_route(
    database: Database, make_store: MakeStore, match: Mapping[str, object], wanted: list[int]
) -> None:
    database.execute("alter table outbox alter aggregatetype drop not null")
    for route in ("order", "Order", "payment'--", None, "\\'%(x)s%%"):
        database.execute("insert into outbox (aggregatetype, aggregateid, payload) values (%s, 'k', '{}')", (route,))
    assert ids(read(make_store(database, match=match))) == wanted


def test_rr_09_large_json_is_weighed_without_being_read(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-09: twenty rows of 900 kB that compress well must not come in one batch."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        " select 'o', i::text, jsonb_build_object('text', repeat('0123456789', 90000)) from generate_series(1, 60) i"
    )
    store = make_store(database, tuning={"batch_bytes": 1 << 20})
    weights = []
    while (batch := read(store)).rows:
        weights.append(sum(len(row.payload or b"") for row in batch.rows))
        store.settle(ids(batch))
    assert len(weights) > 5
    assert max(weights) < 16 << 20


@pytest.mark.parametrize("method", ["pglz", "lz4"])
def test_rr_09_the_best_compression_does_not_break_the_byte_bound(
    database: Database, make_store: MakeStore, method: str
) -> None:
    """cases.md RR-09: two megabytes of text in eight kilobytes, and more of it in one large row."""
    database.execute(f"alter table outbox alter payload set compression {method}")
    for length, rows in ((2_000_000, 40), (30_000_000, 3)):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload)"
            f" select 'o', i::text, jsonb_build_object('text', repeat('x', {length})) from generate_series(1, {rows}) i"
        )
    store = make_store(database, tuning={"batch_bytes": 8 << 20, "max_row_bytes": 16 << 20})
    total = 0
    while (batch := read(store, limit=5000)).rows:
        assert sum(len(row.payload or b"") for row in batch.rows) < (8 << 20) + 2_100_000
        total += len(batch.rows)
        store.settle(ids(batch))
    assert total == 43


def test_a_sudden_growth_of_the_rows_stays_within_the_byte_bound(database: Database, make_store: MakeStore) -> None:
    database.execute(
        "create table events (id bigint generated always as identity primary key, aggregateid text, payload bytea)"
    )
    database.execute(
        "insert into events (aggregateid, payload) select 'k', convert_to(repeat('x', i), 'UTF8')"
        " from unnest(array_fill(300, array[2000]) || array_fill(900000, array[40])) i"
    )
    tuning = {"batch_rows": 5000, "batch_bytes": 1 << 20}
    store = make_store(database, table={"name": "events", "columns": {"type": None}}, tuning=tuning)
    total = 0
    while (batch := read(store, limit=5000)).rows:
        assert sum(len(row.payload or b"") for row in batch.rows) < (1 << 20) + 900_000
        total += len(batch.rows)
        store.settle(ids(batch))
    assert total == 2040


def test_a_row_that_only_seems_too_large_is_fetched(database: Database, make_store: MakeStore) -> None:
    """Compressed json is reckoned high; its real size decides whether it can be sent."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload) select 'o', 'k', jsonb_build_object('text', text)"
        " from (select string_agg(repeat(md5(i::text), 2), '') as text from generate_series(1, 800) i) as made"
    )
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('o', 'k', '{}')")
    ((stored, size),) = database.execute("select pg_column_size(payload), length(payload::text) from outbox limit 1")
    bound = 64 * 1024
    assert size < bound < JSON_EXPANSION["pglz"] * stored
    store = make_store(database, tuning={"max_row_bytes": bound})
    row, _ = read(store).rows
    assert len(row.payload or b"") == size
    assert bound > row.size >= size


def test_rr_09_numbers_that_are_longer_as_text_are_weighed_by_it(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-09: {"amount": 1e100000} is stored in some thirty bytes."""
    database.execute("alter table outbox add hdr jsonb")
    for column in ("payload", "hdr"):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload, hdr)"
            " select 'o', 'k', '{}', '{}' from generate_series(1, 40)"
        )
        database.execute(f"update outbox set {column} = '{{\"amount\": 1e100000}}'")
        table = {"columns": {"headers": "hdr"}}
        store = make_store(database, table=table, tuning={"batch_bytes": 1 << 20})
        batch = read(store).rows
        assert 1 << 20 <= sum(len(row.payload or b"") + len(row.headers or b"") for row in batch) < (1 << 20) + 100_100
        store.close()
        database.execute("delete from outbox")


# -- the session


def test_dv_08_nothing_is_set_in_a_session_that_is_a_poolers(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting would stay for the application that is given the server session next."""
    asked: list[str] = []
    execute = Connection.execute

    def listen(self: Connection, query: Any, *rest: Any, **options: Any) -> Any:
        asked.append(query if isinstance(query, str) else query.as_string(self))
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(Connection, "execute", listen)
    connect(relay_config(tmp_path, database=database)).close()
    assert any("set_config" in each for each in asked)
    asked.clear()
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
    with pytest.raises(StoreError, match="pooler"):
        connect(relay_config(tmp_path, database=database))
    assert asked
    assert not any("set_config" in each for each in asked)


def test_settings_of_the_role_do_not_change_what_the_relay_does(database: Database, tmp_path: Path) -> None:
    role = database.relay_role()
    for setting in ("bytea_output = 'escape'", "default_transaction_isolation = 'serializable'"):
        database.execute(f"alter role {role.user} set {setting}")
    database.execute(f"alter role {role.user} set idle_session_timeout = '1s'")
    with connect(relay_config(tmp_path, database=role)) as connection:
        for name, value in (
            ("bytea_output", "hex"),
            ("transaction_isolation", "read committed"),
            ("idle_session_timeout", "0"),
        ):
            assert connection.execute("select current_setting(%s)", (name,)).fetchone() == (value,), name


def test_rr_06_the_session_says_who_it_is_and_leaves_nothing_open(database: Database, make_store: MakeStore) -> None:
    """cases.md RR-06 and hard rule 5."""
    database.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'k', '{}')")
    store = make_store(database)
    query = (
        "select state, xact_start from pg_stat_activity where application_name = 'outboxrelay/orders-db-orders-0a1b2c'"
    )
    store.settle(ids(read(store)))
    assert database.execute(query) == [("idle", None)]
    assert ids(read(store)) == []
    assert database.execute(query) == [("idle", None)]


def test_the_session_notices_a_dead_peer_from_both_ends(database: Database, tmp_path: Path) -> None:
    with connect(relay_config(tmp_path, database=database)) as connection:
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"):
            (value,) = connection.execute("select current_setting(%s)", (name,)).fetchone() or ("0",)
            assert value not in ("0", "7200"), name
        assert int(connection.info.get_parameters()["tcp_user_timeout"]) > 0
        assert connection.info.get_parameters()["keepalives_idle"] == "5"


def test_another_pair_of_the_same_resource_is_a_conflict(database: Database, tmp_path: Path) -> None:
    """Two entries of spec.databases may reach one table; pods of the two pairs read by different rules."""
    fill(database, 4, route="order")
    fill(database, 4, route="payment")
    first = relay_config(tmp_path, database=database, match={"include": ("order",)})
    other = first.model_copy(
        update={
            "pair": first.pair.model_copy(update={"name": "orders-alias-orders-0a1b2c", "database": "alias"}),
            "match": Match(include=("payment",)),
        }
    )
    stores = [PostgresStore(first), PostgresStore(other), PostgresStore(first)]
    try:
        for store in stores:
            store.open()
        stores[0].rebalance()
        assert ids(read(stores[0])) == [1, 2, 3, 4]
        stores[2].rebalance()
        assert stores[2].members() == 2
        with pytest.raises(StoreError) as caught:
            stores[1].rebalance()
        assert caught.value.reason == "Conflict"
    finally:
        for store in stores:
            store.close()


# -- the floor


def fill(database: Database, rows: int, *, route: str = "order") -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, payload)"
        f" select '{route}', (i %% 100)::text, '{{}}' from generate_series(1, {rows}) i".replace("%%", "%")
    )


def test_dead_rows_that_cannot_be_vacuumed_are_not_read_again(database: Database, make_store: MakeStore) -> None:
    database.execute("alter table outbox set (autovacuum_enabled = off)")
    with database.connect(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from outbox")
        store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
        fill(database, 5000)
        while (batch := read(store)).rows:
            store.settle(ids(batch))
        read(store)
        fill(database, 1)
        assert tuples_read(store, database, lambda: read(store)) < 1500
        store.rewind(1)
        assert tuples_read(store, database, lambda: read(store)) >= 5000


def test_the_floor_waits_for_transactions_that_may_still_write_below_it(
    database: Database, make_store: MakeStore
) -> None:
    """Hard rule 2, and why the snapshot's xmax will not do: the writer's xid is above it."""
    with database.connect(autocommit=False) as writer:
        writer.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'late', '{}')")
        store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
        for _ in range(5):
            fill(database, 50)
            while (batch := read(store, limit=7)).rows:
                assert 1 not in ids(batch)
                store.settle(ids(batch))
        writer.commit()
    assert ids(read(store)) == [1]


@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize("kind", ["plain", "partitioned", "inherited"])
def test_the_floor_waits_for_a_writer_that_has_drawn_an_id_and_has_no_xid_yet(
    make_store: MakeStore, kind: str, prepares: bool
) -> None:
    """cases.md RC-01, the narrowest form: a trigger before the insert, a slow default or a COPY makes it long."""
    with LocalPostgres(fsync=False, settings={"max_prepared_transactions": "4"}) as server:
        database = server.create_database("late")
        written = "outbox"
        if kind == "partitioned":
            database.execute(
                "create table outbox (id bigint generated always as identity primary key, aggregatetype text,"
                " aggregateid text, type text, payload jsonb) partition by range (id)"
            )
            database.execute("create table outbox_low partition of outbox for values from (minvalue) to (maxvalue)")
        else:
            create_outbox_table(database)
        database.execute(
            "create function wait() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock_shared(42); return new; end $$"
        )
        if kind == "inherited":
            database.execute("create table newer () inherits (outbox)")
            database.execute(
                "alter table newer alter id set default nextval(pg_get_serial_sequence('outbox', 'id')),"
                " alter id set not null"
            )
            written = "newer"
        database.execute(
            f"create trigger wait before insert on {written} for each row when (new.type = 'slow')"
            " execute function wait()"
        )
        # The first id of 33 gives its transaction an xid at once, since the sequence then writes to the log.
        fill(database, 3)
        store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
        with database.connect() as gate, database.connect(autocommit=False) as writer:
            gate.execute("select pg_advisory_lock(42)")
            with ThreadPoolExecutor() as pool:
                inserting = pool.submit(
                    writer.execute,
                    f"insert into {written} (aggregatetype, aggregateid, type, payload)"
                    " values ('o', 'k', 'slow', '{}')".encode(),
                )
                eventually(
                    lambda: gate.execute("select 1 from pg_locks where locktype = 'advisory' and not granted").rowcount,
                    seconds=30,
                    what="the writer at its trigger",
                )
                relay_some(database, store)
                gate.execute("select pg_advisory_unlock(42)")
                inserting.result(timeout=30)
            relay_some(database, store)
            if prepares:
                writer.execute("prepare transaction 'late'")
                relay_some(database, store)
                gate.execute("commit prepared 'late'")
            else:
                writer.commit()
        assert ids(read(store)) == [4]


def test_an_idle_relay_that_waits_for_a_writer_uses_no_xids_up(database: Database, make_store: MakeStore) -> None:
    store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
    with database.connect(autocommit=False) as writer:
        writer.execute("insert into outbox (aggregatetype, aggregateid, payload) values ('order', 'late', '{}')")
        fill(database, 3)
        store.settle(ids(read(store)))
        read(store)
        before = database.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        for _ in range(20):
            assert not read(store).rows
        assert database.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint") == before


def test_a_login_that_may_not_see_other_sessions_still_sends_rows(database: Database, tmp_path: Path) -> None:
    with LocalPostgres(fsync=False) as server:
        hidden = server.create_database("hidden")
        create_outbox_table(hidden)
        for view in ("pg_stat_activity", "pg_prepared_xacts", "pg_replication_slots"):
            with server.superuser.connect(dbname="hidden") as admin:
                admin.execute(f"revoke select on {view} from public".encode())
        fill(hidden, 2)
        store = PostgresStore(relay_config(tmp_path, database=hidden.relay_role()))
        store.open()
        try:
            assert len(store.rebalance()) == 4
            assert ids(read(store)) == [1, 2]
        finally:
            store.close()


def relay_some(database: Database, store: PostgresStore) -> None:
    """Rows that come and go while the writer of row 4 has not ended."""
    for _ in range(4):
        fill(database, 20)
        while (batch := read(store, limit=7)).rows:
            assert 4 not in ids(batch)
            store.settle(ids(batch))
    read(store)


def ticking() -> Callable[[], float]:
    """A clock that moves on by a second whenever it is looked at."""
    ticks = iter(range(1_000_000))
    return lambda: float(next(ticks))


def test_another_topics_backlog_is_walked_over_once(database: Database, make_store: MakeStore) -> None:
    fill(database, 60_000, route="payment")
    store = make_store(database, clock=ticking(), match={"include": ("order",)}, tuning={"full_sweep_seconds": 1e6})
    for _ in range(4):
        read(store)
    assert tuples_read(store, database, lambda: read(store)) < 1000
    fill(database, 1)
    assert len(read(store).rows) == 1


def test_a_full_sweep_finds_what_lies_below_the_floor(database: Database, make_store: MakeStore) -> None:
    """Ids of somebody's own making; nothing else gets there."""
    now = 0.0
    store = make_store(database, clock=lambda: now, tuning={"full_sweep_seconds": 60.0})
    for _ in range(3):
        fill(database, 20)
        store.settle(ids(read(store)))
    read(store)
    database.execute(
        "insert into outbox (id, aggregatetype, aggregateid, payload) overriding system value"
        " values (2, 'o', 'k', '{}')"
    )
    assert ids(read(store)) == []
    now = 61.0
    assert ids(read(store)) == [2]


def test_sweeps_over_many_dead_rows_are_rarer_also_while_rows_keep_coming(
    database: Database, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, answer = 0.0, Questions.answer

    def slow(questions: Questions) -> Any:
        nonlocal now
        now += 10.0
        return answer(questions)

    fill(database, 20)
    store = make_store(database, clock=lambda: now, tuning={"full_sweep_seconds": 60.0})
    for _ in range(3):
        store.settle(ids(read(store, limit=3)))
        now += 1.0
    now = 100.0
    with monkeypatch.context() as patched:
        patched.setattr(Questions, "answer", slow)
        assert ids(read(store, limit=3)) == [10, 11, 12]
    database.execute(
        "insert into outbox (id, aggregatetype, aggregateid, payload) overriding system value"
        " values (2, 'o', 'k', '{}')"
    )
    now = 180.0
    assert ids(read(store, limit=3)) == [10, 11, 12]
    now = 299.0
    assert ids(read(store, limit=3)) == [10, 11, 12]
    now = 301.0
    assert ids(read(store, limit=3)) == [2, 10, 11]


def test_what_the_byte_bound_cuts_off_is_never_taken_for_the_end(database: Database, make_store: MakeStore) -> None:
    """Reckoned sizes of compressed json cut the batch; the exact ones, which are smaller, must not say it was all."""
    store = make_store(database, clock=ticking(), tuning={"full_sweep_seconds": 1e6})
    large = "to_jsonb((select string_agg(md5(i::text), '') || repeat('x', 2000000) from generate_series(1, 80000) i))"
    for key in ("large", "larger"):
        database.execute(f"insert into outbox (aggregatetype, aggregateid, payload) select 'order', '{key}', {large}")
    fill(database, 50)
    seen: list[int] = []
    for _ in range(6):
        batch = read(store)
        assert not (batch.complete and len(seen) + len(batch.rows) < 52)
        store.settle(ids(batch))
        seen += ids(batch)
        fill(database, 1)
    assert seen[:52] == list(range(1, 53))
