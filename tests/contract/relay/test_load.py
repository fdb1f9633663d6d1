"""The rows of `outboxrelay bench` against PostgreSQL: a relay takes each of them, whatever types and policy are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.load import Rows, TableWriter, look
from tests.contract.relay.reads import read
from tests.contract.relay.settings import POLICIES, MakeStore, prepare_policy, relay_config
from tests.testbed.services.postgres import Database

IDENTITY = "id bigint generated always as identity primary key"


def write(config: RelayConfig, rows: Rows, *keys: int) -> None:
    writer = TableWriter(config, look(config, rows, rng=random.SystemRandom()))
    try:
        writer.write(keys)
    finally:
        writer.close()


@pytest.mark.parametrize("payload", ["text", "varchar", "bytea", "json", "jsonb"])
@pytest.mark.parametrize("size", [16, 300, 100_000])
def test_a_payload_has_the_size_that_is_asked_for(
    database: Database, make_store: MakeStore, tmp_path: Path, payload: str, size: int
) -> None:
    database.execute(f"create table events ({IDENTITY}, aggregatetype text, aggregateid text, type text, p {payload})")
    table = {"name": "events", "columns": {"payload": "p"}}
    write(relay_config(tmp_path, database=database, table=table), Rows(payload_bytes=size), 1, 2, 1)
    rows = read(make_store(database, table=table)).rows
    assert [len(row.payload or b"") for row in rows] == [size] * 3
    assert [row.key for row in rows] == [b"bench-1", b"bench-2", b"bench-1"]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("text", b"bench-7"),
        ("varchar(20)", b"bench-7"),
        ("bigint", b"7"),
        ("smallint", b"7"),
        ("numeric", b"7"),
        ("uuid", b"00000000-0000-0000-0000-000000000007"),
        ("bytea", b"\x00\x00\x00\x00\x00\x00\x00\x07"),
    ],
)
def test_a_key_of_each_kind(
    database: Database, make_store: MakeStore, tmp_path: Path, kind: str, wanted: bytes
) -> None:
    database.execute(
        f"create table events ({IDENTITY}, aggregatetype text, aggregateid {kind}, type text, payload text)"
    )
    write(relay_config(tmp_path, database=database, table={"name": "events"}), Rows(), 7)
    (row,) = read(make_store(database, table={"name": "events"})).rows
    assert row.key == wanted


@pytest.mark.parametrize("policy", POLICIES)
def test_a_row_is_one_that_waits(database: Database, make_store: MakeStore, tmp_path: Path, policy: str) -> None:
    unsent = prepare_policy(database, policy)
    config = relay_config(tmp_path, database=database, retention=POLICIES[policy])
    write(config, Rows(), 1, 2)
    assert database.execute(f"select count(*) from outbox where {unsent}") == [(2,)]
    assert len(read(make_store(database, retention=POLICIES[policy])).rows) == 2


def test_columns_that_are_named_are_filled_and_others_keep_their_defaults(
    database: Database, make_store: MakeStore, tmp_path: Path
) -> None:
    database.execute(
        f'create table "o%d" ({IDENTITY}, aggregatetype text not null, aggregateid text not null, type text not null,'
        " payload jsonb not null, headers jsonb not null, mid uuid not null, at timestamptz not null,"
        " stamp timestamptz not null default '2020-01-01', goal text not null,"
        " twice text generated always as (goal || goal) stored, other text not null default 'kept')"
    )
    columns = {"headers": "headers", "message_id": "mid", "created_at": "at", "topic": "goal"}
    table = {"name": "o%d", "columns": columns}
    config = relay_config(tmp_path, database=database, table=table, match={"include": ("refund",)}, topic="${topic}")
    write(config, Rows(topic="orders"), 1, 2)
    found = database.execute(
        "select aggregatetype, type, headers::text, goal, twice, other, stamp < at, at > now() - interval '1 minute'"
        ' from "o%d"'
    )
    assert found == [("refund", "Bench", "{}", "orders", "ordersorders", "kept", True, True)] * 2
    rows = read(make_store(database, table=table, match={"include": ("refund",)}, topic="${topic}")).rows
    assert len({row.message_id for row in rows}) == 2


@pytest.mark.parametrize("more", ["tenant int not null", "tenant filled"])
def test_a_column_that_nobody_fills_is_named_before_anything_is_written(
    database: Database, tmp_path: Path, more: str
) -> None:
    database.execute("create domain filled as text not null")
    database.execute(f"alter table outbox add {more}")
    with pytest.raises(StoreError, match=r"public\.outbox.* and tenant must not be NULL"):
        write(relay_config(tmp_path, database=database), Rows(), 1)


def test_an_id_without_a_default_is_named(database: Database, tmp_path: Path) -> None:
    database.execute("create table events (id bigint primary key, aggregatetype text, aggregateid text, payload text)")
    with pytest.raises(StoreError, match="and id must not be NULL"):
        write(relay_config(tmp_path, database=database, table=table_without_type("events")), Rows(), 1)


def table_without_type(name: str) -> dict[str, Any]:
    return {"name": name, "columns": {"type": None}}


def test_keys_of_an_enum_are_refused(database: Database, tmp_path: Path) -> None:
    database.execute("create type mood as enum ('happy', 'sad')")
    database.execute(f"create table events ({IDENTITY}, aggregatetype text, aggregateid mood, payload text)")
    with pytest.raises(StoreError, match=r"no keys of an enum.*column aggregateid"):
        write(relay_config(tmp_path, database=database, table=table_without_type("events")), Rows(), 1)


def test_what_does_not_fit_is_told_without_a_value(database: Database, tmp_path: Path) -> None:
    database.execute("alter table outbox add check (aggregatetype in ('order', 'refund'))")
    with pytest.raises(StoreError) as refused:
        write(relay_config(tmp_path, database=database), Rows(route="secret-route"), 1)
    assert "takes no row of the bench" in refused.value.message
    assert "23514" in refused.value.message
    assert "secret-route" not in refused.value.message
    assert database.execute("select count(*) from outbox") == [(0,)]


def test_the_right_to_write_is_asked_for(database: Database, tmp_path: Path) -> None:
    role = database.relay_role()
    config = relay_config(tmp_path, database=role)
    with pytest.raises(StoreError, match=rf"user {role.user} may not write rows .*GRANT INSERT") as refused:
        write(config, Rows(), 1)
    assert refused.value.reason == "PermissionDenied"
    database.execute(f"grant insert on outbox to {role.user}")
    write(config, Rows(), 1)
    assert database.execute("select count(*) from outbox") == [(1,)]


def test_commits_are_those_of_an_application(database: Database, tmp_path: Path) -> None:
    """The relay's own sessions commit removals asynchronously; a bench that did so would tell of commits too quick."""
    database.execute("create table seen (how text)")
    database.execute(
        "create function note() returns trigger language plpgsql as"
        " $$ begin insert into seen values (current_setting('synchronous_commit')); return null; end $$"
    )
    database.execute("create trigger noting after insert on outbox execute function note()")
    write(relay_config(tmp_path, database=database), Rows(), 1)
    assert database.execute("select how from seen") == [("on",)]
