"""A PostgreSQL server on loopback, with TLS under its own CA, for the integration tests and the bench."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from tests.testbed.services.certificates import Authority, ServerCertificate
from tests.testbed.services.eventually import eventually
from tests.testbed.services.packages import program
from tests.testbed.services.processes import ServiceProcess, free_port, remove, service_directory

_ALWAYS = (
    # A superuser keeps access whatever else is set, or nobody could undo it.
    "host all postgres 127.0.0.1/32 scram-sha-256",
    "host replication postgres 127.0.0.1/32 scram-sha-256",
)

_HBA = ("hostssl all all 127.0.0.1/32 scram-sha-256", "hostnossl all all 127.0.0.1/32 scram-sha-256")

_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "password_encryption": "scram-sha-256",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] %q%u@%d/%a ",
}


@dataclass(frozen=True, slots=True)
class Database:
    """One database and a login for it; `user` owns the database unless `as_role` was used."""

    host: str
    port: int
    dbname: str
    user: str
    password: str
    ca_file: Path
    sslmode: str = "verify-full"

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit mode; `options` are libpq's and override the settings."""
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "dbname": self.dbname,
            "user": self.user,
            "password": self.password,
            "sslmode": self.sslmode,
            "sslrootcert": str(self.ca_file),
            "connect_timeout": 10,
            "autocommit": True,
        }
        return psycopg.connect(**(settings | options))

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """One statement on a connection of its own; its rows, or an empty list."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def as_role(self, *, user: str, password: str) -> Database:
        """The same database with another login."""
        return replace(self, user=user, password=password)

    def as_plaintext(self) -> Database:
        """The same database without TLS, for servers whose certificate is not to be trusted."""
        return replace(self, sslmode="disable")

    def at(self, *, host: str | None = None, port: int | None = None) -> Database:
        """The same database at another address, for example behind a proxy."""
        return replace(self, host=host or self.host, port=port or self.port)

    def relay_role(self, *, name: str = "relay", table: str = "outbox", schema: str = "public") -> Database:
        """A login with no more than a relay needs: to read and delete the rows of one outbox table.

        Roles belong to the whole server: the name is made unique.
        """
        user, password = f"{name}_{secrets.token_hex(4)}", secrets.token_urlsafe(12)
        with self.connect() as connection:
            role, relation = sql.Identifier(user), sql.Identifier(schema, table)
            connection.execute(sql.SQL("create role {} login password {}").format(role, sql.Literal(password)))
            connection.execute(sql.SQL("grant usage on schema {} to {}").format(sql.Identifier(schema), role))
            connection.execute(sql.SQL("grant select, delete on {} to {}").format(relation, role))
        return self.as_role(user=user, password=password)


class LocalPostgres:
    """A PostgreSQL server of its own on a free port of 127.0.0.1, data in a temporary directory.

    Args:
        fsync: off makes commits cheap; a kill of the processes still loses nothing, only a power cut would.
        certificate: the server's certificate; the default is a good one for 127.0.0.1 and localhost.
        tls: off makes a server that speaks plaintext only.
        settings: further settings of postgresql.conf.
        host: another loopback address than 127.0.0.1.
        port: the port, if it must be a certain one.
        primary: the server that this one shall be a standby of.
    """

    def __init__(
        self,
        *,
        fsync: bool = True,
        certificate: ServerCertificate | None = None,
        authority: Authority | None = None,
        tls: bool = True,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int | None = None,
        primary: LocalPostgres | None = None,
    ) -> None:
        self.host = host
        self.port = port or free_port()
        self._primary = primary
        self._fsync = fsync
        self._tls = tls
        self.authority = authority or Authority()
        self._trusted = certificate is None
        self._certificate = certificate or self.authority.issue(host, "localhost")
        self._settings = dict(settings or {})
        self._password: str = secrets.token_urlsafe(18) if primary is None else primary._password
        self._directory: Path | None = None
        self._server: ServiceProcess | None = None

    def __enter__(self) -> Self:
        self._directory = directory = service_directory("postgres")
        try:
            self._initialise(directory)
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
    def process(self) -> ServiceProcess:
        """The postmaster."""
        if self._server is None:
            raise RuntimeError("LocalPostgres is used outside its `with` block")
        return self._server

    @property
    def ca_file(self) -> Path:
        """Certificate of the CA that signed the server's certificate."""
        return self.process.directory / "ca.crt"

    @property
    def superuser(self) -> Database:
        """The login `postgres` on the maintenance database.

        With a certificate of the caller's choosing it comes without TLS, since that may be a bad one on purpose.
        """
        return Database(
            host=self.host,
            port=self.port,
            dbname="postgres",
            user="postgres",
            password=self._password,
            ca_file=self.ca_file,
            sslmode="verify-full" if self._tls and self._trusted else "disable",
        )

    def start(self) -> None:
        """Start the server and wait until it answers queries."""
        self.process.start()
        self.process.await_ready(self._answers, seconds=60)

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, data is flushed."""
        self.process.stop(signal.SIGINT, seconds=60)

    def restart(self) -> None:
        """Fast shutdown and start on the same port with the same data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """kill -9 of the server and all its sessions; `start` recovers from the log."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP the server and its sessions: connections stay open, and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.process.resume()

    def promote(self) -> None:
        """Make a standby the primary, and wait until it takes writes."""
        self.superuser.execute("select pg_promote()")

    def close(self) -> None:
        """End the server and remove its data."""
        if self._server is not None:
            self._server.stop(signal.SIGQUIT, seconds=20)
            self._server = None
        if self._directory is not None:
            remove(self._directory)
            self._directory = None

    def create_database(self, name: str | None = None, *, encoding: str = "UTF8") -> Database:
        """A new database owned by a new login of the same name, which may also create roles."""
        name = name or f"db_{secrets.token_hex(5)}"
        password = secrets.token_urlsafe(12)
        with self.superuser.connect() as connection:
            owner = sql.Identifier(name)
            connection.execute(
                sql.SQL("create role {} login createrole password {}").format(owner, sql.Literal(password))
            )
            connection.execute(
                sql.SQL("create database {} owner {} template template0 encoding {} locale 'C'").format(
                    owner, owner, sql.Literal(encoding)
                )
            )
            connection.execute(sql.SQL("grant pg_monitor, pg_signal_backend to {}").format(owner))
        return replace(self.superuser, dbname=name, user=name, password=password)

    def drop_database(self, database: Database) -> None:
        """Remove a database, ending its sessions."""
        with self.superuser.connect() as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database.dbname))
            )

    def set_hba(self, *lines: str) -> None:
        """Replace the host based authentication rules (none given: the defaults) and reload."""
        path = self.process.directory / "data" / "pg_hba.conf"
        # In place, so that the file keeps its owner.
        path.write_text("\n".join((*_ALWAYS, *(lines or _HBA))) + "\n")
        before = self.superuser.execute("select pg_conf_load_time(), pg_reload_conf()")[0][0]
        eventually(
            lambda: self.superuser.execute("select pg_conf_load_time()")[0][0] > before,
            seconds=20,
            what="new host based authentication rules",
        )

    def _answers(self) -> bool:
        try:
            with self.superuser.connect(connect_timeout=2) as connection:
                connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def _making_of(self, directory: Path) -> list[str]:
        """The command that makes the data directory."""
        data = str(directory / "data")
        if self._primary is not None:
            source = f"host={self._primary.host} port={self._primary.port} user=postgres sslmode=disable"
            return [str(program("pg_basebackup")), "-D", data, "-R", "-X", "stream", "-c", "fast", "-d", source]
        return [
            str(program("initdb")),
            *("-D", data, "-U", "postgres", "--pwfile", str(directory / "password")),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ]

    def _initialise(self, directory: Path) -> None:
        user = "postgres" if os.geteuid() == 0 else None
        self.authority.write(directory / "ca.crt")
        (directory / "server.crt").write_bytes(self._certificate.certificate)
        (directory / "server.key").write_bytes(self._certificate.key)
        (directory / "server.key").chmod(0o600)
        (directory / "password").write_text(self._password)
        (directory / "password").chmod(0o600)
        directory.chmod(0o755)
        prefix: list[str] = []
        if user is not None:
            # The server refuses to run as root.
            program("postgres")
            account = pwd.getpwnam(user)
            for path in (directory, *directory.iterdir()):
                shutil.chown(path, account.pw_uid, account.pw_gid)
            prefix = [str(program("setpriv")), "--reuid", user, "--regid", user, "--init-groups"]
        command = [*prefix, *self._making_of(directory)]
        environment = os.environ | {"PGPASSWORD": self._password}
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
        (directory / "data" / "pg_hba.conf").write_text("\n".join((*_ALWAYS, *_HBA)) + "\n")
        settings = _SETTINGS | {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(directory),
            "fsync": "on" if self._fsync else "off",
            "ssl": "on" if self._tls else "off",
            "ssl_cert_file": str(directory / "server.crt"),
            "ssl_key_file": str(directory / "server.key"),
            # By it clients' certificates are checked, where one is shown.
            "ssl_ca_file": str(directory / "ca.crt"),
        }
        lines = [f"{name} = '{value}'" for name, value in (settings | self._settings).items()]
        with (directory / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write("\n" + "\n".join(lines) + "\n")
        self._server = ServiceProcess(
            name="postgres",
            directory=directory,
            command=(str(program("postgres")), "-D", str(directory / "data")),
            user=user,
            # SIGQUIT also ends the sessions; SIGKILL would leave them until they notice.
            death_signal="QUIT",
        )
