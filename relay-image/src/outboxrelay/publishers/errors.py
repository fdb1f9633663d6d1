"""What librdkafka's and the brokers' errors mean: for a row, for the report, and what to do about them."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from outboxrelay.config import RelayConfig
from outboxrelay.ports import PublisherError
from outboxrelay.report import BrokerReason

TOO_LARGE: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)

ROW_REFUSALS: Final = TOO_LARGE | {
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
}
"""Broker answers that concern rows of one record batch, not the broker's health."""

TOPIC_REFUSALS: Final = frozenset({KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED})
"""Broker answers that concern all rows of one topic, and no other where rows choose their topics."""

NOT_SENT: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL, KafkaError._GAPLESS_GUARANTEE}
)
"""Reports of messages given up because of another one."""

SECRET_REASONS: Final[frozenset[BrokerReason]] = frozenset(
    {"BrokerAuthenticationFailed", "BrokerCredentialsMissing", "BrokerTlsFailed"}
)
"""What another content of the Secrets may end."""

CHECK_BROKERS: Final = "check spec.kafka.bootstrapServers and that the brokers run"
_CREATE_TOPIC: Final = "create the topic or correct its name in the spec"
_LOGIN: Final = "check spec.kafka.sasl, and user and password in its Secret"
_TLS: Final = "check spec.kafka.tls and the brokers' certificates"
CHECK_REPLICAS: Final = "bring back in-sync replicas of the topic's partitions, or lower min.insync.replicas"

_REASONS: Final[dict[int, tuple[BrokerReason, str]]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: ("TopicMissing", _CREATE_TOPIC),
    KafkaError.UNKNOWN_TOPIC_ID: ("TopicMissing", _CREATE_TOPIC),
    KafkaError._UNKNOWN_TOPIC: ("TopicMissing", _CREATE_TOPIC),
    KafkaError._UNKNOWN_PARTITION: ("TopicMissing", _CREATE_TOPIC),
    KafkaError.TOPIC_EXCEPTION: ("BrokerError", "the brokers take no messages for a topic of this name; correct it"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("TopicAuthorizationFailed", "allow DESCRIBE and WRITE on the topic"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "TopicAuthorizationFailed",
        "allow IDEMPOTENT_WRITE on the cluster (brokers before 2.8)",
    ),
    KafkaError._AUTHENTICATION: ("BrokerAuthenticationFailed", _LOGIN),
    KafkaError.SASL_AUTHENTICATION_FAILED: ("BrokerAuthenticationFailed", _LOGIN),
    KafkaError.UNSUPPORTED_SASL_MECHANISM: ("BrokerAuthenticationFailed", _LOGIN),
    KafkaError.ILLEGAL_SASL_STATE: ("BrokerAuthenticationFailed", _LOGIN),
    KafkaError._SSL: ("BrokerTlsFailed", _TLS),
    KafkaError._ALL_BROKERS_DOWN: ("BrokerUnreachable", CHECK_BROKERS),
    KafkaError._TRANSPORT: ("BrokerUnreachable", CHECK_BROKERS),
    KafkaError._TIMED_OUT: ("BrokerUnreachable", CHECK_BROKERS),
    KafkaError._TIMED_OUT_QUEUE: ("BrokerUnreachable", CHECK_BROKERS),
    KafkaError._RESOLVE: ("BrokerUnreachable", "check the host names in spec.kafka.bootstrapServers"),
    KafkaError.BROKER_NOT_AVAILABLE: ("BrokerUnreachable", CHECK_BROKERS),
    KafkaError.NOT_ENOUGH_REPLICAS: ("BrokerError", CHECK_REPLICAS),
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ("BrokerError", CHECK_REPLICAS),
}


_SILENCE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
)

_OF_CONNECTING: Final = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._INVALID_ARG}
)

_TOKEN: Final = "oauthbearer token"  # noqa: S105  a phrase, not a token
_NO_ANSWER: Final = "the token endpoint does not answer: check spec.kafka.sasl.oauth.tokenEndpointUrl"
_TOKEN_TLS: Final = "TLS with the token endpoint fails: check spec.kafka.sasl.oauth.caSecretRef and its certificate"  # noqa: S105
_MATERIAL: Final = (
    "the Secrets of spec.kafka.tls hold no PEM that fits: certificates, or a certificate with its own key"
)

_CAUSES: Final[tuple[tuple[tuple[str, ...], BrokerReason, str], ...]] = (
    ((_TOKEN, "trust anchors"), "BrokerAuthenticationFailed", _TOKEN_TLS),
    ((_TOKEN, "certificate"), "BrokerAuthenticationFailed", _TOKEN_TLS),
    ((_TOKEN, "connect"), "BrokerAuthenticationFailed", _NO_ANSWER),
    ((_TOKEN, "resolve"), "BrokerAuthenticationFailed", _NO_ANSWER),
    ((_TOKEN, "timed out"), "BrokerAuthenticationFailed", _NO_ANSWER),
    (
        (_TOKEN,),
        "BrokerAuthenticationFailed",
        "the token endpoint gives no token: check client id and secret in the Secret, and spec.kafka.sasl.oauth",
    ),
    (
        ("unsupported sasl mechanism",),
        "BrokerAuthenticationFailed",
        "the listener does not offer this mechanism: correct spec.kafka.sasl.mechanism or bootstrapServers",
    ),
    (
        ("not valid in current sasl state",),
        "BrokerAuthenticationFailed",
        "the listener takes no login: correct spec.kafka.bootstrapServers, or omit spec.kafka.sasl",
    ),
    (
        ("certificate verify failed",),
        "BrokerTlsFailed",
        "the broker's certificate is not from the CA of spec.kafka.tls, is for another host, or has expired",
    ),
    (
        ("ssl routines", "alert"),
        "BrokerTlsFailed",
        "the broker refuses the client certificate, or demands one: check spec.kafka.tls.clientCertSecretRef",
    ),
    (
        ("plaintext broker listener",),
        "BrokerTlsFailed",
        "the listener speaks no TLS: correct spec.kafka.bootstrapServers, or omit spec.kafka.tls",
    ),
    (("ssl routines",), "BrokerTlsFailed", _TLS),
    (("ssl.ca.location",), "BrokerTlsFailed", _MATERIAL),
    (("ssl.certificate.location",), "BrokerTlsFailed", _MATERIAL),
    (("ssl.key.location",), "BrokerTlsFailed", _MATERIAL),
)
"""What librdkafka, OpenSSL and the brokers say about a refused connection, in lower case, and what to do about it.

Of a line all parts must be there, and the first line counts. Their own words never go into a message: they may quote
what a server sent.
"""


def broker_error(error: KafkaError, *, config: RelayConfig, attempt: str) -> PublisherError:
    """The PublisherError for what was reported while doing `attempt` (a phrase like "sending a batch")."""
    reason, remedy = judge(error)
    if reason == "BrokerUnreachable":
        # A listener of another kind just hangs up.
        remedy = f"{remedy}, and that the listener is for {protocol(config)}"
    return PublisherError(reason, f"{attempt} failed ({where(config)}): {error.name()}; {remedy}")


def protocol(config: RelayConfig) -> str:
    """What the relay speaks with the brokers, for messages."""
    kafka = config.kafka
    transport = "plaintext" if kafka.tls is None else "TLS"
    return f"{transport} without a login" if kafka.sasl is None else f"{transport} with SASL {kafka.sasl.mechanism}"


def judge(error: KafkaError) -> tuple[BrokerReason, str]:
    """The reason of an error and what to do about it."""
    if error.code() in _OF_CONNECTING:
        text = error.str().lower()
        for parts, reason, remedy in _CAUSES:
            if all(part in text for part in parts):
                return reason, remedy
    return _REASONS.get(error.code(), ("BrokerError", "see the brokers' logs; the relay keeps trying"))


def tells_why(error: KafkaError) -> bool:
    """Whether it is the cause of a failure, and not merely that a broker is away."""
    return judge(error)[0] in SECRET_REASONS


def is_silence(error: KafkaError) -> bool:
    """Whether it says no more than that nobody answered."""
    return error.code() in _SILENCE


def where(config: RelayConfig) -> str:
    """Topic and brokers, for messages."""
    return f"topic {config.kafka.topic} on {','.join(config.kafka.bootstrap_servers)}"


def fatal_error(raised: BaseException) -> KafkaError | None:
    """The KafkaError inside of what confluent_kafka raised, if there is one."""
    seen: BaseException | None = raised
    while seen is not None:
        if isinstance(seen, KafkaException) and seen.args and isinstance(seen.args[0], KafkaError):
            return seen.args[0]
        seen = seen.__cause__ or seen.__context__
    return None
