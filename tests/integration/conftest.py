"""Fixtures of the integration tier: PostgreSQL and Kafka on loopback, and one pair of table and topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness.relay import Pair, relay_config
from tests.testbed.services.fixtures import database, kafka, postgres, topic
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import Database, LocalPostgres

__all__ = ["database", "kafka", "postgres", "topic"]


@pytest.fixture
def pair(database: Database, kafka: LocalKafka, topic: Topic, tmp_path: Path) -> Iterator[Pair]:
    """A fresh table and topic, without any relay yet; relays are ended with the test."""
    config = relay_config(
        database=database.relay_role(), bootstrap_servers=kafka.bootstrap_servers, topic=topic.name, directory=tmp_path
    )
    made = Pair(database=database, topic=topic, config=config, directory=tmp_path)
    yield made
    made.end()


@pytest.fixture
def broker(kafka: LocalKafka, topic: Topic) -> Iterator[LocalKafka]:
    """The session's broker for tests that hurt it; runs again before `topic` is removed."""
    yield kafka
    for process in kafka.brokers:
        if process.running():
            process.resume()
    kafka.start()


@pytest.fixture
def server(postgres: LocalPostgres, database: Database) -> Iterator[LocalPostgres]:
    """The session's PostgreSQL server for tests that hurt it; runs again before `database` is removed."""
    yield postgres
    if postgres.process.running():
        postgres.resume()
    else:
        postgres.start()
    postgres.set_hba()
