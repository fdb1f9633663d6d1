"""The fleet: OutboxRelays of 20 teams over 20 databases, each team in a namespace of its own with its own logins."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from psycopg import sql

from tests.testbed.api import Api, Object
from tests.testbed.cluster import Cluster
from tests.testbed.relays import relay, topic
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table

DATABASES: Final = 20
_CREATING_AT_ONCE: Final = 4
_TEMPLATE: Final = "outbox_like"


def namespace_of(number: int) -> str:
    """The team's that owns an OutboxRelay."""
    return f"team-{number % DATABASES:02}"


def name_of(number: int) -> str:
    """Of an OutboxRelay."""
    return f"relay-{number:04}"


class Databases:
    """20 databases of one server, with a table for each pair of the fleet."""

    def __init__(self, postgres: LocalPostgres, *, fleet: int) -> None:
        self.all = [postgres.create_database(f"app{number}") for number in range(DATABASES)]
        for number, database in enumerate(self.all):
            create_outbox_table(database, name=_TEMPLATE)
            with database.connect(autocommit=False) as connection:
                for owner in range(fleet):
                    if number in databases_of(owner):
                        name = sql.Identifier(table_of(owner))
                        like = sql.Identifier(_TEMPLATE)
                        connection.execute(sql.SQL("create table {} (like {} including all)").format(name, like))

    def secrets(self) -> Iterator[Object]:
        """A namespace for each team, with the logins for the databases that it uses."""
        for team in range(DATABASES):
            namespace = namespace_of(team)
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            for number in databases_of(team):
                yield _login(self.all[number], namespace=namespace, name=f"app{number}")


def databases_of(number: int) -> tuple[int, int]:
    """A team's own, and its neighbour's."""
    return number % DATABASES, (number + 1) % DATABASES


def table_of(number: int) -> str:
    """Every OutboxRelay has one in each of its databases."""
    return f"outbox_{number}"


def _login(database: Database, *, namespace: str, name: str) -> Object:
    values = {"username": database.user, "password": database.password}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


def outbox_relay(number: int, databases: Sequence[Database], **spec: Any) -> Object:
    """One of the fleet: a topic fed from two databases, which makes two pairs."""
    return relay(
        name_of(number),
        namespace=namespace_of(number),
        databases=[_database(databases[index], index, number) for index in databases_of(number)],
        topics=[topic("events", topic=f"team.events-{number}")],
        **spec,
    )


def _database(database: Database, index: int, number: int) -> Object:
    return {
        "name": f"app{index}",
        "host": database.host,
        "port": database.port,
        "dbname": database.dbname,
        "credentialsSecretRef": {"name": f"app{index}"},
        "table": {"name": table_of(number)},
    }


def create(cluster: Cluster, bodies: Sequence[Object]) -> None:
    """Send them as fast as the API server takes them, over a few connections."""
    parts = [bodies[start::_CREATING_AT_ONCE] for start in range(_CREATING_AT_ONCE)]

    def send(part: Sequence[Object]) -> None:
        api = Api(cluster.kubeconfig)
        for body in part:
            api.create(body)
        api.close()

    with ThreadPoolExecutor(_CREATING_AT_ONCE) as pool:
        list(pool.map(send, parts))
