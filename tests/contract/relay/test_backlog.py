"""Looking at the rows that wait, for an operator that reads no Secrets, against PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.ports import StoreError
from outboxrelay.stores.backlog import BacklogMeter
from tests.contract.relay.settings import POLICIES, prepare_policy, relay_config
from tests.contract.relay.test_lag import WITH_TIME, fill
from tests.testbed.services.postgres import Database
from tests.unit.relay.world import Clock

MakeMeter = Callable[..., BacklogMeter]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_meter(database: Database, tmp_path: Path, clock: Clock) -> Iterator[MakeMeter]:
    """Makes meters over the table, and ends their sessions."""
    meters: list[BacklogMeter] = []

    def make(*, count_limit: int = 10_000, **changes: Any) -> BacklogMeter:
        config = relay_config(tmp_path, database=database, **changes)
        meters.append(BacklogMeter(config, clock=clock, count_limit=count_limit))
        return meters[-1]

    yield make
    for meter in meters:
        meter.close()


def test_an_empty_table(make_meter: MakeMeter) -> None:
    found = make_meter(table=WITH_TIME).look()
    assert (found.rows, found.exact, found.oldest_id, found.oldest_age_seconds) == (0, True, None, None)
    assert (found.highest_id, found.indexed) == (None, True)


def test_count_ends_and_age(database: Database, make_meter: MakeMeter) -> None:
    fill(database, 3, route="payment")
    fill(database, 2)
    fill(database, 1, route="payment")
    database.execute("update outbox set created_at = now() - interval '90 s' where id = 4")
    found = make_meter(table=WITH_TIME, match={"include": ("order",)}).look()
    assert (found.rows, found.exact, found.oldest_id, found.highest_id) == (2, True, 4, 6)
    assert found.oldest_age_seconds is not None
    assert 90 <= found.oldest_age_seconds < 120


def test_beyond_the_limit_the_planner_is_asked(database: Database, make_meter: MakeMeter) -> None:
    fill(database, 2000)
    database.execute("analyze outbox")
    found = make_meter(count_limit=100).look()
    assert not found.exact
    assert 1500 < found.rows < 2500


@pytest.mark.parametrize("policy", POLICIES)
def test_only_unsent_rows_count(policy: str, database: Database, make_meter: MakeMeter) -> None:
    prepare_policy(database, policy)
    fill(database, 4)
    sent = {
        "mark-status": "update outbox set status = 'sent' where id < 3",
        "mark-time": "update outbox set published_at = now() where id < 3",
    }.get(policy, "delete from outbox where id < 3")
    database.execute(sent)
    meter = make_meter(retention=POLICIES[policy])
    assert meter.look().rows == 2
    database.execute(sent.replace("< 3", "< 9"))
    assert meter.look().rows == 0


def test_a_row_below_the_floor_is_found_within_a_minute(
    database: Database, make_meter: MakeMeter, clock: Clock
) -> None:
    """The floor spares the scan of what is gone; a transaction that ends late may leave a row below it."""
    fill(database, 5)
    meter = make_meter()
    assert meter.look().oldest_id == 1
    database.execute("delete from outbox where id < 4")
    assert meter.look().oldest_id == 4
    database.execute(
        "insert into outbox (id, aggregatetype, payload) overriding system value values (2, 'order', '{}')"
    )
    assert meter.look().oldest_id == 4
    clock.sleep(61)
    assert (meter.look().oldest_id, meter.look().rows) == (2, 3)


def test_a_table_without_an_index_is_told(database: Database, make_meter: MakeMeter) -> None:
    fill(database, 2)
    database.execute("alter table outbox drop constraint outbox_pkey")
    found = make_meter().look()
    assert (found.rows, found.indexed) == (2, False)


def test_dv_13_with_mark_only_an_index_of_unsent_rows_counts(database: Database, make_meter: MakeMeter) -> None:
    """cases.md DV-13: the primary key leads over all rows that were sent."""
    prepare_policy(database, "mark-time")
    fill(database, 2)
    assert make_meter(retention=POLICIES["mark-time"]).look().indexed
    database.execute("drop index outbox_unsent")
    assert not make_meter(retention=POLICIES["mark-time"]).look().indexed


def test_a_count_that_takes_too_long_is_given_up(database: Database, make_meter: MakeMeter) -> None:
    """The oldest row is found at once; the count would have to look at every row of the others."""
    fill(database, 1, route="order")
    fill(database, 3000, route="payment")
    # Another operator for the comparison of routes stands for a table with very many rows.
    for statement in (
        "create schema slow",
        "create function slow.same(text, text) returns bool language plpgsql as"
        " $$ begin if $1 operator(pg_catalog.=) $2 then return true; end if;"
        " perform pg_sleep(0.01); return false; end $$",
        "create operator slow.= (function = slow.same, leftarg = text, rightarg = text)",
        f"alter role {database.user} set search_path = slow, pg_catalog",
    ):
        database.execute(statement)
    meter = make_meter(match={"include": ("order",)})
    found = meter.look()
    assert not found.exact
    assert found.rows >= 1
    assert found.oldest_id == 1


def test_it_tells_what_is_wrong_and_heals(database: Database, make_meter: MakeMeter) -> None:
    meter = make_meter()
    assert meter.look().rows == 0
    database.execute("alter table outbox rename to elsewhere")
    with pytest.raises(StoreError) as problem:
        meter.look()
    assert problem.value.reason == "TableMissing"
    assert "measuring the backlog" in problem.value.message
    database.execute("alter table elsewhere rename to outbox")
    fill(database, 1)
    assert meter.look().rows == 1


def test_a_login_that_is_refused_is_told(database: Database, tmp_path: Path, clock: Clock) -> None:
    config = relay_config(tmp_path, database=database)
    (tmp_path / "password").write_text("wrong")
    with pytest.raises(StoreError) as problem:
        BacklogMeter(config, clock=clock).look()
    assert problem.value.reason == "AuthenticationFailed"
    assert "wrong" not in problem.value.message
