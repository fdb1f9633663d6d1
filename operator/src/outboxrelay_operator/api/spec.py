"""`spec`: what a person writes. Defaults and every rule that spans fields are here and nowhere else."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field
from pydantic.config import JsonDict

from outboxrelay_operator.api.autoscaling import Autoscaling
from outboxrelay_operator.api.database import Database
from outboxrelay_operator.api.fields import DnsLabel, RouteValue, TopicTemplate
from outboxrelay_operator.api.kafka import Kafka
from outboxrelay_operator.api.message import FORMAT_DESCRIPTION, CloudEvents, Format
from outboxrelay_operator.api.model import Model, Rule
from outboxrelay_operator.api.on_error import OnError
from outboxrelay_operator.api.pod import Pod
from outboxrelay_operator.api.retention import Retention
from outboxrelay_operator.api.slo import Slo

MAX_PAIRS = 256
"""Bounds the size of the status, which lists every pair, far below etcd's limit of 1.5 MiB for an object."""

_SET: JsonDict = {"x-kubernetes-list-type": "set"}
_MAP_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class Topic(Model):
    name: DnsLabel = Field(description="Unique in this OutboxRelay; becomes part of the names of its Deployments.")
    topic: Annotated[
        TopicTemplate,
        Field(
            description=(
                "The Kafka topic to send to. It must exist. ${route} stands for a row's table.columns.route, and "
                "${topic} for its table.columns.topic, as in outbox.event.${route}; a row whose topic does not exist "
                "is at fault itself, see onError."
            )
        ),
    ]
    match: tuple[RouteValue, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description=(
            "Values of the route column (table.columns.route) whose rows go to this topic. Omitted: every row of the "
            "table that no other topic of this OutboxRelay takes, also those with a NULL route."
        ),
        json_schema_extra=_SET,
    )
    databases: tuple[DnsLabel, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="Names of entries of spec.databases whose rows go to this topic. Omitted: all of them.",
        json_schema_extra=_SET,
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="topic must not be . or ..",
            cel="self.topic != '.' && self.topic != '..'",
            holds=lambda topic: topic.topic not in (".", ".."),
            field_path=".topic",
        ),
    )

    def serves(self, database: str) -> bool:
        """Whether rows of the database with this name go to this topic."""
        return self.databases is None or database in self.databases

    def shares_a_database(self, other: Topic) -> bool:
        """Whether rows of one database may go to both topics."""
        return self.databases is None or other.databases is None or bool(set(self.databases) & set(other.databases))


_APART = "a.name >= b.name || (has(a.databases) && has(b.databases) && !sets.intersects(a.databases, b.databases))"


def _for_neighbours(cel: str) -> str:
    """CEL over each two topics `a` and `b` that share a database."""
    return f"self.topics.all(a, self.topics.all(b, {_APART} || {cel}))"


def _neighbours(spec: OutboxRelaySpec) -> list[tuple[Topic, Topic]]:
    return [(a, b) for a, b in combinations(spec.topics, 2) if a.shares_a_database(b)]


def _unique_names(spec: OutboxRelaySpec) -> bool:
    databases, topics = [d.name for d in spec.databases], [t.name for t in spec.topics]
    return len(databases) == len(set(databases)) and len(topics) == len(set(topics))


def _unique_tables(spec: OutboxRelaySpec) -> bool:
    tables = [
        (host, d.port, d.dbname, d.table.schema_, d.table.name) for d in spec.databases for host in set(d.servers)
    ]
    return len(tables) == len(set(tables))


def _servers(database: str) -> str:
    """CEL for the hosts of a database."""
    return f"(has({database}.host) ? [{database}.host] : has({database}.hosts) ? {database}.hosts : [])"


def _pair_count(spec: OutboxRelaySpec) -> int:
    return sum(1 for topic in spec.topics for database in spec.databases if topic.serves(database.name))


def _route_columns_exist(spec: OutboxRelaySpec) -> bool:
    return all(
        database.table.columns.route or topic.match is None or not topic.serves(database.name)
        for topic in spec.topics
        for database in spec.databases
    )


def _variable_has_a_column(spec: OutboxRelaySpec, *, name: str) -> bool:
    return all(
        f"${{{name}}}" not in topic.topic or getattr(database.table.columns, name) or not topic.serves(database.name)
        for topic in spec.topics
        for database in spec.databases
    )


_READ_COLUMNS = (
    "id",
    "key",
    "route",
    "type",
    "payload",
    "headers",
    "createdAt",
    "messageId",
    "topic",
    "partition",
    "lane",
)


def _read_columns(database: str) -> str:
    """CEL for the columns of a database that the relay reads."""
    columns = f"{database}.table.columns"
    given = [f"{columns}.{name}" for name in _READ_COLUMNS[:5]]
    optional = [f"(has({columns}.{name}) ? [{columns}.{name}] : [])" for name in _READ_COLUMNS[5:]]
    extra = f"(has({columns}.extraHeaders) ? {columns}.extraHeaders.map(e, e.column) : [])"
    return " + ".join([f"[{', '.join(given)}]", *optional, extra])


RESERVED_HEADERS: Final = {
    "Plain": ("outbox-id", "outbox-type"),
    "Debezium": ("id",),
    "CloudEvents": ("ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"),
}
"""The relays' own headers in each format; as in outboxrelay.config."""


def _reserved() -> str:
    """CEL for the headers that columns may not have."""
    lists = {name: f"[{', '.join(repr(each) for each in names)}]" for name, names in RESERVED_HEADERS.items()}
    return (
        f"(self.format == 'Debezium' ? {lists['Debezium']} : "
        f"self.format == 'CloudEvents' ? {lists['CloudEvents']} : {lists['Plain']})"
    )


def _headers_apart(spec: OutboxRelaySpec) -> bool:
    return not any(
        extra.header in RESERVED_HEADERS[spec.format] or extra.header.startswith("outbox-error-")
        for database in spec.databases
        for extra in database.table.columns.extra_headers or ()
    )


def _marks_apart(spec: OutboxRelaySpec) -> bool:
    mark = spec.retention.mark
    return mark is None or not any(mark.columns & database.table.columns.given for database in spec.databases)


class OutboxRelaySpec(Model):
    databases: tuple[Database, ...] = Field(
        min_length=1,
        max_length=64,
        description="The PostgreSQL databases whose outbox tables are carried to Kafka.",
        json_schema_extra=_MAP_BY_NAME,
    )
    kafka: Kafka = Field(description="The Kafka cluster to send to.")
    topics: tuple[Topic, ...] = Field(
        min_length=1,
        max_length=64,
        description=(f"The Kafka topics. Each database/topic pair gets its own Deployment; at most {MAX_PAIRS} pairs."),
        json_schema_extra=_MAP_BY_NAME,
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=256,
        description=(
            "Pods per pair, at most lanes: what kubectl scale and a HorizontalPodAutoscaler set. 0 stops the relays, "
            "and rows wait. While autoscaling is given, this counts for nothing."
        ),
    )
    autoscaling: Autoscaling | None = Field(
        default=None,
        description=(
            "The operator chooses the number of pods of each pair by what is written, what waits, and what a pod has "
            "shown it can send. Omitted: replicas counts."
        ),
    )
    lanes: int = Field(
        default=16,
        ge=1,
        le=256,
        description=(
            "Into how many lanes the keys of a table are divided. The pods of a pair share the lanes, so this bounds "
            "how many pods are useful. It cannot be changed: rows of one key could pass each other while pods disagree."
        ),
        json_schema_extra={
            "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "lanes cannot be changed; create a new OutboxRelay instead"}
            ]
        },
    )
    retention: Retention = Field(
        default_factory=Retention,
        description="What becomes of rows that were sent. Omitted: they are deleted.",
        # Written out: the API server evaluates rules on a default before it fills in what is below.
        json_schema_extra={"default": {"policy": "Delete"}},
    )
    slo: Slo | None = Field(
        default=None,
        description="What must hold of every pair. The condition SloMet and its Events tell whether it does.",
    )
    suspend: bool = Field(
        default=False,
        description="True stops every relay of this OutboxRelay. Rows wait, and the backlog is still measured.",
    )
    timestamps: Literal["SendTime", "CreatedAt"] = Field(
        default="SendTime",
        description=(
            "Timestamp of messages. SendTime: when the relay sends them. CreatedAt: table.columns.createdAt, where "
            "that is not NULL."
        ),
    )
    format: Format = Field(default="Plain", description=FORMAT_DESCRIPTION)
    cloud_events: CloudEvents | None = Field(
        default=None, description="Attributes of every event, for format CloudEvents."
    )
    on_error: OnError = Field(
        default_factory=OnError,
        description="What happens to a row that cannot be sent as it is. Omitted: it is parked.",
        # Written out: the API server evaluates the rules on a default before it fills in what is below.
        json_schema_extra={"default": OnError().model_dump(exclude_none=True)},
    )
    pod: Pod = Field(
        default_factory=Pod, description="What to override in the relay pods.", json_schema_extra={"default": {}}
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(message="names of databases, and names of topics, must be unique", holds=_unique_names),
        Rule(
            message="two entries of databases must not be the same table of the same database: use one, and topics",
            cel=(
                "self.databases.all(a, self.databases.all(b, a.name >= b.name || a.port != b.port"
                " || a.dbname != b.dbname || a.table.schema != b.table.schema || a.table.name != b.table.name"
                f" || !sets.intersects({_servers('a')}, {_servers('b')})))"
            ),
            holds=_unique_tables,
            field_path=".databases",
        ),
        Rule(
            message=(
                "retention.mark.column, errorColumn and sentAtColumn must not be columns of table.columns: the relay "
                "writes them, and would destroy what it is to send"
            ),
            cel=(
                "!has(self.retention.mark) || self.databases.all(d, !sets.intersects("
                "[self.retention.mark.column]"
                " + (has(self.retention.mark.errorColumn) ? [self.retention.mark.errorColumn] : [])"
                " + (has(self.retention.mark.sentAtColumn) ? [self.retention.mark.sentAtColumn] : []), "
                f"{_read_columns('d')}))"
            ),
            holds=_marks_apart,
            field_path=".retention",
        ),
        Rule(
            message="replicas must not be above lanes: a pod without a lane has nothing to do",
            cel="self.replicas <= self.lanes",
            holds=lambda spec: spec.replicas <= spec.lanes,
            field_path=".replicas",
        ),
        Rule(
            message="autoscaling.maxReplicas must not be above lanes: a pod without a lane has nothing to do",
            cel="!has(self.autoscaling) || self.autoscaling.maxReplicas <= self.lanes",
            holds=lambda spec: spec.autoscaling is None or spec.autoscaling.max_replicas <= spec.lanes,
            field_path=".autoscaling",
        ),
        Rule(
            message="topics[].databases must name entries of spec.databases",
            cel=("self.topics.all(t, !has(t.databases) || t.databases.all(d, self.databases.exists(x, x.name == d)))"),
            holds=lambda spec: all(
                set(topic.databases or ()) <= {database.name for database in spec.databases} for topic in spec.topics
            ),
            field_path=".topics",
        ),
        Rule(
            message=f"databases x topics is more than {MAX_PAIRS} pairs: use topics[].databases or more OutboxRelays",
            cel=(
                f"self.topics.map(t, has(t.databases) ? size(t.databases) : size(self.databases)).sum() <= {MAX_PAIRS}"
            ),
            holds=lambda spec: _pair_count(spec) <= MAX_PAIRS,
            field_path=".topics",
        ),
        Rule(
            message="match needs table.columns.route in each database of the topic",
            cel=(
                "self.topics.all(t, !has(t.match) || self.databases.all(d, d.table.columns.route != '' || "
                "(has(t.databases) && !(d.name in t.databases))))"
            ),
            holds=_route_columns_exist,
            field_path=".topics",
        ),
        Rule(
            message="two topics that share a database must not match the same route",
            cel=_for_neighbours("!has(a.match) || !has(b.match) || !sets.intersects(a.match, b.match)"),
            holds=lambda spec: not any(set(a.match or ()) & set(b.match or ()) for a, b in _neighbours(spec)),
            field_path=".topics",
        ),
        Rule(
            message="at most one topic of a database may omit match",
            cel=_for_neighbours("has(a.match) || has(b.match)"),
            holds=lambda spec: not any(a.match is None and b.match is None for a, b in _neighbours(spec)),
            field_path=".topics",
        ),
        Rule(
            message="two topics that share a database must not name the same Kafka topic: put the routes in one match",
            cel=_for_neighbours("a.topic != b.topic"),
            holds=lambda spec: not any(a.topic == b.topic for a, b in _neighbours(spec)),
            field_path=".topics",
        ),
        *(
            Rule(
                message=f"${{{name}}} in a topic needs table.columns.{name} in each database of the topic",
                cel=(
                    f"self.topics.all(t, !t.topic.contains('${{{name}}}') || self.databases.all(d, {given} || "
                    "(has(t.databases) && !(d.name in t.databases))))"
                ),
                holds=partial(_variable_has_a_column, name=name),
                field_path=".topics",
            )
            for name, given in (
                ("route", "d.table.columns.route != ''"),
                ("topic", "has(d.table.columns.topic)"),
            )
        ),
        Rule(
            message="extraHeaders must not have names of the format's own headers, nor begin with outbox-error-",
            cel=(
                "self.databases.all(d, !has(d.table.columns.extraHeaders) || d.table.columns.extraHeaders.all(e, "
                f"!(e.header in {_reserved()}) && !e.header.startsWith('outbox-error-')))"
            ),
            holds=_headers_apart,
            field_path=".databases",
        ),
        Rule(
            message="timestamps CreatedAt needs table.columns.createdAt in each database",
            cel="self.timestamps != 'CreatedAt' || self.databases.all(d, has(d.table.columns.createdAt))",
            holds=lambda spec: (
                spec.timestamps != "CreatedAt" or all(d.table.columns.created_at for d in spec.databases)
            ),
            field_path=".timestamps",
        ),
        Rule(
            message="cloudEvents is only used by format CloudEvents",
            cel="!has(self.cloudEvents) || self.format == 'CloudEvents'",
            holds=lambda spec: spec.cloud_events is None or spec.format == "CloudEvents",
            field_path=".cloudEvents",
        ),
        Rule(
            message="format CloudEvents needs table.columns.type in each database: an event must have a type",
            cel="self.format != 'CloudEvents' || self.databases.all(d, d.table.columns.type != '')",
            holds=lambda spec: spec.format != "CloudEvents" or all(d.table.columns.type for d in spec.databases),
            field_path=".format",
        ),
        Rule(
            message="onError.topic must not be one of spec.topics: its consumers would take a dead letter for an event",
            cel="!has(self.onError.topic) || self.topics.all(t, t.topic != self.onError.topic)",
            holds=lambda spec: spec.on_error.topic not in [topic.topic for topic in spec.topics],
            field_path=".onError",
        ),
    )
