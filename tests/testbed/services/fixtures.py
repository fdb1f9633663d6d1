"""pytest fixtures over the local services.

Import them by name in a tier's conftest.py; pytest knows no other way for a conftest below the root.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """A PostgreSQL server for the whole session."""
    with LocalPostgres(fsync=False) as server:
        yield server


@pytest.fixture
def database(postgres: LocalPostgres) -> Iterator[Database]:
    """A fresh database with an empty outbox table, owned by its login."""
    made = postgres.create_database()
    create_outbox_table(made)
    yield made
    postgres.drop_database(made)


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """A Kafka broker for the whole session."""
    with LocalKafka() as cluster:
        yield cluster


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[Topic]:
    """A fresh topic with three partitions."""
    made = kafka.create_topic(partitions=3)
    yield made
    kafka.delete_topic(made)
