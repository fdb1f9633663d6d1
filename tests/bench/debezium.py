"""Debezium Server with its outbox event router, as the peer to be measured against.

It reads the write-ahead log through a replication slot; the relay reads the table. Both end with the same rows in the
same topic. Fetched with Maven once (760 MB) and kept in the cache; needs Java 21 or newer. Only the bench uses it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.bench.fetched import fetched, run
from tests.testbed.paths import cache_dir
from tests.testbed.services.eventually import eventually
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database
from tests.testbed.services.processes import ServiceError, ServiceProcess, free_port, remove, service_directory

VERSION: Final = "3.6.1.Final"
_OLDEST_JAVA: Final = 21
_START_SECONDS: Final = 120

TUNED: Final = {
    "debezium.format.header.schemas.enable": "false",
    "debezium.source.max.batch.size": "8192",
    "debezium.source.max.queue.size": "32768",
    "debezium.source.poll.interval.ms": "5",
    "debezium.sink.kafka.producer.linger.ms": "5",
    "debezium.sink.kafka.producer.batch.size": "1000000",
    "debezium.sink.kafka.producer.compression.type": "lz4",
    "debezium.sink.kafka.producer.buffer.memory": "268435456",
}
"""Its best settings found: batches as large as the relay's, the same compression, a short wait for more, no
schema in each header."""


def java() -> Path:
    """A Java that is new enough.

    Raises:
        ServiceError: there is none.
    """
    candidates = [Path(found) for found in (shutil.which("java"),) if found]
    candidates += sorted(Path("/usr/lib/jvm").glob("*/bin/java"), reverse=True)
    for candidate in candidates:
        said = subprocess.run([str(candidate), "-version"], capture_output=True, text=True, timeout=30, check=False)
        found = re.search(r'version "(\d+)', said.stderr)
        if found and int(found[1]) >= _OLDEST_JAVA:
            return candidate
    raise ServiceError(f"Debezium Server needs Java {_OLDEST_JAVA} or newer, and there is none in /usr/lib/jvm")


def distribution() -> Path:
    """The unpacked server; fetched if it is not there yet.

    Raises:
        ServiceError: Maven could not fetch it.
    """
    return fetched(cache_dir() / "debezium-server" / VERSION, _unpack) / "debezium-server"


def _unpack(directory: Path) -> None:
    artifact = f"io.debezium:debezium-server-dist:{VERSION}:tar.gz"
    command = [str(program("mvn")), "-B", "-q", "dependency:copy", f"-Dartifact={artifact}"]
    run([*command, f"-DoutputDirectory={directory}"], what=f"{artifact} with Maven")
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    archive.unlink()


class DebeziumServer:
    """One server for one outbox table and one topic; streaming when the block is entered."""

    def __init__(
        self, *, database: Database, bootstrap_servers: str, topic: str, settings: dict[str, str] | None = None
    ) -> None:
        """`database`: a login with the right to replicate; `settings` are Debezium's own."""
        self._database = database
        self._settings = self._basic(bootstrap_servers, topic) | (settings or {})
        self._directory: Path | None = None
        self._process: ServiceProcess | None = None

    def _basic(self, bootstrap_servers: str, topic: str) -> dict[str, str]:
        text = "org.apache.kafka.common.serialization.StringSerializer"
        database = self._database
        return {
            "debezium.sink.type": "kafka",
            "debezium.sink.kafka.producer.bootstrap.servers": bootstrap_servers,
            "debezium.sink.kafka.producer.acks": "all",
            "debezium.sink.kafka.producer.key.serializer": text,
            "debezium.sink.kafka.producer.value.serializer": text,
            "debezium.format.key": "simplestring",
            "debezium.format.value": "simplestring",
            "debezium.source.connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "debezium.source.offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "debezium.source.offset.flush.interval.ms": "1000",
            "debezium.source.database.hostname": database.host,
            "debezium.source.database.port": str(database.port),
            "debezium.source.database.user": database.user,
            "debezium.source.database.password": database.password,
            "debezium.source.database.dbname": database.dbname,
            "debezium.source.database.sslmode": "require",
            "debezium.source.topic.prefix": "bench",
            "debezium.source.table.include.list": "public.outbox",
            "debezium.source.plugin.name": "pgoutput",
            "debezium.source.publication.autocreate.mode": "filtered",
            "debezium.source.snapshot.mode": "no_data",
            "debezium.source.tombstones.on.delete": "false",
            "debezium.transforms": "outbox",
            "debezium.transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "debezium.transforms.outbox.table.fields.additional.placement": "type:header:eventType,headers:header",
            "debezium.transforms.outbox.route.topic.replacement": topic,
            "quarkus.http.port": str(free_port()),
            "quarkus.http.host": "127.0.0.1",
            "quarkus.log.level": "WARN",
        }

    def __enter__(self) -> Self:
        home, runtime = distribution(), java()
        self._directory = service_directory("debezium")
        config = self._directory / "config"
        config.mkdir()
        lines = [f"{name}={value}\n" for name, value in self._settings.items()]
        (config / "application.properties").write_text("".join(lines))
        jars = [str(path) for path in sorted(home.glob("*.jar"))] + [str(home / "lib" / "*"), str(config.parent)]
        self._process = ServiceProcess(
            name="debezium",
            directory=self._directory,
            command=[
                str(runtime),
                "-Xmx2g",
                # It reads a kubeconfig that it finds, and ends for want of a class that would.
                "-Dkubernetes.auth.tryKubeConfig=false",
                "-cp",
                os.pathsep.join(jars),
                "io.debezium.server.Main",
            ],
        )
        try:
            self._process.start()
            eventually(
                self._streams,
                seconds=_START_SECONDS,
                what="Debezium's slot to be read",
                interval_seconds=0.5,
                detail=self._process.log_tail,
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _streams(self) -> bool:
        self.pid  # noqa: B018  # raises with the end of the log when the server has ended
        return bool(self._database.execute("select 1 from pg_replication_slots where active"))

    @property
    def pid(self) -> int:
        """The Java process."""
        if self._process is None:
            raise ServiceError("Debezium Server was not started")
        return self._process.id.pid

    def log_tail(self) -> str:
        """The end of its log, for messages."""
        return "(not started)" if self._process is None else self._process.log_tail()

    def stop(self) -> None:
        """End the server; its slot stays, and with it the way back."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM, seconds=20)
            self._process = None

    def close(self) -> None:
        """End the server, drop its slot, remove its files."""
        self.stop()
        if self._directory is not None:
            remove(self._directory)
            self._directory = None
        eventually(self._without_slot, seconds=30, what="end of Debezium's slot")

    def _without_slot(self) -> bool:
        slots = self._database.execute("select slot_name, active from pg_replication_slots")
        for name, active in slots:
            if not active:
                self._database.execute("select pg_drop_replication_slot(%s)", [name])
        return not any(active for _, active in slots)
