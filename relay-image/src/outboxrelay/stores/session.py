"""Opening a PostgreSQL session as the relay needs it: explicit, verified, and quick to notice a dead peer.

Every parameter is given here; nothing may come from PG* variables, a service file or ~/.pgpass (the command line
entry point also clears those variables). Credentials are read from their files at every connect, so that a rotated
secret needs no restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.types.string import ByteaBinaryLoader

from outboxrelay.config import RelayConfig
from outboxrelay.dberrors import POOLER
from outboxrelay.memoryfile import memory_file
from outboxrelay.ports import StoreError
from outboxrelay.stores.errors import place, translate

_KEEPALIVE = {"idle": 5, "interval": 3, "count": 3}
"""Seconds, seconds, probes: a dead peer is noticed within about 15 s on either side, and its locks are freed."""

_TCP_USER_TIMEOUT_MS = 15_000

_POLL_SECONDS = 0.1

_ANSWER_MARGIN_SECONDS = 5.0
"""How much longer than statement_timeout the relay waits before it takes the server for dead."""

_BRIEFLY = {"lock_timeout": "50ms", "statement_timeout": "2s"}
"""Rows wait while a clean-up is slow, because of a trigger or a foreign key without an index, say; and whoever wants a
lock behind ours waits for as long as we do."""

_OLDEST_SERVER = 140000
"""pg_column_compression, by which large json is weighed without reading it, came with PostgreSQL 14."""


_EXPECTED_OF_A_HOST = {"ReadOnly": 1, "DatabaseUnreachable": 2}
"""Reasons that most hosts of a list may have while all is well; a higher number says less."""

_Result = TypeVar("_Result")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for the server only so long.

    statement_timeout is the server's, and of no use when the server does not answer: a frozen machine may go on to
    acknowledge what TCP sends it.
    """

    answer_within_seconds = 60.0

    def wait(self, gen: PQGen[_Result], interval: float = _POLL_SECONDS, timeout: float | None = None) -> _Result:
        """See `psycopg.Connection.wait`; raises OperationalError at the end of the time."""
        return super().wait(gen, interval=interval, timeout=self.answer_within_seconds if timeout is None else timeout)


def read_secret(path: Path, *, what: str, config: RelayConfig) -> str:
    """The content of a secret file without its last line end.

    Raises:
        StoreError: CredentialsMissing, naming the file.
    """
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise StoreError(
            "CredentialsMissing", f"reading the {what} for {place(config)} from {path} failed: {cause}; mend the Secret"
        ) from None
    if not text:
        raise StoreError("CredentialsMissing", f"the {what} for {place(config)} in {path} is empty; mend the Secret")
    return text


def parameters(config: RelayConfig, *, host: str) -> dict[str, str | int]:
    """libpq parameters without the credentials."""
    database = config.database
    given: dict[str, str | int] = {
        "host": host,
        "port": database.port,
        "dbname": database.dbname,
        "sslmode": database.tls.mode,
        "sslcertmode": "disable",
        "gssencmode": "disable",
        # Of several hosts each may be the primary, and so may each address of a name.
        "target_session_attrs": "read-write" if database.hosts else "any",
        "connect_timeout": database.connect_timeout_seconds,
        "application_name": application_name(config),
        "client_encoding": "UTF8",
        "options": "",
        "keepalives": 1,
        "keepalives_idle": _KEEPALIVE["idle"],
        "keepalives_interval": _KEEPALIVE["interval"],
        "keepalives_count": _KEEPALIVE["count"],
        "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
    }
    if database.tls.ca_file is not None:
        given["sslrootcert"] = str(database.tls.ca_file)
    return given


def application_name(config: RelayConfig) -> str:
    """Shown in pg_stat_activity; the server cuts it at 63 bytes."""
    return f"outboxrelay/{config.pair.name}"[:63]


def connect(config: RelayConfig) -> Connection:
    """A session in autocommit mode with the relay's settings, on the first host that takes writes.

    Raises:
        StoreError: with the reason; no session is left then.
    """
    failures: list[StoreError] = []
    for host in config.database.servers:
        try:
            return _connect_to(host, config)
        except StoreError as error:
            failures.append(error)
    raise _no_host(failures)


def _no_host(failures: Sequence[StoreError]) -> StoreError:
    if len(failures) == 1:
        return failures[0]
    # A host that does not answer or takes no writes is what the others are there for; anything else is news.
    by_weight = sorted(failures, key=lambda failure: _EXPECTED_OF_A_HOST.get(failure.reason, 0))
    return StoreError(by_weight[0].reason, "; ".join(failure.message for failure in by_weight))


def _connect_to(host: str, config: RelayConfig) -> Connection:
    credentials, certificate = config.database.credentials, config.database.tls.client_certificate
    given = parameters(config, host=host)
    user = read_secret(credentials.username_file, what="user name", config=config)
    if credentials.password_file is None:
        # Else libpq would look for one in the home directory.
        given["passfile"] = "/nonexistent"
    else:
        given["password"] = read_secret(credentials.password_file, what="password", config=config)
    key: AbstractContextManager[Path | None] = nullcontext()
    if certificate is not None:
        read_secret(certificate.certificate_file, what="client certificate", config=config)
        given |= {"sslcertmode": "allow", "sslcert": str(certificate.certificate_file)}
        content = read_secret(certificate.key_file, what="key of the client certificate", config=config)
        key = memory_file(content.encode())
    with key as key_file:
        if key_file is not None:
            given["sslkey"] = str(key_file)
        try:
            connection = Connection.connect(
                autocommit=True,
                user=user,
                **given,  # type: ignore[arg-type]  # psycopg's overloads do not know libpq's parameters
            )
        except psycopg.Error as error:
            raise translate(error, config=config, attempt="connecting", user=user, host=host) from None
    return _prepared(connection, config)


def _prepared(connection: Connection, config: RelayConfig) -> Connection:
    connection.answer_within_seconds = config.tuning.statement_timeout_seconds + _ANSWER_MARGIN_SECONDS
    try:
        _require_version(connection, config)
        _settle_in(connection, config)
    except psycopg.Error as error:
        connection.close()
        raise translate(error, config=config, attempt="preparing the session") from None
    except StoreError:
        connection.close()
        raise
    return connection


def _require_version(connection: Connection, config: RelayConfig) -> None:
    if connection.info.server_version < _OLDEST_SERVER:
        raise StoreError(
            "DatabaseError",
            f"preparing the session failed ({place(config)}): PostgreSQL"
            f" {connection.info.parameter_status('server_version')} is too old; use 14 or newer",
        )


def _settle_in(connection: Connection, config: RelayConfig) -> None:
    # text and json arrive in client encoding, which is UTF-8: their wire form is what goes to Kafka.
    connection.adapters.register_loader("text", ByteaBinaryLoader)
    connection.adapters.register_loader("json", ByteaBinaryLoader)
    connection.prepare_threshold = None
    # Asked before anything is set: behind a pooler a setting would stay for the next client of the server session.
    answer = connection.execute(
        "SELECT pg_backend_pid(), pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'"
    ).fetchone()
    pid, read_only = answer or (0, False)
    if pid != connection.info.backend_pid:
        raise StoreError(
            "DatabaseError",
            f"preparing the session failed ({place(config)}): {POOLER}",
        )
    if read_only:
        raise StoreError(
            "ReadOnly",
            f"preparing the session failed ({place(config)}): the server is a standby or read-only;"
            " point host at the primary",
        )
    settings = {
        # An acknowledged batch whose removal is lost in a server crash is sent again: a repeat, never a loss. Only
        # removals are written by this session, so the setting touches nothing else.
        "synchronous_commit": "off",
        "statement_timeout": f"{round(config.tuning.statement_timeout_seconds * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{round(config.tuning.statement_timeout_seconds * 1000)}ms",
        # The session is idle while the broker is slow, and must live on.
        "idle_session_timeout": "0",
        # At a higher level a row that somebody updates meanwhile would make the removal fail, and the polling could
        # make transactions of the application fail.
        "default_transaction_isolation": "read committed",
        # Bounds of partitions are read as the server spells them, and abbreviations of time zones are ambiguous.
        "DateStyle": "ISO",
        # Types are told apart by the names that the server spells.
        "quote_all_identifiers": "off",
        # The lane of a bytea key is the hash of its text, which must be the same in every session.
        "bytea_output": "hex",
        "tcp_keepalives_idle": str(_KEEPALIVE["idle"]),
        "tcp_keepalives_interval": str(_KEEPALIVE["interval"]),
        "tcp_keepalives_count": str(_KEEPALIVE["count"]),
        "tcp_user_timeout": f"{_TCP_USER_TIMEOUT_MS}ms",
        # Rows are always wanted in the order of the id index from its low end; statistics of a table that fills and
        # empties all day must not talk the planner into anything else.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_sort": "off",
        "max_parallel_workers_per_gather": "0",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
    }
    if connection.info.server_version >= 170000:
        settings["transaction_timeout"] = "0"
    _set(connection, settings, until_the_end_of="session")


def acting_user(connection: psycopg.Connection[Any]) -> str:
    """Whose rights the session has: by ALTER ROLE ... SET role it may be another one's than that of the login.

    Raises:
        psycopg.Error: the server could not be asked.
    """
    row = connection.execute("SELECT current_user").fetchone()
    return connection.info.user if row is None else str(row[0])


def wait_briefly(connection: Connection) -> None:
    """Let no statement of the open transaction wait long for a lock, or be slow.

    Raises:
        psycopg.Error: the session is lost.
    """
    _set(connection, _BRIEFLY, until_the_end_of="transaction")


def _set(
    connection: Connection, settings: Mapping[str, str], *, until_the_end_of: Literal["session", "transaction"]
) -> None:
    local = sql.Literal(until_the_end_of == "transaction")
    connection.execute(
        sql.SQL("SELECT {}").format(
            sql.SQL(", ").join(
                sql.SQL("set_config({}, {}, {})").format(sql.Literal(name), sql.Literal(value), local)
                for name, value in settings.items()
            )
        )
    )
