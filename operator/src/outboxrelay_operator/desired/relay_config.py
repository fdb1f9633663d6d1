"""The configuration of one relay. No secret is in it: it names the files that secrets are mounted at."""

from __future__ import annotations

from pathlib import Path

from outboxrelay import config
from outboxrelay_operator.api.kafka import Sasl
from outboxrelay_operator.api.spec import OutboxRelaySpec
from outboxrelay_operator.desired import secret_files
from outboxrelay_operator.desired.secret_files import Mounted
from outboxrelay_operator.pairs import Pair

CONFIG_DIRECTORY = Path("/etc/outboxrelay/config")
CONFIG_FILE = CONFIG_DIRECTORY / "config.json"

STATUS_PORT = 8080
"""Where a relay answers /livez, /readyz, /metrics and /status."""


def relay_config(pair: Pair, spec: OutboxRelaySpec) -> str:
    """The canonical text of the configuration of the relays of a pair."""
    database, columns, mounted = pair.database, pair.database.table.columns, Mounted(pair)
    return config.dump(
        config.RelayConfig(
            pair=config.PairIdentity(
                namespace=pair.key.namespace,
                relay=pair.key.name,
                name=pair.name,
                database=database.name,
                topic=pair.topic.name,
            ),
            database=config.Database(
                host=database.host,
                hosts=database.hosts or (),
                port=database.port,
                dbname=database.dbname,
                credentials=config.Credentials(
                    username_file=mounted.username(secret_files.DATABASE),
                    password_file=mounted.password(secret_files.DATABASE),
                ),
                tls=config.Tls(
                    mode=database.tls.effective_mode,
                    ca_file=mounted.ca(secret_files.DATABASE_CA),
                    client_certificate=_certificate(mounted, secret_files.DATABASE_CERTIFICATE),
                ),
            ),
            table=config.Table(
                schema_=database.table.schema_,
                name=database.table.name,
                columns=config.Columns(
                    id=columns.id,
                    key=columns.key,
                    route=columns.route or None,
                    type=columns.type or None,
                    payload=columns.payload,
                    headers=columns.headers,
                    created_at=columns.created_at,
                    message_id=columns.message_id,
                    topic=columns.topic,
                    partition=columns.partition,
                    lane=columns.lane,
                    extra_headers=tuple(
                        config.ExtraHeader(column=extra.column, header=extra.header)
                        for extra in columns.extra_headers or ()
                    ),
                ),
                wake=database.table.wake,
            ),
            match=pair.match,
            retention=_retention(spec),
            kafka=_kafka(pair, mounted),
            timestamps=spec.timestamps,
            format=spec.format,
            cloud_events=config.CloudEvents(**spec.cloud_events.model_dump(by_alias=False))
            if spec.cloud_events
            else config.CloudEvents(),
            on_error=config.OnError(
                policy=spec.on_error.policy,
                attempts=spec.on_error.effective_attempts,
                topic=spec.on_error.topic,
            ),
            tuning=config.Tuning(
                row_retry_min_seconds=spec.on_error.retry_after_seconds,
                row_retry_max_seconds=spec.on_error.max_retry_after_seconds,
            ),
            lanes=spec.lanes,
            listen_port=STATUS_PORT,
        )
    )


def _retention(spec: OutboxRelaySpec) -> config.Retention:
    retention, mark, keep = spec.retention, spec.retention.mark, spec.retention.keep
    return config.Retention(
        policy=retention.policy,
        keep_for_seconds=retention.keep_for_seconds,
        keep=None if keep is None else config.Keep(table=keep.table),
        mark=None
        if mark is None
        else config.Mark(
            column=mark.column,
            pending=mark.pending,
            sent=mark.sent,
            failed=mark.failed,
            error_column=mark.error_column,
            sent_at_column=mark.sent_at_column,
        ),
    )


def _kafka(pair: Pair, mounted: Mounted) -> config.Kafka:
    kafka = pair.kafka
    tls = None
    if kafka.tls is not None:
        tls = config.KafkaTls(
            ca_file=mounted.ca(secret_files.KAFKA_CA),
            client_certificate=_certificate(mounted, secret_files.KAFKA_CERTIFICATE),
        )
    return config.Kafka(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=pair.topic.topic,
        tls=tls,
        sasl=None if kafka.sasl is None else _sasl(kafka.sasl, mounted),
        compression=kafka.codec,
        settings=config.KafkaSettings.model_validate(kafka.config.given()),
    )


def _sasl(sasl: Sasl, mounted: Mounted) -> config.Sasl:
    oauth = None
    if sasl.oauth is not None:
        oauth = config.Oauth(
            token_endpoint_url=sasl.oauth.token_endpoint_url,
            scope=sasl.oauth.scope,
            ca_file=mounted.ca(secret_files.OAUTH_CA),
        )
    password = mounted.password(secret_files.KAFKA)
    if password is None:
        raise ValueError("a login to Kafka without a password was let through")
    return config.Sasl(
        mechanism=sasl.mechanism,
        username_file=mounted.username(secret_files.KAFKA),
        password_file=password,
        oauth=oauth,
    )


def _certificate(mounted: Mounted, volume: str) -> config.ClientCertificate | None:
    files = mounted.certificate(volume)
    return None if files is None else config.ClientCertificate(certificate_file=files[0], key_file=files[1])
