"""`columns.lane` against PostgreSQL: what `outboxrelay sql` prints is what relays compute, and nothing else is read.

Covered: keys of every type, whole and missing columns, partitions; columns that disagree in the number of lanes, the
key, the hash or for NULL, and plain ones; a column that changes under a relay; policy Keep, which moves it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores import ddl, setup
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from outboxrelay.stores.sql import Shape
from tests.contract.relay.reads import refusal
from tests.contract.relay.settings import MakeStore, prepare_policy, relay_config
from tests.testbed.services.postgres import Database

LANES = 16
WITH_LANE = {"name": "events", "columns": {"lane": "lane", "type": None}}
WITHOUT_LANE = {"name": "events", "columns": {"type": None}}

KEYS: dict[str, str] = {
    "text": "'key-' || n",
    "varchar(40)": "'K\u00e9y ' || n",
    "char(20)": "'key ' || n",
    "citext": "'Key-' || n",
    "bigint": "n * 1234567890123",
    "smallint": "n - 20",
    "uuid": "md5(n::text)::uuid",
    "numeric": "n || '.50'",
    "bytea": "sha256(n::text::bytea)",
    "label": "'name-' || n",
}


def make_events(database: Database, *, kind: str, id_kind: str = "bigint", lane: str = "", rows: int = 40) -> None:
    """A table with keys of this type, some of which are NULL, and the column `lane` if given."""
    database.execute("create domain label as text")
    database.execute(
        f"create table events (id {id_kind} generated always as identity primary key, aggregatetype text,"
        f" aggregateid {kind}, payload text{lane and ', lane ' + lane})"
    )
    database.execute(
        f"insert into events (aggregateid, payload) select ({KEYS[kind]})::{kind}, 'p'"
        f" from generate_series(1, {rows}) n"
    )
    database.execute("insert into events (payload) select 'p' from generate_series(1, 10)")


def with_lane(directory: Path, database: Database, **changes: Any) -> RelayConfig:
    given: dict[str, Any] = {"table": WITH_LANE, "lanes": LANES}
    return relay_config(directory, database=database, **(given | changes))


def lanes_of(store: PostgresStore) -> dict[int, int]:
    return store.lanes_of(range(1, 100))


@pytest.mark.parametrize("kind", KEYS)
def test_the_printed_column_holds_what_relays_compute(
    postgres: Any, database: Database, make_store: MakeStore, tmp_path: Path, kind: str
) -> None:
    if kind == "citext":
        with postgres.superuser.connect(dbname=database.dbname) as connection:
            connection.execute("create extension if not exists citext")
    make_events(database, kind=kind)
    computed = lanes_of(make_store(database, table=WITHOUT_LANE, lanes=LANES))
    assert len(computed) == 50
    assert len(set(computed.values())) > LANES // 2
    config = with_lane(tmp_path, database)
    script = setup.for_what_is_missing(config, role=database.user)
    (statement,) = [line for line in script.splitlines() if "ADD COLUMN" in line]
    database.execute(statement)
    assert "ADD COLUMN" not in setup.for_what_is_missing(config, role=database.user)
    store = make_store(database, table=WITH_LANE, lanes=LANES)
    assert lanes_of(store) == computed
    stored = dict(database.execute("select id, lane from events"))
    assert stored == computed
    text = store._session().statements.read(Shape(all_lanes=False)).text
    assert b"hashtext" not in text
    assert b'"lane" = ANY' in text


def test_the_column_is_the_same_whatever_a_backslash_means(
    database: Database, make_store: MakeStore, tmp_path: Path
) -> None:
    """A role may have it from times before PostgreSQL 9.1."""
    make_events(database, kind="bytea")
    computed = lanes_of(make_store(database, table=WITHOUT_LANE, lanes=LANES))
    database.execute(f"alter role {database.user} set standard_conforming_strings = off")
    database.execute(ddl.add_column(with_lane(tmp_path, database), name="lane", key_kind="bytea"))
    assert lanes_of(make_store(database, table=WITH_LANE, lanes=LANES)) == computed


@pytest.mark.parametrize("id_kind", ["smallint", "integer"])
def test_ids_of_other_types(database: Database, make_store: MakeStore, tmp_path: Path, id_kind: str) -> None:
    make_events(database, kind="text", id_kind=id_kind)
    computed = lanes_of(make_store(database, table=WITHOUT_LANE, lanes=LANES))
    database.execute(ddl.add_column(with_lane(tmp_path, database), name="lane"))
    assert lanes_of(make_store(database, table=WITH_LANE, lanes=LANES)) == computed


def test_a_new_table_has_the_column(database: Database, make_store: MakeStore, tmp_path: Path) -> None:
    table = {"name": 'Out;"Box%', "columns": {"lane": 'La"ne%', "key": "Key%%s", "id": "%i"}}
    config = with_lane(tmp_path, database, table=table)
    with database.connect() as connection:
        for statement in ddl.new_table(config):
            connection.execute(statement.encode())
    store = make_store(database, table=table, lanes=LANES)
    assert store.rebalance() == frozenset(range(LANES))


def test_relays_with_and_without_the_column_share_the_lanes(
    database: Database, make_store: MakeStore, tmp_path: Path
) -> None:
    """As while a Deployment rolls out."""
    make_events(database, kind="text")
    database.execute(ddl.add_column(with_lane(tmp_path, database), name="lane"))
    old = make_store(database, table=WITHOUT_LANE, lanes=LANES)
    new = make_store(database, table=WITH_LANE, lanes=LANES)
    old.rebalance()
    new.rebalance()
    parts = [[row.id for row in store.read(limit=100, held_keys=[], held_ids=[]).rows] for store in (old, new)]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == list(range(1, 51))


def test_rows_that_were_sent_move_with_it(database: Database, make_store: MakeStore, tmp_path: Path) -> None:
    make_events(database, kind="text")
    database.execute(ddl.add_column(with_lane(tmp_path, database), name="lane"))
    prepare_policy(database, "keep", table="events")
    store = make_store(database, table=WITH_LANE, lanes=LANES, retention={"policy": "Keep"})
    ids = [row.id for row in store.read(limit=100, held_keys=[], held_ids=[]).rows]
    store.settle(ids)
    assert database.execute("select count(*) from events_sent where lane is not null") == [(len(ids),)]


HASH = 'hashtextextended(aggregateid::text collate "C", 0)'
GENERATED = "smallint generated always as ({}) stored"
RIGHT = f"((coalesce({HASH}, id) & 2147483647) % 16)::smallint"
WRONG: dict[str, tuple[str, str]] = {
    "a plain column": ("smallint not null default 0", "no stored generated column"),
    "half the lanes": (GENERATED.format(RIGHT.replace("% 16", "% 8")), "another expression"),
    "more lanes": (GENERATED.format(RIGHT.replace("% 16", "% 17")), "another expression"),
    "another seed": (GENERATED.format(RIGHT.replace(", 0)", ", 1)")), "another expression"),
    "another hash": (GENERATED.format("(abs(hashtext(aggregateid)::bigint) % 16)::smallint"), "another expression"),
    "NULL without a key": (GENERATED.format(f"(({HASH} & 2147483647) % 16)::smallint"), "lane NULL"),
    "lane 0 without a key": (GENERATED.format(f"((coalesce({HASH}, 0) & 2147483647) % 16)::smallint"), "another expr"),
    "negative ids": (GENERATED.format(f"(abs(coalesce({HASH}, id) % 16))::smallint"), "another expression"),
    "lower case": (GENERATED.format(RIGHT.replace("aggregateid::text", "lower(aggregateid)")), "another expression"),
    "one key only": (GENERATED.format(f"case when aggregateid = 'a' then 3 else {RIGHT} end"), "another expression"),
    "another column": (GENERATED.format(RIGHT.replace("aggregateid", "aggregatetype")), "other columns"),
    "an error for some": (GENERATED.format("(1 / length(aggregateid))::smallint"), "not for every key"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_any_other_column_is_refused(database: Database, tmp_path: Path, wrong: str) -> None:
    """With it rows of one key would pass each other while pods disagree, or never be read at all."""
    column, phrase = WRONG[wrong]
    make_events(database, kind="text", lane=column)
    config = with_lane(tmp_path, database)
    error = refusal(config)
    assert error.reason == "LaneColumnWrong"
    assert phrase in error.message
    assert "column lane" in error.message
    (finding,) = [each for each in examine_database(config) if each.subject == "lane"]
    assert finding.level == "error"
    assert "LaneColumnWrong" in finding.message


def test_the_same_expression_in_other_words_is_read(database: Database, make_store: MakeStore) -> None:
    words = "mod(case when aggregateid is null then id else " + HASH + " end & x'7fffffff'::int8, 16)"
    make_events(database, kind="text", lane=f"integer generated always as ({words}) stored")
    assert lanes_of(make_store(database, table=WITH_LANE, lanes=LANES))


def test_a_partition_with_another_expression_is_refused(database: Database, tmp_path: Path) -> None:
    columns = "(id bigint, aggregatetype text, aggregateid text, payload text, lane "
    database.execute(f"create table events {columns}{GENERATED.format(RIGHT)}) partition by range (id)")
    database.execute("create table events_1 partition of events for values from (1) to (100)")
    config = with_lane(tmp_path, database)
    store = PostgresStore(config)
    store.open()
    store.close()
    database.execute(f"create table events_2 {columns}{GENERATED.format(RIGHT.replace('% 16', '% 8'))})")
    attach = "alter table events attach partition events_2 for values from (100) to (200)"
    with database.connect() as connection:
        version = connection.info.server_version
    if version < 160000:
        with pytest.raises(psycopg.errors.DatatypeMismatch):
            database.execute(attach)
    else:
        database.execute(attach)
        assert refusal(config).reason == "LaneColumnWrong"


def test_keys_of_which_no_column_can_be_generated_are_refused(database: Database, tmp_path: Path) -> None:
    database.execute("create type mood as enum ('happy', 'sad')")
    database.execute(
        "create table events (id bigint primary key, aggregatetype text, aggregateid mood, payload text, lane smallint)"
    )
    error = refusal(with_lane(tmp_path, database))
    assert error.reason == "ColumnUnsupported"
    assert "aggregateid" in error.message


def test_a_column_that_is_missing_is_named(database: Database, tmp_path: Path) -> None:
    make_events(database, kind="text")
    error = refusal(with_lane(tmp_path, database))
    assert (error.reason, "lane" in error.message) == ("ColumnMissing", True)


def test_a_column_that_is_made_anew_under_a_relay_ends_its_session(
    database: Database, make_store: MakeStore, tmp_path: Path
) -> None:
    make_events(database, kind="text", lane=GENERATED.format(RIGHT))
    now = 0.0
    store = make_store(database, clock=lambda: now, table=WITH_LANE, lanes=LANES)
    now += 60
    store.rebalance()
    database.execute("alter table events drop column lane")
    database.execute(f"alter table events add column lane {GENERATED.format(RIGHT.replace('% 16', '% 4'))}")
    now += 60
    with pytest.raises(StoreError):
        store.rebalance()
    assert not store.alive()
    assert refusal(with_lane(tmp_path, database)).reason == "LaneColumnWrong"
