"""The bench's outbox: how it is filled, and how bare clients read it."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from tests.contract.relay.settings import prepare_policy
from tests.testbed.services.postgres import Database
from tests.testbed.services.table import PayloadType, create_outbox_table

KEYS = 10_000
PAYLOAD_BYTES = 300


@dataclass(frozen=True, slots=True)
class Outbox:
    """An outbox table that can be filled again and again with the same rows."""

    database: Database
    payload: PayloadType
    rows: int

    def create(self) -> None:
        """Make the table, and the rows' template, of the same size on every machine."""
        create_outbox_table(self.database, payload=self.payload)
        prepare_policy(self.database, "keep")
        # A document of 300 bytes as text; as bytea the same bytes.
        document = "'{\"n\": ' || lpad(n::text, 9, '1') || ', \"text\": \"' || repeat(md5(n::text), 9) || '\"}'"
        padded = f"left({document}, {PAYLOAD_BYTES - 2}) || '\"}}'"
        value = f"convert_to({padded}, 'utf8')" if self.payload == "bytea" else f"({padded})::{self.payload}"
        with self.database.connect() as connection:
            connection.execute(
                "create table template as select n, "
                f"'customer-' || (n::bigint * 7919 % {KEYS}) as key, {value} as payload, "
                "jsonb_build_object('tenant', 'tenant-' || n % 100, 'traceparent', '00-' || md5(n::text) || '-01')"
                " as headers "
                f"from generate_series(1, {self.rows}) n".encode()
            )

    def fill(self, connection: psycopg.Connection[tuple[object, ...]], *, rows: int | None = None) -> None:
        """Insert the rows, or so many of them over and over, in the transaction of `connection` if it has one."""
        wanted = self.rows if rows is None else rows
        connection.execute(
            "insert into outbox (aggregatetype, aggregateid, type, payload, headers)"
            " select 'order', key, 'OrderPlaced', payload, headers"
            " from generate_series(0, %s) round, template where round * %s + n <= %s order by round, n",
            [(wanted - 1) // self.rows, self.rows, wanted],
        )

    def refill(self) -> None:
        """Throw away what is there, fill, and let the server settle, so that each run starts alike."""
        self.empty()
        with self.database.connect() as connection:
            self.fill(connection)
            connection.execute("vacuum (analyze) outbox")

    def empty(self) -> None:
        """Empty tables without dead rows."""
        with self.database.connect() as connection:
            connection.execute("truncate outbox, outbox_sent restart identity")

    @property
    def payload_text(self) -> str:
        """The template's payload as text, in SQL."""
        return "convert_from(payload, 'utf8')" if self.payload == "bytea" else "payload::text"

    @property
    def select(self) -> bytes:
        """The bare client's query: a batch above an id, as bytes wherever that is cheapest."""
        payload = "payload" if self.payload == "bytea" else "convert_to(payload::text, 'utf8')"
        return (
            f"select id, convert_to(aggregateid, 'utf8'), {payload}, type, convert_to(headers::text, 'utf8')"
            " from outbox where id > %s order by id limit %s"
        ).encode()
