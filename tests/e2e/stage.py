"""What an end-to-end test sees: one installation of the product with PostgreSQL and Kafka beside it.

Everything is reached through the API server (exec and proxy), so that any cluster will do, also one whose pods
cannot be reached from here.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from outboxrelay.report import RelayReport
from outboxrelay_operator.names import OWNED_SELECTOR, pair_name, selector
from tests.testbed import Cluster
from tests.testbed.api import Api, Object, path_of
from tests.testbed.relays import database, relay, topic
from tests.testbed.services.eventually import eventually

RELEASE = "outboxrelay"
OPERATOR_LABELS = f"app.kubernetes.io/name=outboxrelay-operator,app.kubernetes.io/instance={RELEASE}"
DBNAME = "shop"

REACT_SECONDS = 30
"""Within which the product promises to report a fault, and to have healed after it was mended."""

START_SECONDS = 90
"""For pods to start on a busy machine: a bound on the cluster's speed, not the product's."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic."""

    partition: int
    key: str | None
    value: str | None
    headers: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Stage:
    """The installation; it serves two namespaces, and services and operator are in the first."""

    cluster: Cluster
    api: Api
    namespace: str
    second: str

    def sql(self, statement: str, *, dbname: str = DBNAME) -> str:
        """Run SQL as superuser; returns the rows as psql's unaligned text."""
        return self.cluster.kubectl(*self._psql(dbname), "-c", statement, timeout=120).strip()

    def start_writing(self, table: str, *, batches: int, rows: int, keys: int, first: int = 1) -> subprocess.Popen[str]:
        """Start a writer that commits numbered rows batch by batch, with short pauses; ends by itself."""
        statement = f"""do $$ begin
            for n in 0 .. {batches - 1} loop
              {insert(table, rows=rows, keys=keys, first=f"{first} + n * {rows}")};
              commit;
              perform pg_sleep(0.05);
            end loop;
          end $$"""
        return self.start_sql(statement)

    def start_sql(self, statement: str, *, dbname: str = DBNAME) -> subprocess.Popen[str]:
        """Start SQL as superuser without waiting for its end."""
        return subprocess.Popen(
            [str(self.cluster.tool("kubectl")), *self._psql(dbname), "-c", statement],
            env=self.cluster.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _psql(self, dbname: str) -> tuple[str, ...]:
        options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", dbname)
        return ("exec", "-n", self.namespace, "deploy/postgres", "--", "psql", *options)

    def create_table(self, name: str, *, dbname: str = DBNAME) -> None:
        """Make an outbox table with the rights that a relay needs."""
        self.sql(
            dbname=dbname,
            statement=f"""create table {name} (
              id bigint generated always as identity primary key, aggregatetype text, aggregateid text, type text,
              payload jsonb, created_at timestamptz not null default clock_timestamp());
            grant select, delete on {name} to relay""",
        )

    def write(self, table: str, *, rows: int, keys: int = 10, first: int = 1, route: str = "order") -> None:
        """Commit rows in one transaction; the numbers in the payloads go on from `first`."""
        self.sql(insert(table, rows=rows, keys=keys, first=first, route=route))

    def count(self, table: str) -> int:
        """Rows that are in the table now."""
        return int(self.sql(f"select count(*) from {table}"))

    def copy_secrets(self, namespace: str) -> None:
        """Bring the relay's login and the CA into another namespace."""
        for name in ("relay-login", "postgres-ca"):
            data = self.api.get("Secret", name, namespace=self.namespace)["data"]
            metadata = {"name": name, "namespace": namespace}
            self.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def create_topic(self, name: str, *, partitions: int = 3, **config: str) -> None:
        """Make a Kafka topic."""
        settings = (f"{key.replace('_', '.')}={value}" for key, value in config.items())
        self._toolbox("create", name, str(partitions), *settings)

    def ensure_topic(self, name: str) -> None:
        """Make a Kafka topic unless an earlier test has made it."""
        self._toolbox("ensure", name, "3")

    def consume(self, topic: str) -> list[Message]:
        """Everything that is in the topic now."""
        return [Message(**json.loads(line)) for line in self._toolbox("consume", topic).splitlines()]

    def set_kafka_password(self, user: str, password: str) -> None:
        """Make a SCRAM user of the broker, or give it another password."""
        self._toolbox("password", user, password)

    def put_secret(self, name: str, **values: str) -> None:
        """Create or change a Secret of the first namespace."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        metadata = {"name": name, "namespace": self.namespace}
        self.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def _toolbox(self, *arguments: str) -> str:
        program = ("exec", "-n", self.namespace, "toolbox", "--", "python", "/opt/toolbox/toolbox.py")
        return self.cluster.kubectl(*program, *arguments, timeout=60)

    def status(self, name: str, *, namespace: str | None = None) -> Object:
        """The status of an OutboxRelay; empty while there is none."""
        status: Object = self.api.get("OutboxRelay", name, namespace=namespace or self.namespace).get("status") or {}
        return status

    def deployment(self, relay_name: str, *, database: str, topic: str, namespace: str | None = None) -> Object | None:
        """The Deployment of a pair."""
        name = pair_name(relay=relay_name, database=database, topic=topic)
        return self.api.find("Deployment", name, namespace=namespace or self.namespace)

    def all_relay_pods(self, name: str | None = None) -> list[Object]:
        """The relay pods of one OutboxRelay, or of all, in the first namespace; also those that are being deleted."""
        labels = OWNED_SELECTOR if name is None else selector(name)
        return self.api.list("Pod", namespace=self.namespace, labels=labels)

    def relay_pods(self, name: str) -> list[Object]:
        """The relay pods of an OutboxRelay that are not being deleted."""
        return [pod for pod in self.all_relay_pods(name) if "deletionTimestamp" not in pod["metadata"]]

    def operator_pods(self) -> list[Object]:
        """The operator's pods that are not being deleted."""
        pods = self.api.list("Pod", namespace=self.namespace, labels=OPERATOR_LABELS)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def requests(self) -> dict[tuple[str, str, str], float]:
        """The operator's requests to the API server so far, by verb, plural and HTTP status."""
        return {
            (sample.labels["verb"], sample.labels["resource"], sample.labels["code"]): sample.value
            for sample in self._operator_samples("outboxrelay_operator_api_requests_total")
        }

    def passes(self) -> float:
        """The operator's passes over any OutboxRelay so far."""
        return sum(sample.value for sample in self._operator_samples("outboxrelay_operator_reconcile_seconds_count"))

    def _operator_samples(self, name: str) -> Iterator[Sample]:
        (pod,) = self.operator_pods()
        for family in text_string_to_metric_families(self.from_pod(pod, "/metrics")):
            yield from (sample for sample in family.samples if sample.name == name)

    def from_pod(self, pod: Object, path: str) -> str:
        """GET a path of a pod's port 8080, by way of the API server."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        return self.api.text("GET", path_of("Pod", f"{name}:8080", namespace=namespace, subresource=f"proxy{path}"))

    def report(self, pod: Object) -> RelayReport:
        """What a relay says about itself."""
        return RelayReport.model_validate_json(self.from_pod(pod, "/status"))

    def serve(self, name: str, *, partitions: int = 3, **spec: Any) -> None:
        """A table, a topic and an OutboxRelay between them, all of that name; waits until rows flow."""
        self.create_table(name)
        self.create_topic(name, partitions=partitions)
        self.api.create(self.relay(name, databases=[self.database(name)], topics=[topic(name, topic=name)], **spec))
        self.wait_ready(name)

    def wait_ready(self, name: str, *, seconds: float = START_SECONDS, namespace: str | None = None) -> Object:
        """Wait until every pair is ready, and that is said of the spec as it is now; returns the status."""
        resource = self.api.get("OutboxRelay", name, namespace=namespace or self.namespace)
        generation = resource["metadata"]["generation"]
        return self.wait_status(
            name,
            lambda status: (
                status.get("observedGeneration", 0) >= generation and condition(status, "Ready").get("status") == "True"
            ),
            what="every pair to be ready",
            seconds=seconds,
            namespace=namespace,
        )

    def wait_told(self, name: str, *, seconds: float = REACT_SECONDS, **conditions: tuple[str, str]) -> Object:
        """Wait until conditions have these statuses and reasons, all at once; returns the status of the resource."""
        return self.wait_status(
            name,
            lambda status: all(verdict_of(status, kind) == wanted for kind, wanted in conditions.items()),
            what=f"the conditions {conditions}",
            seconds=seconds,
        )

    def wait_status(
        self,
        name: str,
        holds: Callable[[Object], object],
        *,
        what: str,
        seconds: float = REACT_SECONDS,
        namespace: str | None = None,
    ) -> Object:
        """Wait until `holds` is true of the status of an OutboxRelay; returns the one it was true of."""

        def found() -> Object | None:
            status = self.status(name, namespace=namespace)
            return status if holds(status) else None

        return eventually(
            found,
            seconds=seconds,
            what=f"the status of {name} to tell: {what}",
            detail=lambda: json.dumps(self.status(name, namespace=namespace), indent=1),
        )

    def wait_reconciled(self, name: str, replicas: int) -> None:
        """Wait until a change of spec.replicas of a resource with one pair is carried out: somebody leads."""
        self.api.merge("OutboxRelay", name, {"spec": {"replicas": replicas}}, namespace=self.namespace)
        eventually(
            lambda: self.status(name).get("readyReplicas") == replicas == len(self.relay_pods(name)),
            seconds=START_SECONDS,
            what=f"{name} to have {replicas} pods",
        )

    def wait_delivered(
        self, topic: str, expected: set[tuple[str, int]], *, seconds: float = REACT_SECONDS
    ) -> list[Message]:
        """Wait until these (key, number) are in the topic; returns all its messages."""
        found: list[Message] = []

        def complete() -> bool:
            found[:] = self.consume(topic)
            return {numbered(message) for message in found} >= expected

        eventually(complete, seconds=seconds, what=f"{len(expected)} rows in {topic}", interval_seconds=0.5)
        return found

    def gone(self, kind: str, name: str, *, seconds: float = START_SECONDS, namespace: str | None = None) -> None:
        """Wait until an object is gone."""
        where = namespace if namespace is not None else self.namespace
        eventually(
            lambda: self.api.find(kind, name, namespace=where) is None, seconds=seconds, what=f"{kind} {name} gone"
        )

    def database(self, name: str, **fields: Any) -> Object:
        """A spec.databases entry over the table of that name."""
        return database(
            name,
            **{
                "host": f"postgres.{self.namespace}.svc",
                "dbname": DBNAME,
                "credentialsSecretRef": {"name": "relay-login"},
                "tls": {"caSecretRef": {"name": "postgres-ca"}},
                "table": {"name": name, "columns": {"createdAt": "created_at"}},
            }
            | fields,
        )

    def relay(self, name: str, *, databases: Sequence[Object], topics: Sequence[Object], **spec: Any) -> Object:
        """An OutboxRelay in the first namespace."""
        kafka = {"bootstrapServers": [f"kafka.{self.namespace}.svc:9092"]}
        return relay(
            name, namespace=self.namespace, databases=list(databases), topics=list(topics), kafka=kafka, **spec
        )


def insert(table: str, *, rows: int, keys: int, first: int | str, route: str = "order") -> str:
    """SQL that writes numbered rows, whose keys take turns; `first` may be an expression."""
    return f"""insert into {table} (aggregatetype, aggregateid, type, payload)
      select '{route}', 'k' || (i % {keys}), 'Changed', jsonb_build_object('number', i)
      from generate_series({first}, {first} + {rows - 1}) as i order by i"""


def written(*, rows: int, keys: int = 10, first: int = 1) -> set[tuple[str, int]]:
    """The (key, number) of what `insert` with these arguments writes."""
    return {(f"k{number % keys}", number) for number in range(first, first + rows)}


def numbered(message: Message) -> tuple[str, int]:
    """The (key, number) of a message."""
    assert message.key is not None
    assert message.value is not None
    return message.key, json.loads(message.value)["number"]


def out_of_order(messages: Sequence[Message]) -> list[tuple[str, int]]:
    """Messages that arrived behind a later one of their key; what arrives again does not count."""
    newest: dict[str, int] = {}
    seen: set[str | None] = set()
    late = []
    for message in messages:
        key, number = numbered(message)
        if message.headers["outbox-id"] in seen:
            continue
        seen.add(message.headers["outbox-id"])
        if number < newest.get(key, number):
            late.append((key, number))
        newest[key] = max(number, newest.get(key, number))
    return late


def condition(status: Object, kind: str) -> Object:
    """One condition; empty if there is none."""
    found: Object = next((item for item in status.get("conditions", []) if item["type"] == kind), {})
    return found


def verdict_of(status: Object, kind: str) -> tuple[str | None, str | None]:
    """Status and reason of one condition."""
    found = condition(status, kind)
    return found.get("status"), found.get("reason")


def pair_status(status: Object, *, database: str, topic: str) -> Object:
    """The entry of one pair; empty while there is none."""
    pairs = status.get("pairs", [])
    found: Object = next((p for p in pairs if p["database"] == database and p["topic"] == topic), {})
    return found


def uids(objects: Sequence[Object]) -> set[str]:
    """What tells one pod from its successor."""
    return {item["metadata"]["uid"] for item in objects}
