"""The demo's tables are what `outboxrelay check` asks for: newcomers copy them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.stores.preflight import examine_table
from outboxrelay.stores.session import connect
from tests.contract.relay.settings import relay_config
from tests.demo import manifests
from tests.testbed.services.postgres import Database


@pytest.mark.parametrize(
    ("name", "match"),
    [("orders", {"include": ("order",)}), ("orders", {"exclude": ("order",)}), ("payments", {})],
)
def test_nothing_is_found_in_the_tables_of_the_demo(
    database: Database, tmp_path: Path, name: str, match: dict[str, Any]
) -> None:
    role = f"relay_{secrets.token_hex(4)}"
    database.execute(f"create role {role}")
    database.execute("drop table outbox")
    database.execute(manifests.setup_sql(name, relay=role))
    config = relay_config(tmp_path, database=database, match=match, table={"columns": {"created_at": "created_at"}})
    with connect(config) as connection:
        assert [each for each in examine_table(connection, config, user=role) if each.level != "ok"] == []
