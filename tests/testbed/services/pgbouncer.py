"""PgBouncer on loopback in front of a local PostgreSQL server, as many installations have it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from tests.testbed.services.packages import program
from tests.testbed.services.postgres import Database
from tests.testbed.services.processes import ServiceProcess, free_port, remove, service_directory

PoolMode = Literal["session", "transaction"]


@contextmanager
def pooling(*logins: Database, mode: PoolMode, size: int = 2) -> Iterator[Sequence[Database]]:
    """The same logins, but through a pooler without TLS that keeps `size` server sessions for each."""
    directory = service_directory("pgbouncer")
    port = free_port()
    server = logins[0]
    (directory / "users.txt").write_text("".join(f'"{login.user}" "{login.password}"\n' for login in logins))
    (directory / "pgbouncer.ini").write_text(
        "[databases]\n"
        f"* = host={server.host} port={server.port}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = plain\nauth_file = {directory / 'users.txt'}\n"
        f"pool_mode = {mode}\ndefault_pool_size = {size}\nserver_tls_sslmode = prefer\n"
    )
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        # It refuses to run as root.
        account = pwd.getpwnam(user)
        directory.chmod(0o755)
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, account.pw_uid, account.pw_gid)
    process = ServiceProcess(
        name="pgbouncer",
        directory=directory,
        command=(str(program("pgbouncer")), str(directory / "pgbouncer.ini")),
        user=user,
        death_signal="INT",
    )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        process.start()
        process.await_ready(listens, seconds=20)
        yield [login.at(host="127.0.0.1", port=port).as_plaintext() for login in logins]
    finally:
        process.stop(signal.SIGINT, seconds=10)
        remove(directory)
