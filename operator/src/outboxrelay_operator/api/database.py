"""`spec.databases[]`: where an outbox table lives and how to log in.

Secrets are only referred to, and only in the resource's own namespace: there is no namespace field anywhere.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from outboxrelay_operator.api.fields import (
    DnsLabel,
    HeaderName,
    HostName,
    Identifier,
    OptionalIdentifier,
    OptionalSecretKey,
)
from outboxrelay_operator.api.model import Model, Rule
from outboxrelay_operator.api.secrets import CaSecretRef, ClientCertSecretRef, CredentialsSecretRef

TlsMode = Literal["disable", "require", "verify-ca", "verify-full"]

VERIFYING_MODES: tuple[TlsMode, ...] = ("verify-ca", "verify-full")


class DatabaseCredentialsSecretRef(CredentialsSecretRef):
    password_key: OptionalSecretKey = Field(
        default="password",
        description=(
            "Key in the Secret that holds the password. Empty: there is none; the client certificate (tls) will do."
        ),
    )


class Tls(Model):
    mode: TlsMode | None = Field(
        default=None,
        description=(
            "How the connection is protected. disable: plaintext. require: encrypted, the server is not verified. "
            "verify-ca: the server's certificate must come from the CA. verify-full: and must name the host. "
            "Defaults to require, or to verify-full when caSecretRef is given. There is no fallback to plaintext."
        ),
    )
    ca_secret_ref: CaSecretRef | None = Field(
        default=None,
        description="The CA that signed the server's certificate. Needed by, and only used by, the verify modes.",
    )
    client_cert_secret_ref: ClientCertSecretRef | None = Field(
        default=None, description="The certificate by which relay and operator prove who they are. Omitted: none."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="mode verify-ca and verify-full need caSecretRef",
            cel="!has(self.mode) || !(self.mode in ['verify-ca', 'verify-full']) || has(self.caSecretRef)",
            holds=lambda tls: tls.mode not in VERIFYING_MODES or tls.ca_secret_ref is not None,
            field_path=".caSecretRef",
        ),
        Rule(
            message="caSecretRef is only used by mode verify-ca and verify-full; omit mode to get verify-full",
            cel="!has(self.caSecretRef) || !has(self.mode) || self.mode in ['verify-ca', 'verify-full']",
            holds=lambda tls: tls.ca_secret_ref is None or tls.mode is None or tls.mode in VERIFYING_MODES,
            field_path=".mode",
        ),
        Rule(
            message="mode disable shows no certificate: omit clientCertSecretRef, or use another mode",
            cel="!has(self.clientCertSecretRef) || !has(self.mode) || self.mode != 'disable'",
            holds=lambda tls: tls.client_cert_secret_ref is None or tls.mode != "disable",
            field_path=".clientCertSecretRef",
        ),
    )

    @property
    def effective_mode(self) -> TlsMode:
        """The mode with its default, which depends on whether a CA is given."""
        if self.mode is not None:
            return self.mode
        return "require" if self.ca_secret_ref is None else "verify-full"


class ExtraHeader(Model):
    header: HeaderName = Field(description="Name of the header.")
    column: Identifier = Field(description="The column with its value: text, a number, uuid, boolean, enum or bytea.")


class Columns(Model):
    id: Identifier = Field(
        default="id", description="Ascending bigint that orders the rows: an identity column or a sequence, indexed."
    )
    key: Identifier = Field(
        default="aggregateid", description="Becomes the message's key; rows of one key stay in order."
    )
    route: OptionalIdentifier = Field(
        default="aggregatetype",
        description="What spec.topics[].match is compared with. Empty: the table has no such column.",
    )
    type: OptionalIdentifier = Field(
        default="type", description="Becomes the header outbox-type. Empty: the table has no such column."
    )
    payload: Identifier = Field(
        default="payload", description="Becomes the message's value, byte for byte. SQL NULL is sent as a tombstone."
    )
    headers: Identifier | None = Field(
        default=None, description="JSON object of strings that become headers. Omitted: none."
    )
    created_at: Identifier | None = Field(
        default=None,
        description=(
            "timestamptz at which the row was written: makes the lag exact. Omitted: the operator derives the lag from "
            "when it saw which ids, and marks it as not exact."
        ),
    )
    message_id: Identifier | None = Field(
        default=None,
        description=(
            "The sender's own message id for the header outbox-id. Omitted: database, table and row id are used."
        ),
    )

    topic: Identifier | None = Field(
        default=None, description="What ${topic} in spec.topics[].topic stands for. Omitted: the table has none."
    )
    partition: Identifier | None = Field(
        default=None,
        description="Integer that chooses the partition. NULL, or omitted: the key chooses it, as Java's clients do.",
    )
    lane: Identifier | None = Field(
        default=None,
        description=(
            "smallint GENERATED ALWAYS ... STORED with the lane of each row, as `outboxrelay sql` prints it: where "
            "several pods share a pair, each reads faster. One that does not fit spec.lanes and the key is refused. "
            "Omitted: the relays compute it."
        ),
    )
    extra_headers: tuple[ExtraHeader, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="Columns that become headers, such as a traceparent. SQL NULL is a header without a value. "
        "The format's own headers are reserved.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["header"]},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="id, key, type, payload, headers, createdAt, messageId and lane must be different columns",
            cel=(
                "[[self.id, self.key, self.type, self.payload, has(self.headers) ? self.headers : '', "
                "has(self.createdAt) ? self.createdAt : '', has(self.messageId) ? self.messageId : '', "
                "has(self.lane) ? self.lane : '']]"
                ".all(names, names.all(n, n == '' || names.exists_one(m, m == n)))"
            ),
            holds=lambda columns: columns.distinct,
        ),
    )

    @property
    def given(self) -> frozenset[str]:
        """The names of all columns that there are."""
        extra = [header.column for header in self.extra_headers or ()]
        return frozenset([*extra, *(name for name in self.model_dump().values() if name and isinstance(name, str))])

    @property
    def distinct(self) -> bool:
        """Whether no column serves two purposes (`route` may: it is only compared, never sent)."""
        names = [self.id, self.key, self.type, self.payload, self.headers, self.created_at, self.message_id, self.lane]
        used = [name for name in names if name]
        return len(used) == len(set(used))


class Table(Model):
    schema_: Identifier = Field(default="public", alias="schema", description="Schema of the outbox table.")
    name: Identifier = Field(default="outbox", description="Name of the outbox table, as stored (case-sensitive).")
    columns: Columns = Field(
        default_factory=Columns,
        description="Names of the table's columns. The defaults are the Debezium layout with a bigint id.",
        # Written out: the API server evaluates the rule on a default before it fills in what is below.
        json_schema_extra={"default": Columns().model_dump(exclude_none=True)},
    )
    wake: Literal["Poll", "Notify"] = Field(
        default="Poll",
        description=(
            "How an idle relay learns of new rows. Poll: it asks every 50 ms. Notify: a trigger on the table, which "
            "`outboxrelay sql` prints, tells it by LISTEN/NOTIFY, and it asks once a second. For quiet tables: commits "
            "that notify wait for each other in the whole server, so many writers at once are slowed down to half."
        ),
    )

    @property
    def qualified(self) -> str:
        """Schema and name for messages (not quoted: never build SQL from it)."""
        return f"{self.schema_}.{self.name}"


class Database(Model):
    name: DnsLabel = Field(description="Unique in this OutboxRelay; becomes part of the names of its Deployments.")
    host: HostName | None = Field(
        default=None, description="DNS name or IP address of the PostgreSQL server, without the port."
    )
    hosts: tuple[HostName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=4,
        description=(
            "In place of host: the servers of a cluster with failover. They are tried in this order, and the first "
            "that takes writes is used."
        ),
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    port: int = Field(default=5432, ge=1, le=65535, description="TCP port of the PostgreSQL server.")
    dbname: Identifier = Field(description="Name of the database on the server.")
    credentials_secret_ref: DatabaseCredentialsSecretRef = Field(
        description="The Secret with the login. The user needs SELECT and DELETE on the outbox table, or what "
        "`outboxrelay sql` prints for another retention policy."
    )
    tls: Tls = Field(
        default_factory=Tls,
        description="How the connection to the server is protected. Omitted: mode require.",
        json_schema_extra={"default": {}},
    )
    table: Table = Field(
        default_factory=Table,
        description="The outbox table.",
        json_schema_extra={"default": {}},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="exactly one of host and hosts must be given",
            cel="has(self.host) != has(self.hosts)",
            holds=lambda database: (database.host is None) != (database.hosts is None),
        ),
        Rule(
            message="an empty passwordKey needs tls.clientCertSecretRef",
            cel=("self.credentialsSecretRef.passwordKey != '' || (has(self.tls) && has(self.tls.clientCertSecretRef))"),
            holds=lambda database: (
                database.credentials_secret_ref.password_key != "" or database.tls.client_cert_secret_ref is not None
            ),
            field_path=".credentialsSecretRef",
        ),
    )

    @property
    def servers(self) -> tuple[str, ...]:
        """The hosts to try, in order."""
        return (self.host,) if self.host is not None else self.hosts or ()

    @property
    def address(self) -> str:
        """host:port, of each host, for messages."""
        return ",".join(f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in self.servers)
