"""`outboxrelay sql` against PostgreSQL: what it prints is enough, is no more than is needed, and takes nothing away.

Covered: a new table, each thing that an existing one may lack, partitions, odd names, roles; that running the script
leaves nothing to print; that exactly the printed grants carry rows (cases.md section H, least privilege).
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outboxrelay.config import Columns, RelayConfig
from outboxrelay.findings import Finding, Findings
from outboxrelay.ports import StoreError
from outboxrelay.stores import ddl, setup
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from tests.contract.relay.settings import relay_config
from tests.testbed.services.postgres import Database

ALL_COLUMNS = {"headers": "headers", "created_at": "created_at", "message_id": "message_id"}


def statements(script: str) -> list[str]:
    """The statements of a script, without its comments."""
    text = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    return [each.strip() for each in text.split(";\n") if each.strip()]


def run(database: Database, script: str) -> None:
    """As its owner runs it: statement by statement, since CONCURRENTLY allows no transaction."""
    for statement in statements(script):
        database.execute(statement)


def config_of(directory: Path, database: Database, **changes: Any) -> RelayConfig:
    return relay_config(directory, database=database, **changes)


def new_login(database: Database) -> Database:
    """A login that may do nothing that not everybody may."""
    user, password = f"relay_{secrets.token_hex(4)}", secrets.token_urlsafe(12)
    database.execute(f"create role {user} login password '{password}'")
    return database.as_role(user=user, password=password)


def run_what_is_printed(
    database: Database, directory: Path, *, role: Database, retention: dict[str, Any], new: bool
) -> None:
    """Give a role a table for a retention policy: a new one, or what the one that is there lacks."""
    if new:
        database.execute("drop table outbox")
        run(database, setup.for_new_table(config_of(directory, role, retention=retention), role=role.user))
    else:
        run(database, setup.for_what_is_missing(config_of(directory, database, retention=retention), role=role.user))


def carry(config: RelayConfig) -> list[int]:
    """What a relay does with the table: reads and settles everything."""
    store = PostgresStore(config)
    store.open()
    try:
        store.rebalance()
        ids = [row.id for row in store.read(limit=100, held_keys=[], held_ids=[]).rows]
        store.settle(ids)
        return ids
    finally:
        store.close()


def insert(database: Database, table: str = "outbox") -> None:
    database.execute(f"insert into {table} (aggregatetype, aggregateid, payload) values ('order', 'k', '{{}}')")


def test_the_script_for_a_new_table_is_all_that_a_relay_needs(database: Database, tmp_path: Path) -> None:
    role = new_login(database)
    config = config_of(tmp_path, role, table={"schema": "shop", "name": "events", "columns": ALL_COLUMNS})
    script = setup.for_new_table(config, role=role.user)
    assert script == setup.for_new_table(config, role=role.user)
    run(database, script)
    insert(database, "shop.events")
    assert carry(config) == [1]
    assert statements(setup.for_what_is_missing(config, role=role.user)) == []


def test_se_exactly_the_printed_grants_are_enough_and_none_is_too_much(database: Database, tmp_path: Path) -> None:
    """cases.md section H: the relay's user can do nothing but what its rows need."""
    role = new_login(database)
    config = config_of(tmp_path, role)
    run(database, setup.for_what_is_missing(config_of(tmp_path, database), role=role.user))
    insert(database)
    assert carry(config_of(tmp_path, role)) == [1]
    granted = database.execute(
        "select distinct privilege_type from information_schema.role_table_grants where grantee = %s", (role.user,)
    )
    assert {kind for (kind,) in granted} == {"SELECT", "DELETE"}
    for privilege in ("select", "delete"):
        database.execute(f"revoke {privilege} on outbox from {role.user}")
        with pytest.raises(Exception, match="GRANT"):
            carry(config)
        database.execute(f"grant {privilege} on outbox to {role.user}")
    for forbidden in ("truncate outbox", "update outbox set type = 'x'", "create table public.mine (i int)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute(forbidden)


def test_se_types_of_other_schemas_need_a_grant_that_is_printed(database: Database, tmp_path: Path) -> None:
    """cases.md section H: an extension may be anywhere, and so may an enum."""
    database.execute("create schema kinds")
    database.execute("create extension citext schema kinds")
    database.execute("create type kinds.mood as enum ('good')")
    database.execute("alter table outbox alter aggregateid type kinds.citext, alter type type kinds.mood using null")
    role = new_login(database)
    config = config_of(tmp_path, role)
    script = setup.for_what_is_missing(config_of(tmp_path, database), role=role.user)
    assert script.count("GRANT USAGE ON SCHEMA kinds TO") == 1
    run(database, script)
    insert(database)
    assert carry(config_of(tmp_path, role)) == [1]
    database.execute(f"revoke usage on schema kinds from {role.user}")
    with pytest.raises(StoreError, match="GRANT USAGE ON SCHEMA kinds"):
        carry(config)


def test_se_schemas_in_which_everybody_may_create_functions_are_told_of(database: Database, tmp_path: Path) -> None:
    """cases.md section H: a function that fits the arguments better is called instead of the server's own."""
    config = config_of(tmp_path, database)
    assert not [each for each in examine_database(config) if each.subject == "search path"]
    database.execute("grant create on schema public to public")
    (found,) = [each for each in examine_database(config) if each.subject == "search path"]
    assert (found.level, found.statements) == ("warning", ())
    assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in found.remedy
    database.execute(f"alter role {database.user} set search_path = ''")
    assert not [each for each in examine_database(config) if each.subject == "search path"]
    insert(database, "public.outbox")
    assert carry(config) == [1]


LACKING = {
    "columns": "create table outbox (id bigint generated always as identity primary key, aggregatetype text)",
    "id": "create table outbox (aggregatetype text, aggregateid text, type text, payload jsonb)",
    "index": "create table outbox (id bigint generated always as identity, aggregatetype text, aggregateid text,"
    " type text, payload jsonb)",
    "uniqueness": "create table outbox (id bigint generated always as identity, aggregatetype text, aggregateid text,"
    " type text, payload jsonb); create index on outbox (id)",
    "cache": "create table outbox (id bigint generated always as identity (cache 100) primary key, aggregatetype text,"
    " aggregateid text, type text, payload jsonb)",
    "autovacuum": "create table outbox (id bigint generated always as identity primary key, aggregatetype text,"
    " aggregateid text, type text, payload jsonb) with (autovacuum_enabled = off)",
    "partitions": "create table outbox (id bigint generated always as identity, aggregatetype text, aggregateid text,"
    " type text, payload jsonb) partition by range (id);"
    " create table outbox_1 partition of outbox for values from (minvalue) to (1000);"
    " create table outbox_2 partition of outbox for values from (1000) to (maxvalue)",
}


@pytest.mark.parametrize("lacking", LACKING)
def test_what_a_table_lacks_is_printed_once_and_takes_nothing_away(
    database: Database, tmp_path: Path, lacking: str
) -> None:
    database.execute("drop table outbox")
    for statement in LACKING[lacking].split("; "):
        database.execute(statement)
    role = new_login(database)
    config = config_of(tmp_path, role)
    script = setup.for_what_is_missing(config, role=role.user)
    assert statements(script)
    assert not re.search(r"\b(drop|truncate|delete\s+from|update\s+\w+\s+set)\b", script, re.IGNORECASE)
    run(database, script)
    assert statements(setup.for_what_is_missing(config, role=role.user)) == []
    insert(database)
    assert len(carry(config)) == 1


@pytest.mark.parametrize(("field", "role"), [("created_at", "createdAt"), ("route", "route"), ("topic", "topic")])
def test_a_column_that_only_the_operator_looks_for_is_missed_too(
    database: Database, tmp_path: Path, field: str, role: str
) -> None:
    config = config_of(tmp_path, database, table={"columns": {field: "told"}})
    found = column_told(config)
    assert found.level == "warning"
    assert f"add it, or correct spec.databases[].table.columns.{role}" in found.remedy
    insert(database)
    assert len(carry(config)) == 1
    run(database, setup.for_what_is_missing(config, role=database.user))
    assert column_told(config).level == "ok"


@pytest.mark.parametrize(
    ("field", "name", "changes", "told"),
    [
        ("route", "aggregatetype", {}, True),
        ("route", "aggregatetype", {"match": {"include": ("order",)}}, False),
        ("type", "type", {}, True),
        ("type", "type", {"format": "CloudEvents", "cloud_events": {"source": "/orders"}}, False),
    ],
)
def test_a_table_may_do_without_a_column_that_only_a_default_asks_for(
    database: Database, tmp_path: Path, *, field: str, name: str, changes: dict[str, Any], told: bool
) -> None:
    advice = f'if the table is to have none, set spec.databases[].table.columns.{field}: ""'
    database.execute(f"alter table outbox drop column {name}")
    config = config_of(tmp_path, database, **changes)
    (found,) = [each for each in examine_database(config) if each.subject == f"column {name}"]
    assert found.remedy.startswith(advice) is told
    assert (f"-- {advice}" in setup.for_what_is_missing(config, role=database.user)) is told
    if told:
        without = config_of(tmp_path, database, table={"columns": {field: None}}, **changes)
        assert [each for each in examine_database(without) if each.level != "ok"] == []


def test_a_time_of_another_type_is_told_of_though_no_message_has_it(database: Database, tmp_path: Path) -> None:
    database.execute("alter table outbox add told text")
    assert column_told(config_of(tmp_path, database, table={"columns": {"created_at": "told"}})).level == "warning"
    assert column_told(config_of(tmp_path, database, table={"columns": {"topic": "told"}})).level == "ok"


def test_a_number_beside_a_uuid_carries_the_rows(database: Database, tmp_path: Path) -> None:
    """As docs/tables.md says."""
    database.execute("alter table outbox drop column id, add column id uuid primary key default gen_random_uuid()")
    insert(database)
    database.execute("alter table outbox add column seq bigint generated always as identity unique")
    config = config_of(tmp_path, database, table={"columns": {"id": "seq", "message_id": "id"}})
    assert {each.level for each in examine_database(config)} == {"ok"}
    assert carry(config) == [1]


def column_told(config: RelayConfig) -> Finding:
    (found,) = [each for each in examine_database(config) if each.subject == "column told"]
    return found


def test_names_are_quoted(database: Database, tmp_path: Path) -> None:
    columns = {name: f'{name}" %s;--' for name in ("id", "key", "route", "type", "payload")}
    table = {"schema": 'My "Schema"', "name": 'Out;"Box%', "columns": columns}
    config = config_of(tmp_path, database, table=table)
    script = setup.for_what_is_missing(config, role=database.user)
    with database.connect() as connection:
        for statement in script.replace("-- CREATE ROLE", "--").split(";\n"):
            if not all(line.startswith("--") for line in statement.strip().splitlines()):
                connection.execute(statement.encode())
    assert carry(config) == []


def test_an_unknown_role_is_told_how_to_be_made(database: Database, tmp_path: Path) -> None:
    script = setup.for_what_is_missing(config_of(tmp_path, database), role="nobody_yet")
    assert "-- CREATE ROLE \"nobody_yet\" LOGIN PASSWORD '...';" in script
    assert 'GRANT SELECT, DELETE ON "public"."outbox" TO "nobody_yet";' in script


def test_every_column_of_the_configuration_has_a_type() -> None:
    assert set(Columns.model_fields) - {"extra_headers"} == set(ddl._COLUMNS)


def test_a_new_table_has_each_column_once(tmp_path: Path) -> None:
    columns = {
        "topic": "destination",
        "partition": "part",
        "extra_headers": ({"column": "trace", "header": "traceparent"}, {"column": "type", "header": "kind"}),
    }
    (script,) = ddl.new_table(relay_config(tmp_path, table={"columns": columns}))
    for line in ('"destination"', '"part"          integer', '"trace"'):
        assert line in script
    assert script.count('"type"') == 1


def test_a_line_end_in_a_name_ends_no_comment(tmp_path: Path) -> None:
    evil = "x\nDROP TABLE x;\r\nGRANT pg_write_all_data TO eve;"
    config = relay_config(tmp_path, table={"name": "t"})
    finding = Finding(level="error", subject=evil, message=evil, remedy=evil)
    for text in (setup.for_new_table(config, role=evil), setup.script(config, [finding])):
        # What is left outside quoted names and comments.
        bare = [line for line in re.sub(r'"(?:[^"]|"")*"', "", text).splitlines() if not line.startswith("--")]
        assert not [line for line in bare if "DROP" in line or "pg_write" in line]


def test_a_script_has_words_and_each_statement_once(tmp_path: Path) -> None:
    config = relay_config(tmp_path, table={"name": "t"})
    finding = Finding(level="error", subject="t", message="slow", remedy="ALTER", statements=("ALTER TABLE t;",))
    bare = finding.model_copy(update={"remedy": ""})
    assert setup.script(config, [finding]) == "-- t: slow\n-- ALTER\nALTER TABLE t;\n"
    assert setup.script(config, [bare]) == "-- t: slow\nALTER TABLE t;\n"
    assert "-> ALTER TABLE t;\n" in Findings.of([bare]).text()


@pytest.mark.parametrize("table", ["outbox", "outbox_sent", "sent_1"])
def test_a_table_that_a_crash_empties_is_found(database: Database, tmp_path: Path, table: str) -> None:
    database.execute("create table outbox_sent (like outbox, outbox_sent_at timestamptz default now())"
                     + (" partition by range (outbox_sent_at)" if table == "sent_1" else ""))  # fmt: skip
    if table == "sent_1":
        database.execute("create table sent_1 partition of outbox_sent default")
    config = config_of(tmp_path, database, retention={"policy": "Keep"})
    assert "UNLOGGED" not in setup.for_what_is_missing(config, role=database.user)
    database.execute(f"alter table {table} set unlogged")
    script = setup.for_what_is_missing(config, role=database.user)
    assert f"{table} is UNLOGGED" in script
    assert "-- make it LOGGED: this rewrites the table and locks it meanwhile\nALTER TABLE" in script
    run(database, script)
    assert "UNLOGGED" not in setup.for_what_is_missing(config, role=database.user)


def test_a_login_that_acts_as_another_role_needs_no_rights_of_its_own(database: Database, tmp_path: Path) -> None:
    """Logins that are made for a while, as Vault does, act as the role that stays, and may inherit nothing from it."""
    lasting, passing = new_login(database), new_login(database)
    database.execute(f"alter role {passing.user} noinherit; grant {lasting.user} to {passing.user}")
    database.execute(f"alter role {passing.user} set role = {lasting.user}")
    config = config_of(tmp_path, passing)
    script = setup.for_what_is_missing(config, role=None)
    assert (lasting.user in script, passing.user in script) == (True, False)
    run(database, script)
    assert [finding for finding in examine_database(config) if finding.level == "error"] == []
    store = PostgresStore(config)
    try:
        store.open()
    finally:
        store.close()
