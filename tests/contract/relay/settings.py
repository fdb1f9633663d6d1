"""Relay configurations for the local services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from outboxrelay.config import RelayConfig
from outboxrelay.stores.postgres import PostgresStore
from tests.testbed.services.postgres import Database

MakeStore = Callable[..., PostgresStore]
"""The fixture `make_store`."""


def relay_config(
    directory: Path,
    *,
    database: Database | None = None,
    bootstrap_servers: str = "127.0.0.1:1",
    topic: str = "orders",
    **changes: Any,
) -> RelayConfig:
    """A configuration whose secret files are in `directory`; `changes` replace whole top-level sections."""
    user, password = directory / "username", directory / "password"
    user.write_text(database.user if database else "nobody")
    password.write_text(database.password if database else "secret")
    document: dict[str, Any] = {
        "pair": {
            "namespace": "shop",
            "relay": "orders",
            "name": "orders-db-orders-0a1b2c",
            "database": "db",
            "topic": "orders",
        },
        "database": {
            "host": database.host if database else "127.0.0.1",
            "port": database.port if database else 1,
            "dbname": database.dbname if database else "orders",
            "credentials": {"username_file": str(user), "password_file": str(password)},
            "tls": {"mode": "verify-full", "ca_file": str(database.ca_file)} if database else {"mode": "disable"},
        },
        "kafka": {"bootstrap_servers": tuple(bootstrap_servers.split(",")), "topic": topic},
        "lanes": 4,
        "listen_host": "127.0.0.1",
        "listen_port": 0,
    }
    return RelayConfig.model_validate(document | changes)


MARK_STATUS: dict[str, Any] = {
    "policy": "Mark",
    "mark": {"column": "status", "pending": "new", "sent": "sent", "failed": "failed", "error_column": "error"},
}
"""A status column, as `prepare_policy` makes it."""

MARK_TIME: dict[str, Any] = {"policy": "Mark", "mark": {"column": "published_at"}}
"""A column of times."""

POLICIES: dict[str, dict[str, Any]] = {
    "delete": {},
    "mark-status": MARK_STATUS,
    "mark-time": MARK_TIME,
    "keep": {"policy": "Keep"},
}


def prepare_policy(database: Database, policy: str, *, table: str = "outbox") -> str:
    """Give a table what a policy needs; returns the condition for rows that were not sent."""
    if policy == "mark-status":
        database.execute(f"alter table {table} add status text not null default 'new', add error text")
        unsent = "status = 'new' or status = 'failed'"
    elif policy == "mark-time":
        database.execute(f"alter table {table} add published_at timestamptz")
        unsent = "published_at is null"
    else:
        if policy == "keep":
            database.execute(
                f"create table {table}_sent (like {table}, outbox_sent_at timestamptz not null default now())"
            )
        return "true"
    database.execute(f"create index {table}_unsent on {table} (id) where {unsent}")
    return f"({unsent})"


def relay_role(database: Database, policy: str) -> Database:
    """A login with no more than the policy needs."""
    role = database.relay_role()
    if policy == "keep":
        database.execute(f"grant insert on outbox_sent to {role.user}")
    elif policy != "delete":
        database.execute(f"revoke delete on outbox from {role.user}")
        database.execute(f"grant update on outbox to {role.user}")
    return role
