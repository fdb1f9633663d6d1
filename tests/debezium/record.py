"""Records what Debezium emits for the rows of `tables`: `python -m tests.debezium.record` writes records.json.

Needs Java 17 and Maven, and takes about a minute. The connector reads a PostgreSQL server of its own, so what is
recorded went the whole way: pgoutput, the connector's types, the router and Kafka Connect's converters.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.debezium.tables import HEADERS, TABLES, Table
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database, LocalPostgres

HERE = Path(__file__).parent
RECORDS = HERE / "records.json"


def main() -> None:
    """Write the records of all tables."""
    with tempfile.TemporaryDirectory() as name, LocalPostgres(settings={"wal_level": "logical"}) as server:
        directory = Path(name)
        jars = directory / "jars"
        subprocess.run(
            [
                program("mvn"),
                *("-B", "-q", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"),
                f"-DoutputDirectory={jars}",
            ],
            check=True,
        )
        database = replace(server.create_database(), user=server.superuser.user, password=server.superuser.password)
        recorded = {table.name: _record(table, database, jars=jars, directory=directory) for table in TABLES}
    RECORDS.write_text(json.dumps(recorded, indent=1) + "\n")


def _record(table: Table, database: Database, *, jars: Path, directory: Path) -> list[dict[str, Any]]:
    create, *inserts = table.statements()
    with database.connect() as connection:
        connection.execute(create[0].encode())
        # The slot comes before the rows, so that they are streamed and not read by a snapshot.
        connection.execute(f"create publication {table.name} for table {table.name}".encode())
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [table.name])
        for statement, parameters in inserts:
            connection.execute(statement.encode(), parameters)
    settings = {
        "name": table.name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "topic.prefix": "server",
        "plugin.name": "pgoutput",
        "slot.name": table.name,
        "publication.name": table.name,
        "publication.autocreate.mode": "disabled",
        "database.hostname": database.host,
        "database.port": str(database.port),
        "database.dbname": database.dbname,
        "database.user": database.user,
        "database.password": database.password,
        "database.sslmode": "require",
        "table.include.list": f"public.{table.name}",
        "snapshot.mode": "no_data",
        # Names of the connector and its task, which no other relay has.
        "extended.headers.enabled": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.fields.additional.placement": ",".join(f"{a}:header:{b}" for a, b in HEADERS),
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "io.debezium.converters.BinaryDataConverter"
        if table.payload == "bytea"
        else "org.apache.kafka.connect.storage.StringConverter",
    }
    file, output = directory / f"{table.name}.properties", directory / f"{table.name}.out"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    subprocess.run(
        [program("java"), "-cp", f"{jars}/*", HERE / "Router.java", file, str(len(table.rows)), output], check=True
    )
    return [json.loads(line) for line in output.read_text().splitlines()]


if __name__ == "__main__":
    main()
