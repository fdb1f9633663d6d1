"""The relay's configuration: the contract between the operator, which writes it, and the relay.

One JSON document describes one database/topic pair. Secrets are never in it: it names the files they are
mounted at, and the relay reads those again at every connect, so that a rotated secret needs no restart.
This module must stay importable with pydantic alone, since the operator imports it too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

HostName = Annotated[str, Field(min_length=1, max_length=253)]
"""A DNS name or an IP address."""

Identifier = Annotated[str, Field(min_length=1, max_length=63)]
"""A PostgreSQL identifier, unquoted, at most NAMEDATALEN - 1 bytes long."""

TlsMode = Literal["disable", "require", "verify-ca", "verify-full"]
"""libpq's sslmode without `allow` and `prefer`, which fall back to plaintext without a word."""

SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
"""SASL mechanisms of Kafka that need no Kerberos."""

Compression = Literal["none", "lz4", "zstd", "snappy", "gzip"]
"""Codecs of Kafka, as librdkafka names them."""


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the file, the field and the remedy."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True)


class PairIdentity(_Model):
    """Which pair of which resource this relay serves: for logs, metrics and the database-side owner lock."""

    namespace: str = Field(max_length=63)
    relay: str = Field(max_length=253, description="Name of the OutboxRelay resource")
    name: str = Field(max_length=253, description="Name of the pair, unique in its namespace")
    database: str = Field(max_length=63, description="spec.databases[].name")
    topic: str = Field(max_length=63, description="spec.topics[].name")

    @property
    def owner(self) -> str:
        """The resource, as reports name it."""
        return f"{self.namespace}/{self.relay}"


class Credentials(_Model):
    """Files that hold the login; read again at every connect."""

    username_file: Path = Field(strict=False)
    password_file: Path | None = Field(
        default=None, strict=False, description="None: the server is content with the client certificate"
    )


class ClientCertificate(_Model):
    """Files that hold a certificate (with its chain) and its key, PEM encoded; read again at every connect."""

    certificate_file: Path = Field(strict=False)
    key_file: Path = Field(strict=False)


class Tls(_Model):
    """How the connection to PostgreSQL is protected. `require` encrypts without checking who answers."""

    mode: TlsMode = "require"
    ca_file: Path | None = Field(default=None, strict=False)
    client_certificate: ClientCertificate | None = None

    @model_validator(mode="after")
    def _verification_and_ca_go_together(self) -> Self:
        verifies = self.mode in ("verify-ca", "verify-full")
        if verifies and self.ca_file is None:
            raise ValueError(f"mode {self.mode} needs ca_file")
        if not verifies and self.ca_file is not None:
            # libpq would verify the chain all the same with `require`: the mode would not mean what it says.
            raise ValueError(f"mode {self.mode} does not verify the server: leave ca_file out, or use verify-full")
        if self.mode == "disable" and self.client_certificate is not None:
            raise ValueError("mode disable shows no certificate: leave client_certificate out, or use another mode")
        return self


class Database(_Model):
    """Where the outbox table lives. Of several hosts the first that lets us write is used."""

    host: str | None = Field(default=None, min_length=1, max_length=253)
    hosts: tuple[HostName, ...] = Field(default=(), max_length=8)
    port: int = Field(default=5432, ge=1, le=65535)
    dbname: Identifier
    credentials: Credentials
    tls: Tls = Tls()
    connect_timeout_seconds: int = Field(default=5, ge=2, le=60)

    @model_validator(mode="after")
    def _fields_go_together(self) -> Self:
        if (self.host is None) == (not self.hosts):
            raise ValueError("exactly one of host and hosts must be given")
        if self.credentials.password_file is None and self.tls.client_certificate is None:
            raise ValueError("credentials need password_file unless tls has client_certificate")
        return self

    @property
    def servers(self) -> tuple[str, ...]:
        """The hosts to try, in order."""
        return self.hosts if self.host is None else (self.host,)

    @property
    def address(self) -> str:
        """host:port, of each host, for messages."""
        return ",".join(f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in self.servers)


_RESERVED_HEADERS: Final = {
    "Plain": frozenset({"outbox-id", "outbox-type"}),
    "Debezium": frozenset({"id"}),
    "CloudEvents": frozenset({"ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"}),
}
"""The relay's own headers in each format. Two of a name would hide the one by which consumers drop repeats."""


class ExtraHeader(_Model):
    """A column whose value becomes a header of its own."""

    column: Identifier
    header: str = Field(min_length=1, max_length=255)


class Columns(_Model):
    """Column names of the outbox table; None means that the table has no such column."""

    id: Identifier = "id"
    key: Identifier = "aggregateid"
    route: Identifier | None = "aggregatetype"
    type: Identifier | None = "type"
    payload: Identifier = "payload"
    headers: Identifier | None = None
    created_at: Identifier | None = None
    message_id: Identifier | None = None
    topic: Identifier | None = None
    partition: Identifier | None = None
    lane: Identifier | None = None
    extra_headers: tuple[ExtraHeader, ...] = ()

    @property
    def given(self) -> frozenset[str]:
        """The names of all columns that there are."""
        extra = [header.column for header in self.extra_headers]
        return frozenset([*extra, *(name for name in self.model_dump().values() if isinstance(name, str))])


class Table(_Model):
    """The outbox table."""

    schema_: Identifier = Field(default="public", alias="schema")
    name: Identifier = "outbox"
    columns: Columns = Columns()
    wake: Literal["Poll", "Notify"] = "Poll"

    @property
    def qualified(self) -> str:
        """Schema and name for messages (not quoted: never build SQL from it)."""
        return f"{self.schema_}.{self.name}"


class Match(_Model):
    """Which rows of the table belong to this pair, by the route column.

    `include` takes exactly these values. `exclude` is the catch-all: every row, also one without a route,
    that no other topic of the same table takes.
    """

    include: tuple[str, ...] | None = Field(default=None, min_length=1)
    exclude: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.include is not None and self.exclude:
            raise ValueError("include and exclude cannot both be given")
        return self

    @property
    def everything(self) -> bool:
        """True when no condition on the route column is needed."""
        return self.include is None and not self.exclude


TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
"""A legal name of a Kafka topic."""

TopicTemplate = Annotated[
    str, Field(min_length=1, max_length=249, pattern=r"^([a-zA-Z0-9._-]|\$\{route\}|\$\{topic\})+$")
]
"""A name of a Kafka topic in which the values of two columns may stand: ${route} and ${topic}."""


class KafkaTls(_Model):
    """TLS towards the brokers, whose names are always verified. Without `ca_file` the system's CAs are trusted."""

    ca_file: Path | None = Field(default=None, strict=False)
    client_certificate: ClientCertificate | None = None


class Oauth(_Model):
    """Where the token of OAUTHBEARER comes from: OpenID Connect client credentials."""

    token_endpoint_url: str = Field(max_length=1024, pattern=r"^https://[^\s]+$")
    scope: str | None = Field(default=None, min_length=1, max_length=1024)
    ca_file: Path | None = Field(default=None, strict=False, description="CA of the token endpoint")


class Sasl(_Model):
    """The login to the brokers. For OAUTHBEARER user and password are the client's id and secret."""

    mechanism: SaslMechanism
    username_file: Path = Field(strict=False)
    password_file: Path = Field(strict=False)
    oauth: Oauth | None = None

    @model_validator(mode="after")
    def _oauth_belongs_to_its_mechanism(self) -> Self:
        if (self.mechanism == "OAUTHBEARER") != (self.oauth is not None):
            raise ValueError("oauth must be given with mechanism OAUTHBEARER, and with no other")
        return self


class KafkaSettings(_Model):
    """Settings of librdkafka that may be chosen: none of them touches delivery or order.

    Meaning and units: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
    """

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "."))

    batch_size: int | None = Field(default=None, ge=1, le=2_147_483_647)
    broker_address_family: Literal["any", "v4", "v6"] | None = None
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] | None = None
    compression_level: int | None = Field(default=None, ge=-1, le=12)
    connections_max_idle_ms: int | None = Field(default=None, ge=0, le=2_147_483_647)
    linger_ms: int | None = Field(default=None, ge=0, le=1000)
    metadata_max_age_ms: int | None = Field(default=None, ge=1, le=86_400_000)
    request_timeout_ms: int | None = Field(default=None, ge=1000, le=900_000)
    socket_keepalive_enable: bool | None = None
    socket_nagle_disable: bool | None = None
    socket_send_buffer_bytes: int | None = Field(default=None, ge=0, le=100_000_000)
    topic_metadata_refresh_interval_ms: int | None = Field(default=None, ge=-1, le=3_600_000)

    def given(self) -> dict[str, str | int]:
        """The chosen settings by librdkafka's names."""
        chosen = self.model_dump(by_alias=True, exclude_none=True)
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in chosen.items()}


class Kafka(_Model):
    """The brokers and the topic."""

    bootstrap_servers: tuple[str, ...] = Field(min_length=1)
    topic: TopicTemplate
    tls: KafkaTls | None = None
    sasl: Sasl | None = None
    compression: Compression = "lz4"
    settings: KafkaSettings = KafkaSettings()

    @model_validator(mode="after")
    def _a_password_is_never_sent_in_the_clear(self) -> Self:
        if self.tls is None and self.sasl is not None and self.sasl.mechanism in ("PLAIN", "OAUTHBEARER"):
            raise ValueError(f"sasl.mechanism {self.sasl.mechanism} needs tls: it would send its secret in the clear")
        return self


class OnError(_Model):
    """What becomes of a row that cannot be sent as it is, once that has failed `attempts` times.

    Until then, and with `Park` for ever, it is parked: it holds back its key and is tried again. Outages do not count.
    """

    policy: Literal["Park", "DeadLetter", "Halt"] = "Park"
    attempts: int = Field(default=1, ge=1, le=1000)
    topic: TopicName | None = None

    @model_validator(mode="after")
    def _dead_letters_need_a_topic(self) -> Self:
        if (self.policy == "DeadLetter") != (self.topic is not None):
            raise ValueError("policy DeadLetter, and no other, needs topic")
        return self


class Mark(_Model):
    """How a table that keeps its rows says whether they were sent."""

    column: Identifier
    pending: str | None = Field(default=None, max_length=63)
    """Value of a row that was not sent; None is SQL NULL."""

    sent: str | None = Field(default=None, max_length=63)
    """Value of a row that was sent; None is the time of the sending, for a column that holds times."""

    failed: str | None = Field(default=None, max_length=63)
    """Value of a row that could not be sent as it was. Such a row was not sent either: it is tried again."""

    error_column: Identifier | None = None
    sent_at_column: Identifier | None = None

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if self.sent is None and (self.pending is not None or self.failed is not None):
            raise ValueError("a column of times has NULL for pending and no value for failed; or give sent")
        given = [value for value in (self.pending, self.sent, self.failed) if value is not None]
        if len(given) != len(set(given)):
            raise ValueError("pending, sent and failed must differ")
        return self

    @property
    def time_column(self) -> str | None:
        """The column that tells when a row was sent, if there is one."""
        return self.sent_at_column if self.sent is not None else self.column


class Keep(_Model):
    """Where rows that were sent are kept."""

    table: Identifier
    """In the schema of the outbox table."""


class Retention(_Model):
    """What becomes of rows that were sent."""

    policy: Literal["Delete", "Mark", "Keep"] = "Delete"
    keep_for_seconds: float | None = Field(default=None, gt=0)
    """None: for ever."""

    mark: Mark | None = None
    keep: Keep | None = None
    """None with policy Keep: the name of the outbox table and _sent."""

    @property
    def verb(self) -> str:
        """What settles a row, for messages."""
        return "UPDATE" if self.policy == "Mark" else "DELETE"

    @model_validator(mode="after")
    def _fields_fit_the_policy(self) -> Self:
        if (self.policy == "Mark") != (self.mark is not None):
            raise ValueError("policy Mark needs mark, and no other has it")
        if self.keep is not None and self.policy != "Keep":
            raise ValueError("only policy Keep has keep")
        if self.keep_for_seconds is None:
            return self
        if self.policy == "Delete" or (self.mark is not None and self.mark.time_column is None):
            raise ValueError("keep_for_seconds needs policy Keep, or Mark with a column that tells when a row was sent")
        return self


class CloudEvents(_Model):
    """Attributes of every event, for the format of that name."""

    source: str | None = Field(default=None, min_length=1, max_length=1024)
    content_type: str = Field(default="application/json", min_length=1, max_length=256)


class Tuning(_Model):
    """Bounds of the loop. The defaults fit a pod with 256 MiB."""

    batch_rows: int = Field(default=5000, ge=1, le=50_000)
    batch_bytes: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    max_row_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    idle_poll_min_ms: int = Field(default=2, ge=1)
    idle_poll_max_ms: int = Field(default=50, ge=1)
    announced_poll_ms: int = Field(default=1000, ge=1)
    """How often an idle relay asks while new rows are announced: the net for what comes without."""

    row_retry_min_seconds: float = Field(default=5.0, gt=0)
    row_retry_max_seconds: float = Field(default=300.0, gt=0)
    max_parked_keys: int = Field(default=1000, ge=1)
    reconnect_max_seconds: float = Field(default=5.0, gt=0)
    rebalance_seconds: float = Field(default=1.0, gt=0)
    statement_timeout_seconds: float = Field(default=20.0, gt=0)
    full_sweep_seconds: float = Field(default=60.0, gt=0)
    held_back_seconds: float = Field(default=30.0, gt=0)
    clean_up_rest_seconds: float = Field(default=10.0, gt=0)


class RelayConfig(_Model):
    """Everything one relay process needs to know."""

    version: Literal[1] = 1
    pair: PairIdentity
    database: Database
    table: Table = Table()
    match: Match = Match()
    retention: Retention = Retention()
    kafka: Kafka
    timestamps: Literal["SendTime", "CreatedAt"] = "SendTime"
    format: Literal["Plain", "Debezium", "CloudEvents"] = "Plain"
    cloud_events: CloudEvents = CloudEvents()
    on_error: OnError = OnError()
    lanes: int = Field(default=16, ge=1, le=256)
    tuning: Tuning = Tuning()
    listen_host: str = ""
    listen_port: int = Field(default=8080, ge=0, le=65535)
    log_format: Literal["json", "text"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _what_is_used_has_a_column(self) -> Self:
        columns = self.table.columns
        for variable, column in (("${route}", columns.route), ("${topic}", columns.topic)):
            if variable in self.kafka.topic and column is None:
                raise ValueError(f"{variable} in kafka.topic needs table.columns.{variable[2:-1]}")
        if self.timestamps == "CreatedAt" and columns.created_at is None:
            raise ValueError("timestamps CreatedAt needs table.columns.created_at")
        return self

    @model_validator(mode="after")
    def _a_cloud_event_has_a_type(self) -> Self:
        if self.format == "CloudEvents" and self.table.columns.type is None:
            raise ValueError("format CloudEvents needs table.columns.type")
        return self

    @model_validator(mode="after")
    def _headers_are_told_apart(self) -> Self:
        for extra in self.table.columns.extra_headers:
            if extra.header in _RESERVED_HEADERS[self.format] or extra.header.startswith("outbox-error-"):
                raise ValueError(f"table.columns.extra_headers must not name {extra.header}, a header of the relay's")
        return self

    @model_validator(mode="after")
    def _dead_letters_go_elsewhere(self) -> Self:
        if self.on_error.topic == self.kafka.topic:
            raise ValueError("on_error.topic must not be kafka.topic")
        return self

    @model_validator(mode="after")
    def _marks_do_not_destroy_what_is_sent(self) -> Self:
        mark = self.retention.mark
        if mark is not None and self.table.columns.given & {mark.column, mark.error_column, mark.sent_at_column}:
            raise ValueError("retention.mark must not write a column of table.columns")
        return self

    @model_validator(mode="after")
    def _a_match_needs_a_route_column(self) -> Self:
        if not self.match.everything and self.table.columns.route is None:
            raise ValueError("match needs table.columns.route")
        return self


def dump(config: RelayConfig) -> str:
    """The canonical JSON text: byte-stable, since its hash decides whether pods are rolled."""
    return json.dumps(
        config.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"version": config.version},
        sort_keys=True,
        separators=(",", ":"),
    )


def digest(text: str) -> str:
    """Hash of a configuration text, as the operator puts it into the pod template."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse(text: str, *, source: str) -> RelayConfig:
    """Read a configuration text.

    Raises:
        ConfigError: naming `source` and each wrong field.
    """
    try:
        return RelayConfig.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'document'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise ConfigError(f"cannot use configuration {source}: {problems}") from None
