"""The format Debezium against what Debezium itself emitted for the same rows, byte by byte.

`tests/debezium/record.py` made the records: the PostgreSQL connector 3.2 with its outbox event router, which read the
rows of `tests/debezium/tables.py` from the replication stream, and Kafka Connect's converters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.config import RelayConfig
from outboxrelay.extras import FIRST
from outboxrelay.ports import Row
from outboxrelay.publishers.formats.choice import header_source
from outboxrelay.publishers.routing import TopicTemplate
from outboxrelay.stores.postgres import PostgresStore
from tests.contract.relay.settings import relay_config
from tests.debezium.record import RECORDS
from tests.debezium.tables import HEADERS, TABLES, Table
from tests.testbed.services.postgres import Database

RECORDED: dict[str, list[dict[str, Any]]] = json.loads(RECORDS.read_text())


def config_of(table: Table, database: Database, directory: Path) -> RelayConfig:
    return relay_config(
        directory,
        database=database,
        format="Debezium",
        kafka={"bootstrap_servers": ("b:1",), "topic": "outbox.event.${route}"},
        table={
            "name": table.name,
            "columns": {
                "id": "seq",
                "message_id": "id",
                "type": None,
                "extra_headers": tuple({"column": column, "header": header} for column, header in HEADERS),
            },
        },
    )


def as_recorded(row: Row, config: RelayConfig) -> dict[str, Any]:
    def digits(value: Any) -> str | None:
        return None if value is None else bytes(value).hex()

    return {
        "topic": TopicTemplate(config.kafka.topic, {"route": FIRST}).name(row),
        "key": digits(row.key),
        "value": digits(row.payload),
        "headers": [[name, digits(value)] for name, value in header_source(config).build(row)],
        "partition": None,
    }


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_messages_are_those_that_debezium_emits(table: Table, database: Database, tmp_path: Path) -> None:
    for statement, parameters in table.statements():
        database.execute(statement, parameters or None)
    config = config_of(table, database, tmp_path)
    store = PostgresStore(config)
    try:
        store.open()
        store.rebalance()
        rows = store.read(limit=100, held_keys=[], held_ids=[]).rows
    finally:
        store.close()
    expected = [{key: value for key, value in each.items() if key != "timestamp"} for each in RECORDED[table.name]]
    assert [as_recorded(row, config) for row in rows] == expected
    assert len(expected) == len(table.rows)
