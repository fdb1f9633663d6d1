"""`spec.kafka`: the Kafka cluster, how to log in, and what of the client may be chosen.

What delivery and order depend on (acks, idempotence, message time-outs, the partitioner) is no field: the relay sets
it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from outboxrelay.config import Compression, SaslMechanism
from outboxrelay_operator.api.fields import BootstrapServer, matching
from outboxrelay_operator.api.model import Model, Rule
from outboxrelay_operator.api.secrets import CaSecretRef, ClientCertSecretRef, CredentialsSecretRef

_SET: JsonDict = {"x-kubernetes-list-type": "set"}

CompressionName = Literal["None", "Lz4", "Zstd", "Snappy", "Gzip"]

_CODECS: dict[CompressionName, Compression] = {
    "None": "none",
    "Lz4": "lz4",
    "Zstd": "zstd",
    "Snappy": "snappy",
    "Gzip": "gzip",
}

SECRET_IN_THE_CLEAR: tuple[SaslMechanism, ...] = ("PLAIN", "OAUTHBEARER")


class KafkaTls(Model):
    ca_secret_ref: CaSecretRef | None = Field(
        default=None,
        description="The CA that signed the brokers' certificates. Omitted: the CAs that the relay's image trusts.",
    )
    client_cert_secret_ref: ClientCertSecretRef | None = Field(
        default=None, description="The certificate by which the relay proves who it is (mutual TLS). Omitted: none."
    )


class Oauth(Model):
    token_endpoint_url: Annotated[
        str,
        matching(
            r"^https://[^\s/?#@]+([/?#][^\s]*)?$",
            "an https URL without user and password, such as https://issuer.example/token",
            min_length=9,
            max_length=1024,
        ),
    ] = Field(description="Where tokens are fetched with the client credentials grant of OpenID Connect; https only.")
    scope: (
        Annotated[
            str,
            matching(
                r"^[^\x00-\x1f\x7f]+$",
                "scopes with spaces between them and without control characters",
                min_length=1,
                max_length=1024,
            ),
        ]
        | None
    ) = Field(
        default=None, description="Scopes to ask for, separated by spaces. Omitted: what the provider gives by itself."
    )
    ca_secret_ref: CaSecretRef | None = Field(
        default=None,
        description="The CA of the token endpoint's certificate. Omitted: the CAs that the relay's image trusts.",
    )


class Sasl(Model):
    mechanism: SaslMechanism = Field(
        description="PLAIN and OAUTHBEARER send a secret and need tls. OAUTHBEARER: OpenID Connect client credentials."
    )
    credentials_secret_ref: CredentialsSecretRef = Field(
        description="User and password; for OAUTHBEARER the client's id and secret. Read again when they change."
    )
    oauth: Oauth | None = Field(default=None, description="Where tokens come from: for OAUTHBEARER, and only for it.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="oauth must be given with mechanism OAUTHBEARER, and with no other",
            cel="has(self.oauth) == (self.mechanism == 'OAUTHBEARER')",
            holds=lambda sasl: (sasl.oauth is not None) == (sasl.mechanism == "OAUTHBEARER"),
            field_path=".oauth",
        ),
    )


class KafkaConfig(Model):
    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "."))

    batch_size: int | None = Field(
        default=None, ge=1, le=2_147_483_647, description="Most bytes of a batch of messages. Default 1000000."
    )
    broker_address_family: Literal["any", "v4", "v6"] | None = Field(
        default=None, description="Which addresses of a broker are used. Default any."
    )
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] | None = Field(
        default=None, description="How names of brokers are resolved. Default use_all_dns_ips."
    )
    compression_level: int | None = Field(
        default=None, ge=-1, le=12, description="How hard to compress; the range depends on the codec. Default -1."
    )
    connections_max_idle_ms: int | None = Field(
        default=None,
        ge=0,
        le=2_147_483_647,
        description="Close connections that are idle for so long; 0 never. Set it below a load balancer's limit.",
    )
    linger_ms: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="How long a message may wait for more of the rows that were read with it. Default 25. None waits"
        " any longer once the last of them was handed over.",
    )
    metadata_max_age_ms: int | None = Field(
        default=None, ge=1, le=86_400_000, description="How long what is known of the cluster counts. Default 900000."
    )
    request_timeout_ms: int | None = Field(
        default=None, ge=1000, le=900_000, description="How long brokers may wait for their replicas. Default 30000."
    )
    socket_keepalive_enable: bool | None = Field(default=None, description="TCP keep-alive. Default false.")
    socket_nagle_disable: bool | None = Field(default=None, description="TCP_NODELAY. Default true.")
    socket_send_buffer_bytes: int | None = Field(
        default=None, ge=0, le=100_000_000, description="Size of the TCP send buffer; 0 is the system's default."
    )
    topic_metadata_refresh_interval_ms: int | None = Field(
        default=None, ge=-1, le=3_600_000, description="How often to look for changes of the cluster. Default 300000."
    )

    def given(self) -> dict[str, str | int | bool]:
        """The chosen settings by librdkafka's names."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Kafka(Model):
    bootstrap_servers: tuple[BootstrapServer, ...] = Field(
        min_length=1,
        max_length=16,
        description="Brokers to ask for the cluster's layout, each as host:port.",
        json_schema_extra=_SET,
    )
    tls: KafkaTls | None = Field(
        default=None,
        description=(
            "TLS towards the brokers; {} is enough. Their certificates and names are always verified. "
            "Omitted: plaintext."
        ),
    )
    sasl: Sasl | None = Field(default=None, description="The login to the brokers. Omitted: none.")
    compression: CompressionName = Field(default="Lz4", description="How batches of messages are compressed.")
    config: KafkaConfig = Field(
        default_factory=KafkaConfig,
        description="Settings of the client librdkafka that may be chosen. Those of delivery and order may not.",
        json_schema_extra={"default": {}},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="sasl.mechanism PLAIN and OAUTHBEARER need tls: they would send their secret in the clear",
            cel="!has(self.sasl) || has(self.tls) || !(self.sasl.mechanism in ['PLAIN', 'OAUTHBEARER'])",
            holds=lambda kafka: (
                kafka.sasl is None or kafka.tls is not None or kafka.sasl.mechanism not in SECRET_IN_THE_CLEAR
            ),
            field_path=".sasl",
        ),
    )

    @property
    def codec(self) -> Compression:
        """The compression by librdkafka's name."""
        return _CODECS[self.compression]
