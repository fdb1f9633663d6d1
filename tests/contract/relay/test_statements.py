"""Each form of the statement that reads, for each type that a column may have: PostgreSQL must take all of them.

A relay meets some forms only when rows are large, or when a row is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from psycopg.pq import ExecStatus

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of
from outboxrelay.stores.policy import policy_of
from outboxrelay.stores.sql import (
    EXTRA_HEADER_TYPES,
    HEADER_TYPES,
    ID_TYPES,
    KEY_TYPES,
    PAYLOAD_TYPES,
    TEXT_TYPES,
    Shape,
    Statements,
    Weigh,
)
from outboxrelay.stores.table import inspect
from tests.contract.relay.settings import relay_config
from tests.testbed.services.postgres import Database

IDENTITY = "id {} generated always as identity primary key"


def shapes() -> Iterator[Shape]:
    """Each way to weigh, with no exclusion and with all of them."""
    for weigh in get_args(Weigh):
        yield Shape(all_lanes=True, weigh=weigh)
        yield Shape(all_lanes=False, held_keys=True, held_ids=True, in_flight="run", weigh=weigh)
        yield Shape(all_lanes=False, held_keys=True, held_ids=True, in_flight="list", weigh=weigh)


def refused(database: Database, config: RelayConfig) -> list[str]:
    """What the server says of each form that it does not take."""
    found = []
    with database.connect() as connection:
        types = inspect(connection, config)
        for encoding in (None, "UTF8"):
            statements = Statements(
                table=config.table,
                match=config.match,
                lanes=config.lanes,
                types=types,
                policy=policy_of(config, types),
                extras=extras_of(config),
                encoding=encoding,
            )
            for shape in shapes():
                answer = connection.pgconn.prepare(b"", statements.read(shape).text)
                if answer.status != ExecStatus.COMMAND_OK:
                    found.append(f"{shape}: {answer.error_message.decode()}")
    return found


def configured(directory: Path, database: Database, **columns: Any) -> RelayConfig:
    return relay_config(directory, database=database, table={"name": "events", "columns": columns})


@pytest.mark.parametrize("headers", [None, *HEADER_TYPES])
@pytest.mark.parametrize("payload", PAYLOAD_TYPES)
def test_payload_and_headers(database: Database, tmp_path: Path, payload: str, headers: str | None) -> None:
    more = "" if headers is None else f", headers {headers}"
    database.execute(
        f"create table events ({IDENTITY.format('bigint')}, aggregateid text, type text, payload {payload}{more})"
    )
    named = {} if headers is None else {"headers": "headers"}
    assert refused(database, configured(tmp_path, database, route=None, **named)) == []


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_key_and_texts(database: Database, tmp_path: Path, kind: str) -> None:
    database.execute("create extension if not exists citext")
    database.execute("create type enum as enum ('happy', 'sad')")
    text = kind if kind in TEXT_TYPES else "text"
    database.execute(
        f'create table events ({IDENTITY.format("bigint")}, aggregatetype "{text}", aggregateid "{kind}",'
        f' type "{text}", payload text, mid "{text}")'.replace('"enum"', "enum").replace('"', "")
    )
    assert refused(database, configured(tmp_path, database, message_id="mid")) == []


@pytest.mark.parametrize("kind", EXTRA_HEADER_TYPES)
@pytest.mark.parametrize("row_id", ID_TYPES)
def test_further_columns(database: Database, tmp_path: Path, kind: str, row_id: str) -> None:
    database.execute("create extension if not exists citext")
    database.execute("create type enum as enum ('happy', 'sad')")
    database.execute(
        f"create table events ({IDENTITY.format(row_id)}, aggregatetype text, aggregateid text, type text,"
        f" payload json, extra {kind}, part {row_id}, goal text, at timestamptz)"
    )
    columns = {
        "extra_headers": ({"column": "extra", "header": "extra"},),
        "partition": "part",
        "topic": "goal",
        "created_at": "at",
    }
    config = configured(tmp_path, database, **columns)
    kafka = config.kafka.model_copy(update={"topic": "${topic}.${route}"})
    assert refused(database, config.model_copy(update={"kafka": kafka, "timestamps": "CreatedAt"})) == []
