"""What every bench stands on: a database with an outbox, a broker, and the relay or peer between them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.bench.debezium import DebeziumServer
from tests.bench.polling import PollingPeer
from tests.bench.table import Outbox
from tests.contract.relay.settings import POLICIES, relay_role
from tests.integration.harness.relay import OUTBOXRELAY, RelayProcess, relay_config
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import LocalPostgres
from tests.testbed.services.processes import ServiceProcess
from tests.testbed.services.table import PayloadType

PARTITIONS: Final = 12


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one bench, and its outbox."""

    outbox: Outbox
    postgres: LocalPostgres
    kafka: LocalKafka
    directory: Path

    @classmethod
    @contextmanager
    def started(cls, *, payload: PayloadType, rows: int) -> Iterator[Self]:
        """PostgreSQL with fsync, and one broker, for as long as the block takes."""
        with (
            tempfile.TemporaryDirectory(prefix="outboxrelay-bench-") as directory,
            LocalPostgres(settings={"shared_buffers": "1GB", "wal_level": "logical"}) as postgres,
            LocalKafka() as kafka,
        ):
            outbox = Outbox(database=postgres.create_database("bench"), payload=payload, rows=rows)
            outbox.create()
            yield cls(outbox=outbox, postgres=postgres, kafka=kafka, directory=Path(directory))

    @contextmanager
    def relay(
        self, topic: Topic, *, policy: str = "delete", command: Sequence[str] = (str(OUTBOXRELAY), "run")
    ) -> Iterator[RelayProcess]:
        """A relay that owns all lanes, with a retention policy of that name; `command` is what to run instead."""
        config = relay_config(
            database=relay_role(self.outbox.database, policy),
            bootstrap_servers=self.kafka.bootstrap_servers,
            topic=topic.name,
            directory=self.directory,
            retention=POLICIES[policy],
        )
        relay = RelayProcess(config, directory=self.directory, command=command)
        relay.start()
        try:
            relay.await_report(lambda report: len(report.lanes_owned) == report.lanes, what="all lanes owned")
            yield relay
        finally:
            relay.kill()

    def polling(self, peer: PollingPeer, topic: Topic) -> AbstractContextManager[ServiceProcess]:
        """A peer that polls a table of its own, as the owner of the database."""
        return peer.running(
            database=self.outbox.database, bootstrap_servers=self.kafka.bootstrap_servers, topic=topic.name
        )

    def debezium(self, topic: Topic, *, settings: dict[str, str]) -> DebeziumServer:
        """Debezium Server, not yet started, with a login that may replicate."""
        superuser = self.postgres.superuser
        return DebeziumServer(
            database=self.outbox.database.as_role(user=superuser.user, password=superuser.password),
            bootstrap_servers=self.kafka.bootstrap_servers,
            topic=topic.name,
            settings=settings,
        )
