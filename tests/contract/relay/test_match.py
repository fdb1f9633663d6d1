"""A pair that shares its table with others: what the preflight asks for, and that reads then meet only its own rows.

Covered: one value, several, and every other row; columns of each kind; a mark; partitions; tables that were empty when
the read was planned; an index for another match.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl, setup
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.stores.preflight import examine_database
from tests.contract.relay.reads import ids, read, tuples_read
from tests.contract.relay.settings import MARK_STATUS, MakeStore, prepare_policy, relay_config
from tests.testbed.services.postgres import Database

OTHERS = 20_000
MATCHES: dict[str, dict[str, Any]] = {
    "one": {"include": ("7",)},
    "several": {"include": ("7", "it's", '50% \\ "off"')},
    "rest": {"exclude": ("1", "it's", '50% \\ "off"')},
}


def finding(config: RelayConfig) -> Finding:
    """What the preflight says about the index on a pair's rows."""
    (found,) = [each for each in examine_database(config) if each.subject == "match index"]
    return found


def fill(database: Database, *, mine: int = 3) -> None:
    """A backlog of another pair, then a few rows."""
    for route, rows in (("1", OTHERS), ("7", mine)):
        database.execute(
            "insert into outbox (aggregatetype, aggregateid, payload)"
            f" select '{route}', mod(i, 100)::text, '{{}}' from generate_series(1, {rows}) i"
        )


def met(database: Database, store: PostgresStore, *, mine: int = 3) -> int:
    """Index entries that a read from the low end looks at; fails unless it finds the pair's rows."""
    store.rewind(1)
    found: list[int] = []
    entries = tuples_read(store, database, lambda: found.extend(ids(read(store))))
    assert len(found) == mine
    return entries


def prepare(database: Database, config: RelayConfig) -> None:
    """Run what the preflight prints, as the table's owner does."""
    (statement,) = finding(config).statements
    database.execute(statement.replace("%", "%%"), ())


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize(
    "kind", ["text", "varchar(20)", "name", "bigint", "wide", 'text collate "POSIX"', "text collate loose"]
)
def test_the_printed_index_keeps_the_rows_of_others_out_of_each_read(
    database: Database, make_store: MakeStore, tmp_path: Path, match: str, kind: str
) -> None:
    database.execute("create domain wide as varchar(300)")
    database.execute("create collation loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    using = " using aggregatetype::bigint" if kind == "bigint" else ""
    database.execute(f"alter table outbox alter aggregatetype type {kind}{using}")
    fill(database)
    config = relay_config(tmp_path, database=database, match=MATCHES[match])
    assert finding(config).level == "warning"
    store = make_store(database, match=MATCHES[match])
    assert met(database, store) >= OTHERS
    prepare(database, config)
    assert finding(config).level == "ok"
    assert met(database, store) < 100


@pytest.mark.parametrize("match", MATCHES)
def test_a_read_that_was_planned_for_an_empty_table_uses_the_index(
    database: Database, make_store: MakeStore, tmp_path: Path, match: str
) -> None:
    database.execute("alter table outbox set (autovacuum_enabled = off)")
    config = relay_config(tmp_path, database=database, match=MATCHES[match])
    prepare(database, config)
    assert finding(config).level == "ok"
    store = make_store(database, match=MATCHES[match])
    assert ids(read(store)) == []
    fill(database)
    assert met(database, store) < 100


def test_a_table_in_which_all_rows_are_the_pairs_is_well_indexed(database: Database, tmp_path: Path) -> None:
    config = relay_config(tmp_path, database=database, match={"include": ("1",)})
    prepare(database, config)
    fill(database, mine=0)
    database.execute("create index on outbox (aggregatetype)")
    database.execute("vacuum analyze outbox")
    assert finding(config).level == "ok"


def test_an_index_for_another_match_will_not_do(database: Database, tmp_path: Path) -> None:
    fill(database)
    prepare(database, relay_config(tmp_path, database=database, match={"include": ("1", "8")}))
    for match in ({"include": ("7",)}, {"include": ("1",)}, {"exclude": ("7",)}):
        assert finding(relay_config(tmp_path, database=database, match=match)).level == "warning"
    assert finding(relay_config(tmp_path, database=database, match={"include": ("8", "1")})).level == "ok"


def test_with_a_mark_the_index_holds_what_was_not_sent(
    database: Database, make_store: MakeStore, tmp_path: Path
) -> None:
    prepare_policy(database, "mark-status")
    config = relay_config(tmp_path, database=database, match=MATCHES["one"], retention=MARK_STATUS)
    assert finding(config).level == "warning"
    fill(database)
    database.execute("update outbox set status = 'sent' where aggregatetype = '1' and id < 10000")
    prepare(database, config)
    assert finding(config).level == "ok"
    store = make_store(database, match=MATCHES["one"], retention=MARK_STATUS)
    assert met(database, store) < 100
    database.execute("drop index outbox_unsent")
    database.execute("create index on outbox (status)")
    subjects = {each.subject: each.level for each in examine_database(config)}
    assert (subjects["pending index"], subjects["match index"]) == ("error", "ok")


def test_partitions_are_indexed_through_their_parent(database: Database, make_store: MakeStore, tmp_path: Path) -> None:
    database.execute("drop table outbox")
    database.execute(
        "create table outbox (id bigint generated always as identity primary key, aggregatetype text, aggregateid text,"
        " type text, payload jsonb) partition by range (id)"
    )
    database.execute("create table outbox_1 partition of outbox for values from (minvalue) to (15000)")
    database.execute("create table outbox_2 partition of outbox for values from (15000) to (maxvalue)")
    fill(database)
    config = relay_config(tmp_path, database=database, match=MATCHES["one"])
    assert "CONCURRENTLY" not in "".join(finding(config).statements)
    prepare(database, config)
    assert finding(config).level == "ok"
    store = make_store(database, match=MATCHES["one"])
    assert met(database, store) < 100


def test_an_enum_can_have_no_such_index_and_is_told_so(database: Database, tmp_path: Path) -> None:
    database.execute("create type kind as enum ('1', '7')")
    database.execute("alter table outbox alter aggregatetype type kind using aggregatetype::kind")
    found = finding(relay_config(tmp_path, database=database, match=MATCHES["one"]))
    assert (found.level, found.statements) == ("warning", ())
    assert "text column" in found.remedy


def test_a_pair_that_takes_every_row_needs_none(database: Database, tmp_path: Path) -> None:
    findings = examine_database(relay_config(tmp_path, database=database))
    assert "match index" not in {each.subject for each in findings}


@pytest.mark.parametrize("script", [setup.for_new_table, setup.for_what_is_missing])
def test_the_script_has_the_index_once(database: Database, tmp_path: Path, script: Callable[..., str]) -> None:
    config = relay_config(tmp_path, database=database, match=MATCHES["several"])
    concurrently = script is setup.for_what_is_missing
    assert script(config, role=database.user).count(ddl.match_index(config, at_once=not concurrently)) == 1
