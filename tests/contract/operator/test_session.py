"""Measuring a real PostgreSQL: what is counted, what each fault is called, and what it costs the server.

Covers DV-08 (poolers), DV-13 (bounded work whatever the table holds), SE-04 and SE-05 (the operator connects as the
relays do).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

from outboxrelay import config
from outboxrelay.stores import ddl
from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.desired.relay_config import relay_config
from outboxrelay_operator.measure.session import CALL_SECONDS, Login, MeasureError, PostgresSession, Sample
from outboxrelay_operator.measure.sql import COUNT_LIMIT, LOWEST_ID
from outboxrelay_operator.measurements import ConnectionLimits
from outboxrelay_operator.pairs import Pair, pairs_of
from outboxrelay_operator.unrouted import leftovers
from tests.testbed.services.certificates import Authority
from tests.testbed.services.eventually import eventually
from tests.testbed.services.pgbouncer import PoolMode, pooling
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.unit.operator.builders import KEY, raw_database, raw_spec, raw_topic

CA = {"caSecretRef": {"name": "ca"}}


def spec_of(database: Database, *topics: dict[str, Any], **changes: Any) -> OutboxRelaySpec:
    values: dict[str, Any] = {"host": database.host, "port": database.port, "dbname": database.dbname}
    raw = raw_spec(databases=[raw_database(**(values | changes))], topics=list(topics) or [raw_topic()])
    return OutboxRelaySpec.model_validate(raw)


def pairs(database: Database, *topics: dict[str, Any], **changes: Any) -> list[Pair]:
    return list(pairs_of(KEY, spec_of(database, *topics, **changes)))


def columns(**names: str) -> dict[str, Any]:
    return {"table": {"columns": names}}


@asynccontextmanager
async def session(
    pair: Pair, database: Database, *, ca_file: Path | None = None, password: str | None = None
) -> AsyncIterator[PostgresSession]:
    login = Login(database=pair.database, user=database.user, password=password or database.password, ca_file=ca_file)
    opened = await PostgresSession.open(login)
    try:
        yield opened
    finally:
        await opened.close()


async def look(pair: Pair, database: Database, *, floor: int = LOWEST_ID) -> Sample:
    async with session(pair, database) as opened:
        return await opened.sample(pair, floor=floor, count=True)


async def refusal(pair: Pair, database: Database, **options: Any) -> MeasureError:
    with pytest.raises(MeasureError) as caught:
        async with session(pair, database, **options) as opened:
            await opened.inspect(pair)
    return caught.value


def fill(database: Database, rows: int, *, route: str = "order") -> None:
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload) "
        f"select '{route}', 'k', 't', '{{}}' from generate_series(1, {rows})"
    )


async def test_an_empty_table(database: Database) -> None:
    [pair] = pairs(database, **columns(createdAt="created_at"))
    found = await look(pair, database)
    assert (found.counted, found.oldest_id, found.oldest_age, found.highest_id) == (0, None, None, None)


async def test_rows_are_counted_and_the_oldest_is_dated_by_the_databases_clock(database: Database) -> None:
    fill(database, 3)
    database.execute("update outbox set created_at = now() - interval '90 seconds' where id = 1")
    [pair] = pairs(database, **columns(createdAt="created_at"))
    found = await look(pair, database)
    assert (found.counted, found.oldest_id, found.highest_id) == (3, 1, 3)
    assert found.oldest_age is not None
    assert 90 <= found.oldest_age < 150


async def test_each_pair_counts_its_own_rows(database: Database) -> None:
    database.execute("alter table outbox alter aggregatetype drop not null")
    for route, rows in (("order", 5), ("refund", 3), ("audit", 2)):
        fill(database, rows, route=route)
    database.execute("insert into outbox (payload) values ('{}')")
    topics = raw_topic("a", match=["order"]), raw_topic("b", match=["refund", "none"]), raw_topic("rest")
    counted = [(await look(pair, database)).counted for pair in pairs(database, *topics)]
    assert counted == [5, 3, 3]


async def test_routes_that_no_topic_takes_are_told_the_most_frequent_first(database: Database) -> None:
    database.execute("alter table outbox alter aggregatetype drop not null")
    for route, rows in (("order", 9), ("refund", 3), ("audit", 2), ("x" * 500, 1)):
        fill(database, rows, route=route)
    database.execute("insert into outbox (payload) select '{}' from generate_series(1, 4)")
    [left] = leftovers(pairs(database, raw_topic("a", match=["order"])), ())
    async with session(left, database) as opened:
        assert (await opened.sample(left, floor=LOWEST_ID, count=True)).counted == 10
        assert await opened.routes(left, floor=LOWEST_ID) == (None, "refund", "audit", "x" * 128)
        assert await opened.routes(left, floor=13) == (None, "audit", "x" * 128)


async def test_a_route_column_of_an_enum_type(database: Database) -> None:
    database.execute("create type kind as enum ('order', 'refund')")
    database.execute("alter table outbox alter aggregatetype type kind using aggregatetype::kind")
    fill(database, 2)
    topics = raw_topic("a", match=["order", "unheard of"]), raw_topic("rest")
    assert [(await look(pair, database)).counted for pair in pairs(database, *topics)] == [2, 0]
    [left] = leftovers(pairs(database, raw_topic("a", match=["unheard of"])), ())
    async with session(left, database) as opened:
        assert await opened.routes(left, floor=LOWEST_ID) == ("order",)


async def test_dv_13_a_count_ends_at_its_bound_and_the_planner_knows_the_rest(database: Database) -> None:
    fill(database, 50_000)
    database.execute("analyze outbox")
    [pair] = pairs(database)
    async with session(pair, database) as opened:
        assert (await opened.sample(pair, floor=LOWEST_ID, count=True)).counted == COUNT_LIMIT + 1
        assert 40_000 < await opened.estimate(pair, floor=LOWEST_ID) < 60_000
        assert 5_000 < await opened.estimate(pair, floor=40_000) < 15_000


async def test_without_counting_the_oldest_row_is_still_found(database: Database) -> None:
    fill(database, 3)
    [pair] = pairs(database)
    async with session(pair, database) as opened:
        found = await opened.sample(pair, floor=2, count=False)
    assert (found.counted, found.oldest_id, found.highest_id) == (None, 2, 3)


async def test_dv_13_rows_below_the_floor_cost_nothing(database: Database) -> None:
    fill(database, 30_000)
    database.execute("analyze outbox")
    [pair] = pairs(database)
    assert (await look(pair, database, floor=29_990)).counted == 11
    async with session(pair, database) as opened:
        blocks = await blocks_read(opened, lambda: opened.sample(pair, floor=29_990, count=True))
    assert blocks < 50


@pytest.mark.parametrize("topic", ["a", "rest"])
async def test_the_index_that_the_relay_asks_for_serves_the_measuring_too(database: Database, topic: str) -> None:
    database.execute("alter table outbox alter aggregatetype type varchar(20), alter payload type text")
    fill(database, 30_000, route="b")
    fill(database, 20, route="a" if topic == "a" else "c")
    spec = spec_of(database, raw_topic("a", match=["a"]), raw_topic("b", match=["b"]), raw_topic("rest"))
    [pair] = [each for each in pairs_of(KEY, spec) if each.topic.name == topic]
    database.execute(ddl.match_index(config.parse(relay_config(pair, spec), source="test"), at_once=False))
    database.execute("vacuum analyze outbox")
    async with session(pair, database) as opened:
        blocks = await blocks_read(opened, lambda: opened.sample(pair, floor=LOWEST_ID, count=True))
        assert (await opened.sample(pair, floor=LOWEST_ID, count=True)).counted == 20
        assert await opened.estimate(pair, floor=LOWEST_ID) < 100
    assert blocks < 50


@pytest.mark.parametrize("indexed", [False, True])
async def test_dv_13_rows_that_were_sent_cost_nothing_with_an_index_of_those_that_wait(
    database: Database, indexed: bool
) -> None:
    """cases.md DV-13: a table that keeps what was sent, and ten rows that wait at its end; the index is missed."""
    database.execute("alter table outbox add published_at timestamptz")
    fill(database, 100_000)
    database.execute("update outbox set published_at = now()")
    fill(database, 10)
    if indexed:
        database.execute("create index on outbox (id) where published_at is null")
    database.execute("vacuum analyze outbox")
    raw = raw_spec(
        databases=[raw_database(host=database.host, port=database.port, dbname=database.dbname)],
        retention={"policy": "Mark", "mark": {"column": "published_at"}},
    )
    (pair,) = pairs_of(KEY, OutboxRelaySpec.model_validate(raw))
    async with session(pair, database) as opened:
        info = await opened.inspect(pair)
        assert info.index_on_id == indexed
        assert (await opened.sample(pair, floor=LOWEST_ID, count=True)).counted == 10
        blocks = await blocks_read(opened, lambda: opened.sample(pair, floor=LOWEST_ID, count=True))
        assert (blocks < 50) == indexed


async def test_dv_13_what_could_not_be_measured_is_no_zero(database: Database) -> None:
    """cases.md DV-13: somebody locks the whole table; the look ends soon, with an error."""
    [pair] = pairs(database)
    async with session(pair, database) as opened:
        with database.connect(autocommit=False) as other:
            other.execute("lock table outbox in access exclusive mode")
            with pytest.raises(MeasureError) as caught:
                await opened.sample(pair, floor=LOWEST_ID, count=True)
        assert (caught.value.reason, caught.value.session_lost) == ("DatabaseError", False)
        assert (await opened.sample(pair, floor=LOWEST_ID, count=True)).counted == 0


async def blocks_read(opened: PostgresSession, work: Callable[[], Any]) -> int:
    async def blocks() -> int:
        await opened._connection.execute("select pg_stat_force_next_flush()")
        await opened._connection.execute("select pg_stat_clear_snapshot()")
        cursor = await opened._connection.execute(
            "select heap_blks_read + heap_blks_hit from pg_statio_user_tables where relname = 'outbox'"
        )
        row = await cursor.fetchone()
        return int(row[0]) if row else 0

    before = await blocks()
    await work()
    return await blocks() - before


async def test_quoted_names_and_the_schema_are_taken_as_they_are(database: Database) -> None:
    database.execute('create schema "Sales"')
    database.execute('create table "Sales"."Out Box" ("N" int primary key, "K" text, payload text)')
    database.execute("insert into \"Sales\".\"Out Box\" values (1, 'k', 'p')")
    names = {"id": "N", "key": "K", "route": "", "type": ""}
    [pair] = pairs(database, table={"schema": "Sales", "name": "Out Box", "columns": names})
    assert (await look(pair, database)).counted == 1


FAULTS: tuple[tuple[str, list[str], str], ...] = (
    ("TableMissing", ["drop table outbox"], "public.outbox"),
    ("ColumnMissing", ["alter table outbox drop column payload"], "payload (payload): add it or correct table.columns"),
    ("ColumnMissing", ["alter table outbox drop column aggregatetype"], '; "" for route or type is a table without it'),
    (
        "ColumnUnsupported",
        ["alter table outbox alter id drop identity", "alter table outbox alter id type text"],
        "id (id) is text",
    ),
)


@pytest.mark.parametrize(("reason", "statements", "words"), FAULTS)
async def test_a_fault_of_the_table_is_named(
    database: Database, reason: str, statements: list[str], words: str
) -> None:
    for statement in statements:
        database.execute(statement)
    [pair] = pairs(database)
    error = await refusal(pair, database)
    assert (error.reason, error.session_lost) == (reason, False)
    assert words in error.message
    assert f"{database.host}:{database.port}" in error.message


async def test_domains_are_what_lies_below_them(database: Database) -> None:
    """As for the relay, which reads such tables."""
    database.execute("create domain number as bigint")
    database.execute("create domain serial_number as number check (value > 0)")
    database.execute("create domain moment as timestamptz")
    database.execute(
        "create table numbered (id serial_number primary key, aggregatetype text, aggregateid text, type text,"
        " payload text, at moment default now())"
    )
    database.execute("insert into numbered (id, aggregateid) values (7, 'k')")
    [pair] = pairs(database, table={"name": "numbered", "columns": {"createdAt": "at"}})
    assert (await look(pair, database)).counted == 1


async def test_a_created_at_that_is_no_time_is_named(database: Database) -> None:
    [pair] = pairs(database, **columns(createdAt="headers"))
    assert (await refusal(pair, database)).reason == "ColumnUnsupported"


@pytest.mark.parametrize("grant", ["", "grant usage on schema s to stranger"])
async def test_a_missing_grant_is_named(database: Database, postgres: LocalPostgres, grant: str) -> None:
    database.execute("create schema s")
    database.execute("create table s.outbox (id bigint primary key, aggregateid text, payload text)")
    admin = postgres.superuser
    admin.execute("drop role if exists stranger")
    admin.execute("create role stranger login password 'p'")
    if grant:
        database.execute(grant)
    stranger = database.as_role(user="stranger", password="p")
    [pair] = pairs(database, table={"schema": "s", "columns": {"route": "", "type": ""}})
    assert (await refusal(pair, stranger)).reason == "PermissionDenied"
    database.execute("drop schema s cascade")
    admin.execute("drop role stranger")


async def test_what_postgresql_admits_is_told(database: Database, postgres: LocalPostgres) -> None:
    """For sharing connections: max_connections without those kept for superusers, and what is narrower."""
    admin, [pair] = postgres.superuser, pairs(database)

    async def admitted() -> ConnectionLimits | None:
        async with session(pair, database) as opened:
            return (await opened.inspect(pair)).connections

    [(most, reserved)] = admin.execute(
        "select current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int"
    )
    free = ConnectionLimits(server=most - reserved, database=None, role=None, role_name=database.user)
    assert await admitted() == free
    admin.execute(f'alter database "{database.dbname}" connection limit 20')
    admin.execute(f'alter role "{database.user}" connection limit 10')
    try:
        assert await admitted() == replace(free, database=20, role=10)
    finally:
        admin.execute(f'alter role "{database.user}" connection limit -1')


async def test_dv_13_a_missing_index_is_seen(database: Database) -> None:
    [pair] = pairs(database)
    async with session(pair, database) as opened:
        assert (await opened.inspect(pair)).index_on_id
    database.execute("alter table outbox drop constraint outbox_pkey")
    database.execute("create index on outbox (id) where aggregatetype = 'order'")
    async with session(pair, database) as opened:
        assert not (await opened.inspect(pair)).index_on_id
    database.execute("create index on outbox (id, aggregatetype)")
    async with session(pair, database) as opened:
        assert (await opened.inspect(pair)).index_on_id


async def test_a_partitioned_table_is_measured(database: Database) -> None:
    database.execute("drop table outbox")
    database.execute(
        "create table outbox (id bigint primary key, aggregatetype text, aggregateid text, type text, payload text) "
        "partition by range (id)"
    )
    database.execute("create table outbox_1 partition of outbox for values from (0) to (100)")
    database.execute("create table outbox_2 partition of outbox for values from (100) to (200)")
    database.execute("insert into outbox select g, 'o', 'k', 't', 'p' from generate_series(95, 104) g")
    [pair] = pairs(database)
    found = await look(pair, database)
    assert (found.counted, found.oldest_id, found.highest_id) == (10, 95, 104)


async def test_logins(database: Database, postgres: LocalPostgres) -> None:
    canary = "S3CR3T-CANARY"
    [pair] = pairs(database)
    wrong = await refusal(pair, database, password=canary)
    assert wrong.reason == "AuthenticationFailed"
    nobody = await refusal(pair, database.as_role(user="nobody", password=canary))
    assert nobody.reason == "AuthenticationFailed"
    [elsewhere] = pairs(database, dbname="nowhere")
    missing = await refusal(elsewhere, database)
    assert missing.reason == "DatabaseMissing"
    [dead] = pairs(database, port=1)
    assert (await refusal(dead, database, password=canary)).reason == "DatabaseUnreachable"
    [unknown] = pairs(database, host="no-such-host.invalid")
    unresolved = await refusal(unknown, database, password=canary)
    assert unresolved.reason == "DatabaseUnreachable"
    assert not [error for error in (wrong, nobody, missing, unresolved) if canary in error.message]
    postgres.set_hba("host all all 127.0.0.1/32 reject")
    try:
        assert (await refusal(pair, database)).reason == "AuthenticationFailed"
    finally:
        postgres.set_hba()


async def test_se_05_tls_is_as_strict_as_it_was_asked_for(
    database: Database, postgres: LocalPostgres, tmp_path: Path
) -> None:
    """cases.md SE-05: the operator's own look is as strict as the relays."""
    stranger = tmp_path / "other-ca.crt"
    stranger.write_bytes(Authority().pem)
    [verified] = pairs(database, tls=CA)
    async with session(verified, database, ca_file=postgres.ca_file) as opened:
        assert opened._connection.pgconn.ssl_in_use
    wrong = await refusal(verified, database, ca_file=stranger)
    assert wrong.reason == "TlsFailed"
    [encrypted] = pairs(database)
    async with session(encrypted, database) as opened:
        assert opened._connection.pgconn.ssl_in_use
    [plain] = pairs(database, tls={"mode": "disable"})
    async with session(plain, database) as opened:
        assert not opened._connection.pgconn.ssl_in_use


async def test_se_05_a_server_without_tls_is_refused_unless_plaintext_was_asked_for() -> None:
    """cases.md SE-05."""
    with LocalPostgres(fsync=False, tls=False) as server:
        database = server.create_database()
        [pair] = pairs(database)
        assert (await refusal(pair, database)).reason == "TlsFailed"
        [plain] = pairs(database, tls={"mode": "disable"})
        assert (await refusal(plain, database)).reason == "TableMissing"


async def test_a_session_writes_nothing_and_says_who_it_is(database: Database) -> None:
    [pair] = pairs(database)
    async with session(pair, database) as opened:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await opened._connection.execute("delete from outbox")
        [(name, state)] = database.execute(
            "select application_name, state from pg_stat_activity where pid = %s",
            [opened._connection.info.backend_pid],
        )
        assert (name, state) == ("outboxrelay-operator", "idle")


@pytest.mark.parametrize("mode", get_args(PoolMode))
async def test_dv_08_a_poolers_sessions_stay_as_they_were(database: Database, mode: PoolMode) -> None:
    """cases.md DV-08: a pooler gives the session to the application next, which must not find it read-only."""
    with pooling(database, mode=mode, size=1) as (pooled,):
        [pair] = pairs(database, port=pooled.port, tls={"mode": "disable"})
        error = await refusal(pair, pooled)
        assert (error.reason, error.session_lost) == ("DatabaseError", True)
        assert "connect to PostgreSQL directly" in error.message
        fill(pooled, 1)
        assert pooled.execute("show statement_timeout") == database.execute("show statement_timeout")


async def test_a_server_that_stops_answering_costs_seconds_and_the_session(database: Database) -> None:
    [pair] = pairs(database)
    with LocalPostgres(fsync=False) as server:
        own = server.create_database()
        [pair] = pairs(own)
        async with session(pair, own) as opened:
            server.pause()
            try:
                with pytest.raises(MeasureError) as caught:
                    async with asyncio.timeout(2 * CALL_SECONDS):
                        await opened.inspect(pair)
            finally:
                server.resume()
        assert (caught.value.reason, caught.value.session_lost) == ("DatabaseUnreachable", True)


async def test_a_session_that_the_server_ended_is_lost(database: Database, postgres: LocalPostgres) -> None:
    [pair] = pairs(database)
    async with session(pair, database) as opened:
        pid = opened._connection.info.backend_pid
        postgres.superuser.execute("select pg_terminate_backend(%s)", [pid])
        eventually(
            lambda: not database.execute("select from pg_stat_activity where pid = %s", [pid]),
            seconds=10,
            what="the backend is gone",
        )
        with pytest.raises(MeasureError) as caught:
            await opened.inspect(pair)
    assert (caught.value.reason, caught.value.session_lost) == ("DatabaseUnreachable", True)


async def test_se_05_the_name_is_verified_while_the_address_is_connected_to(
    postgres: LocalPostgres, database: Database
) -> None:
    """cases.md SE-05: the operator looks hosts up by itself; the certificate must be for the name in the resource."""
    [pair] = pairs(database, host="localhost", tls=CA)
    login = Login(
        database=pair.database,
        user=database.user,
        password=database.password,
        ca_file=postgres.ca_file,
        addresses=(("localhost", "127.0.0.1"), ("localhost", "127.0.0.1")),
    )
    opened = await PostgresSession.open(login)
    await opened.close()
    [stranger] = pairs(database, host="stranger.test", tls=CA)
    with pytest.raises(MeasureError) as caught:
        await PostgresSession.open(
            replace(login, database=stranger.database, addresses=(("stranger.test", "127.0.0.1"),))
        )
    assert caught.value.reason == "TlsFailed"


@pytest.mark.parametrize("failed", [None, "failed"])
async def test_with_retention_mark_only_rows_that_were_not_sent_count(database: Database, failed: str | None) -> None:
    database.execute("alter table outbox add status text not null default '100% new'")
    for status in ("100% new", "sent", "failed", "sent"):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload, status) values ('order', 'k', '{}', %s)",
            (status,),
        )
    mark = {"column": "status", "pending": "100% new", "sent": "sent", "failed": failed}
    raw = raw_spec(
        databases=[raw_database(host=database.host, port=database.port, dbname=database.dbname)],
        retention={"policy": "Mark", "mark": mark},
    )
    (pair,) = pairs_of(KEY, OutboxRelaySpec.model_validate(raw))
    sample = await look(pair, database)
    assert (sample.counted, sample.oldest_id, sample.highest_id) == (1 if failed is None else 2, 1, 4)
    async with session(pair, database) as opened:
        assert await opened.estimate(pair, floor=LOWEST_ID) >= 0


async def test_with_retention_mark_a_time_that_is_null_counts(database: Database) -> None:
    database.execute("alter table outbox add published_at timestamptz")
    for published in (None, "now()"):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload, published_at)"
            f" values ('order', 'k', '{{}}', {published or 'null'})"
        )
    raw = raw_spec(
        databases=[raw_database(host=database.host, port=database.port, dbname=database.dbname)],
        retention={"policy": "Mark", "mark": {"column": "published_at"}},
    )
    (pair,) = pairs_of(KEY, OutboxRelaySpec.model_validate(raw))
    assert (await look(pair, database)).counted == 1
    database.execute("alter table outbox drop published_at")
    error = await refusal(pair, database)
    assert error.reason == "ColumnMissing"
    assert "retention.mark" in error.message


async def test_se_05_a_client_certificate_is_enough(
    database: Database, postgres: LocalPostgres, tmp_path: Path
) -> None:
    """cases.md SE-05: the operator proves itself as the relays do, and with no password at all."""
    [pair] = pairs(database, tls=CA | {"clientCertSecretRef": {"name": "c"}})
    client, stranger = postgres.authority.issue_client(database.user), Authority().issue_client(database.user)
    for name, content in (("crt", client.certificate), ("key", client.key), ("other", stranger.certificate)):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    login = Login(
        database=pair.database,
        user=database.user,
        password=None,
        ca_file=postgres.ca_file,
        certificate_file=tmp_path / "crt",
        key_file=tmp_path / "key",
    )
    postgres.set_hba("hostssl all all 127.0.0.1/32 cert")
    try:
        opened = await PostgresSession.open(login)
        await opened.close()
        for wrong in (
            replace(login, certificate_file=None, key_file=None),
            replace(login, certificate_file=tmp_path / "other"),
        ):
            with pytest.raises(MeasureError) as caught:
                await PostgresSession.open(wrong)
            assert caught.value.reason == "TlsFailed"
    finally:
        postgres.set_hba()


async def test_of_several_hosts_the_one_that_takes_writes_is_measured(database: Database) -> None:
    """A host that is down is passed over, one that is read-only too, and the message names all of them."""
    with LocalPostgres(
        fsync=False, host="127.0.0.2", port=database.port, settings={"default_transaction_read_only": "on"}
    ) as standby:
        with standby.superuser.connect(options="-c default_transaction_read_only=off") as admin:
            admin.execute(f"create role {database.user} login password '{database.password}'")
            admin.execute(f"create database {database.dbname}")
        hosts = ["127.0.0.3", "127.0.0.2", database.host]
        [pair] = pairs(database, host=None, hosts=hosts, tls={"mode": "require"})
        async with session(pair, database) as opened:
            assert opened._connection.info.host == database.host
            await opened.inspect(pair)
        [none] = pairs(database, host=None, hosts=hosts[:2], tls={"mode": "require"})
        error = await refusal(none, database)
        assert error.reason == "ReadOnly"
        assert f"127.0.0.3:{database.port},127.0.0.2:{database.port}" in error.message
        [silent] = pairs(database, host=None, hosts=["127.0.0.3", "127.0.0.4"])
        assert (await refusal(silent, database)).reason == "DatabaseUnreachable"


async def test_a_host_of_several_addresses_that_are_silent_leaves_time_for_the_next(database: Database) -> None:
    silent = ["127.0.0.5", "127.0.0.6", "127.0.0.7"]
    with contextlib.ExitStack() as listeners:
        for address in silent:
            listener = listeners.enter_context(socket.socket())
            listener.bind((address, database.port))
            listener.listen()
        [pair] = pairs(database, host=None, hosts=["orders-0.orders", database.host], tls={"mode": "require"})
        addresses = (*(("orders-0.orders", address) for address in silent), (database.host, database.host))
        opened = await PostgresSession.open(
            Login(pair.database, database.user, database.password, None, addresses=addresses)
        )
        try:
            await opened.inspect(pair)
        finally:
            await opened.close()
