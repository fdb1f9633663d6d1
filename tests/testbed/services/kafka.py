"""A Kafka cluster in KRaft mode on loopback, for the integration tests and the bench."""

from __future__ import annotations

import fcntl
import hashlib
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from tests.testbed.paths import cache_dir
from tests.testbed.services.eventually import eventually
from tests.testbed.services.packages import program
from tests.testbed.services.processes import (
    ServiceError,
    ServiceProcess,
    free_port,
    remove,
    service_directory,
)

_HERE = Path(__file__).parent / "kafka"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists."""

    name: str
    partitions: int


def kafka_version() -> str:
    """The version named in the pom."""
    found = re.search(r"<kafka\.version>([^<]+)<", (_HERE / "pom.xml").read_text())
    if found is None:
        raise ServiceError(f"no kafka.version in {_HERE / 'pom.xml'}")
    return found[1]


def kafka_jars() -> Path:
    """The directory with the broker's class path, fetched by Maven once per version."""
    pom = (_HERE / "pom.xml").read_bytes()
    target = cache_dir() / "kafka" / f"{kafka_version()}-{hashlib.sha256(pom).hexdigest()[:8]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        # Renamed when complete: a killed download must not look like a finished one.
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=target.parent))
        command = [str(program("mvn")), "-B", "-q", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={unfinished}"], capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            shutil.rmtree(unfinished)
            raise ServiceError(
                f"cannot fetch Kafka {kafka_version()} with Maven: {(done.stdout + done.stderr)[-2000:]}"
            )
        unfinished.chmod(0o755)
        unfinished.rename(target)
    return target


class LocalKafka:
    """A Kafka cluster of `brokers` nodes, each broker and controller, on free ports of 127.0.0.1.

    Topics are not created by use. `settings` are added to each broker's server.properties.
    """

    def __init__(self, *, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self._count = brokers
        self._settings = dict(settings or {})
        self._ports = [(free_port(), free_port()) for _ in range(brokers)]
        self._directory: Path | None = None
        self.brokers: list[ServiceProcess] = []
        self.java_options: list[str] = []

    def __enter__(self) -> Self:
        self._directory = service_directory("kafka")
        try:
            self._format(self._directory)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def controller_address(self) -> str:
        """host:port of the first node's controller."""
        return f"127.0.0.1:{self._ports[0][1]}"

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for port, _ in self._ports)

    def start(self) -> None:
        """Start the brokers that do not run, and wait until all have registered and answer."""
        for broker in self.brokers:
            if not broker.running():
                broker.start()
        for broker in self.brokers:
            broker.await_ready(self._answers, seconds=120)

    def stop(self, index: int | None = None) -> None:
        """Controlled shutdown of one broker, or of all."""
        for broker in self._chosen(index):
            broker.stop(signal.SIGTERM, seconds=60)

    def kill(self, index: int | None = None) -> None:
        """kill -9 of one broker, or of all."""
        for broker in self._chosen(index):
            broker.kill()

    def pause(self, index: int | None = None) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        for broker in self._chosen(index):
            broker.pause()

    def resume(self, index: int | None = None) -> None:
        """Continue after `pause`; when all of them do, wait until they have registered again and answer.

        The controller fences a broker that was silent for broker.session.timeout.ms (9 s): until its next heartbeat it
        accepts connections, but is in nobody's list of brokers, and a client that asks then does not ask again soon.
        """
        for broker in self._chosen(index):
            broker.resume()
        if index is None:
            for broker in self.brokers:
                broker.await_ready(self._answers, seconds=120)

    def close(self) -> None:
        """End the brokers and remove their data."""
        for broker in self.brokers:
            broker.kill()
        self.brokers = []
        if self._directory is not None:
            remove(self._directory)
            self._directory = None

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        """An administration client of this cluster.

        Ended here. Garbage is also collected in a client's own thread, and librdkafka aborts the process when that ends
        the client.
        """
        with AdminClient(
            {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "socket.timeout.ms": 10_000}
        ) as client:
            yield client

    def create_topic(
        self, *, partitions: int = 1, configs: Mapping[str, str] | None = None, name: str | None = None
    ) -> Topic:
        """Create a topic, and wait until the leader of each partition serves it.

        A broker tells of a new leader before that one knows of it: requests in between get NOT_LEADER_OR_FOLLOWER.
        """
        name = name or f"topic-{secrets.token_hex(5)}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=self._count, config=dict(configs or {}))
        with self.admin() as admin:
            admin.create_topics([new])[name].result(timeout=30)

            def is_served() -> bool:
                known = admin.list_topics(name, timeout=10).topics[name].partitions
                if len(known) != partitions or any(partition.leader < 0 for partition in known.values()):
                    return False
                latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
                ends = {TopicPartition(name, number): latest for number in range(partitions)}
                return all(end.result(timeout=10).offset >= 0 for end in admin.list_offsets(ends).values())

            eventually(is_served, seconds=30, what=f"leaders of topic {name}", tolerate=(KafkaException,))
        return Topic(name=name, partitions=partitions)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and wait until the broker has forgotten it."""
        with self.admin() as admin:
            admin.delete_topics([topic.name])[topic.name].result(timeout=30)
            eventually(
                lambda: topic.name not in admin.list_topics(timeout=10).topics,
                seconds=30,
                what=f"end of topic {topic.name}",
            )

    def topics(self) -> set[str]:
        """The names of those that exist."""
        with self.admin() as admin:
            return set(admin.list_topics(timeout=10).topics)

    def watermarks(self, topic: Topic) -> dict[int, tuple[int, int]]:
        """First and next offset of each partition.

        A broker that has just come back may deny for a moment that a partition exists, and a client that asked then
        may go on believing it, so each attempt is a client of its own.
        """

        def asked() -> dict[int, tuple[int, int]]:
            consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "tests", "log_level": 0})
            try:
                return {
                    number: consumer.get_watermark_offsets(TopicPartition(topic.name, number), timeout=10)
                    for number in range(topic.partitions)
                }
            finally:
                consumer.close()

        return eventually(asked, seconds=60, what=f"offsets of topic {topic.name}", tolerate=(KafkaException,))

    def configure_topic(self, topic: Topic, **settings: str) -> None:
        """Change settings of a topic; underscores in their names stand for dots."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name, incremental_configs=entries)
        with self.admin() as admin:
            admin.incremental_alter_configs([resource])[resource].result(timeout=30)

    def _security(self, home: Path) -> dict[str, str]:  # noqa: ARG002  for subclasses
        """Further settings of a broker, with what they need in its directory."""
        return {}

    def _chosen(self, index: int | None) -> list[ServiceProcess]:
        return self.brokers if index is None else [self.brokers[index]]

    def _answers(self) -> bool:
        """All are known to each other, and the controller would place replicas on all of them.

        What a broker knows of the others may be from before a pause, after which the controller fences it only now.
        """
        probe = NewTopic("probe", num_partitions=1, replication_factor=self._count)
        try:
            with self.admin() as admin:
                admin.create_topics([probe], validate_only=True, request_timeout=2)["probe"].result(timeout=5)
                known = admin.list_topics(timeout=2).brokers
        except (KafkaException, TimeoutError):
            return False
        return len(known) == self._count

    def _format(self, directory: Path) -> None:
        jars = kafka_jars()
        java = [str(program("java")), "-cp", f"{jars}/*", f"-Dlog4j2.configurationFile={_HERE / 'log4j2.xml'}"]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, (_, port) in enumerate(self._ports, start=1))
        for node, (port, controller_port) in enumerate(self._ports, start=1):
            home = directory / f"broker-{node}"
            home.mkdir()
            properties = home / "server.properties"
            settings = {
                "node.id": str(node),
                "process.roles": "broker,controller",
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": str(home / "data"),
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
                "min.insync.replicas": str(min(2, self._count)),
                "offsets.topic.num.partitions": "1",
                "offsets.topic.replication.factor": str(self._count),
                "transaction.state.log.num.partitions": "1",
                "transaction.state.log.replication.factor": str(self._count),
                "transaction.state.log.min.isr": str(min(2, self._count)),
            }
            settings |= self._security(home) | self._settings
            properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            done = subprocess.run(
                # Joined by "=": one id in 64 begins with a dash.
                [
                    java[0],
                    *self.java_options,
                    *java[1:],
                    "kafka.tools.StorageTool",
                    "format",
                    f"--cluster-id={cluster}",
                    "-c",
                    str(properties),
                ],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode:
                raise ServiceError(f"cannot format {home}: {(done.stdout + done.stderr)[-2000:]}")
            self.brokers.append(
                ServiceProcess(
                    name=f"kafka-{node}",
                    directory=directory,
                    command=[java[0], "-Xmx512m", *self.java_options, *java[1:], "kafka.Kafka", str(properties)],
                )
            )
