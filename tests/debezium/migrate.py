"""The move of docs/migrating.md under load: `python -m tests.debezium.migrate`.

Debezium Server carries rows while they are written, the page's own statements are run, and a relay goes on. Needs Java
21 and fetches Debezium Server once (760 MB), so it is not part of `make test`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import LiteralString, cast

from tests.bench.debezium import DebeziumServer
from tests.integration.harness.checker import Delivered, check
from tests.integration.harness.consumer import await_messages, count, read_all
from tests.integration.harness.load import Load
from tests.integration.harness.relay import RelayProcess, relay_config
from tests.testbed.paths import REPOSITORY
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import Database, LocalPostgres

STEPS = ("number", "list", "confirmed", "remove", "drop the slot")
"""What the page's statements are for, block by block."""

ROWS = 2000
"""Carried by each of the two at least."""

HEADER = ("type", "eventType")

SETTINGS = {
    "debezium.transforms.outbox.table.fields.additional.placement": ":header:".join(HEADER),
    # Debezium Server writes headers as JSON documents, Kafka Connect as text.
    "debezium.format.header.schemas.enable": "false",
    # Names of the connector and its task, which no other relay has.
    "debezium.source.extended.headers.enabled": "false",
}


def main() -> int:
    """Run the move; returns 1 if a row was lost, changed or overtaken, or if nothing moved."""
    argparse.ArgumentParser(prog="python -m tests.debezium.migrate", description=__doc__).parse_args()
    steps = statements()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalPostgres(settings={"wal_level": "logical"}) as postgres,
        LocalKafka() as kafka,
    ):
        database = postgres.create_database()
        database.execute(
            "create table outbox (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null,"
            " aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)"
        )
        topic = kafka.create_topic(partitions=12)
        login = database.as_role(user=postgres.superuser.user, password=postgres.superuser.password)
        database.execute("create role relay login password 'relay'")
        server = DebeziumServer(
            database=login, bootstrap_servers=kafka.bootstrap_servers, topic=topic.name, settings=SETTINGS
        )
        with server, Load(database, keys=50, row_id="(payload ->> 'version')::bigint") as load:
            await_messages(kafka, topic, ROWS)
            before_the_stop(steps, database, kafka=kafka, topic=topic)
            server.stop()
            by_debezium = count(kafka, topic)
            for statement in steps["remove"]:
                database.execute(statement)
            relay = start_relay(database, kafka=kafka, topic=topic, directory=Path(directory))
            await_messages(kafka, topic, by_debezium + ROWS)
            (drop,) = steps["drop the slot"]
            login.execute(drop)
        eventually(lambda: not database.execute("select 1 from outbox limit 1"), seconds=60, what="an empty outbox")
        relay.kill()
        delivered = read_all(kafka, topic)
        verdict = check(committed=load.committed(), delivered=delivered)
        names = {tuple(sorted(message.headers)) for message in delivered}
        print(f"{by_debezium} messages by Debezium Server, {len(delivered) - by_debezium} by the relay: {verdict}")
        # The checker wants a header that Debezium's format does not have; the ids are compared here.
        ids = {message.payload: _id(message) for message in delivered}
        same = all(ids[message.payload] == _id(message) for message in delivered)
        wrong = (*verdict.lost, *verdict.foreign, *verdict.reordered, *verdict.outdated, *verdict.scattered)
        print(f"headers {names}; the same id in both copies of a row: {same}")
        return int(bool(wrong) or not same or names != {("eventType", "id")})


def statements() -> dict[str, list[LiteralString]]:
    """The page's SQL, by step."""
    page = (REPOSITORY / "docs" / "migrating.md").read_text("utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    # What is executed is the repository's own text.
    found = [[cast("LiteralString", each) for each in block.split(";") if each.strip()] for block in blocks]
    return dict(zip(STEPS, found, strict=True))


def before_the_stop(
    steps: dict[str, list[LiteralString]], database: Database, *, kafka: LocalKafka, topic: Topic
) -> None:
    """Number the rows, list those that are there, and wait until Debezium has surely sent all of the list."""
    for statement in steps["number"]:
        database.execute(statement)
    await_messages(kafka, topic, count(kafka, topic) + ROWS)
    create, position = steps["list"]
    database.execute(create)
    ((lsn,),) = database.execute(position)
    (confirmed,) = steps["confirmed"]
    eventually(
        lambda: database.execute(confirmed.replace("0/0", lsn)) == [(True,)], seconds=60, what=f"{lsn} to be confirmed"
    )


def start_relay(database: Database, *, kafka: LocalKafka, topic: Topic, directory: Path) -> RelayProcess:
    """A relay of the page's resource."""
    column, header = HEADER
    columns = {"id": "seq", "message_id": "id", "extra_headers": ({"column": column, "header": header},)}
    relay = RelayProcess(
        relay_config(
            database=database.as_role(user="relay", password="relay"),
            bootstrap_servers=kafka.bootstrap_servers,
            topic=topic.name,
            directory=directory,
            table={"columns": columns},
            format="Debezium",
        ),
        directory=directory,
    )
    relay.start()
    return relay


def _id(message: Delivered) -> str:
    return message.headers["id"].decode().strip('"')


if __name__ == "__main__":
    sys.exit(main())
