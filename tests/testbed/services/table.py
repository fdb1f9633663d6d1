"""The outbox table of the tests: Debezium's column names and a bigint identity as the id."""

from __future__ import annotations

from typing import Literal

from psycopg import sql

from tests.testbed.services.postgres import Database

PayloadType = Literal["jsonb", "json", "text", "bytea"]


def create_outbox_table(
    database: Database, *, schema: str = "public", name: str = "outbox", payload: PayloadType = "jsonb"
) -> None:
    """Create an outbox table as the README tells users to, in an existing or a new schema."""
    relation = sql.Identifier(schema, name)
    with database.connect() as connection:
        connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
        connection.execute(
            sql.SQL(
                """create table {} (
                    id bigint generated always as identity primary key,
                    aggregatetype text not null,
                    aggregateid text,
                    type text,
                    payload {},
                    headers jsonb,
                    created_at timestamptz not null default now()
                ) with (
                    autovacuum_vacuum_scale_factor = 0,
                    autovacuum_vacuum_threshold = 10000,
                    autovacuum_vacuum_cost_delay = 0
                )"""
            ).format(relation, sql.SQL(payload))
        )
