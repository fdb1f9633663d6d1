"""TLS towards PostgreSQL: what each mode accepts, and that nothing falls back to plaintext."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.integration.harness.relay import Pair, relay_config
from tests.testbed.services.certificates import Authority
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.table import create_outbox_table

MODES = ("disable", "require", "verify-ca", "verify-full")

# Which modes must connect to which server; the others must fail closed.
ACCEPTED = {
    "good": {"disable", "require", "verify-ca", "verify-full"},
    "plaintext only": {"disable"},
    "another authority": {"disable", "require"},
    "another host name": {"disable", "require", "verify-ca"},
    "expired": {"disable", "require"},
}


def start(kind: str, authority: Authority) -> LocalPostgres:
    """A server of one kind; clients hold the CA of `authority`."""
    match kind:
        case "plaintext only":
            return LocalPostgres(fsync=False, tls=False)
        case "another authority":
            return LocalPostgres(fsync=False, certificate=Authority().issue("127.0.0.1"), authority=authority)
        case "another host name":
            return LocalPostgres(fsync=False, certificate=authority.issue("db.example"), authority=authority)
        case "expired":
            return LocalPostgres(
                fsync=False, certificate=authority.issue("127.0.0.1", expired=True), authority=authority
            )
        case _:
            return LocalPostgres(fsync=False, authority=authority)


@pytest.mark.parametrize("kind", ACCEPTED)
def test_se_05_each_mode_does_what_it_says(kind: str, kafka: LocalKafka, topic: Topic, tmp_path: Path) -> None:
    """cases.md SE-05 for PostgreSQL: fails closed with its own reason, and traffic is encrypted when it succeeds."""
    with start(kind, Authority()) as server:
        owner = server.create_database().as_plaintext()
        create_outbox_table(owner)
        pairs = {}
        for mode in MODES:
            tls = {"mode": mode} | ({"ca_file": server.ca_file} if mode.startswith("verify") else {})
            config = relay_config(
                database=owner.relay_role(name=mode.replace("-", "_")),
                bootstrap_servers=kafka.bootstrap_servers,
                topic=topic.name,
                directory=tmp_path / mode,
                tls=tls,
            )
            pairs[mode] = Pair(database=owner, topic=topic, config=config, directory=tmp_path / mode)
        try:
            relays = {mode: pair.relay() for mode, pair in pairs.items()}
            for mode, relay in relays.items():
                report = relay.await_report(lambda report: report.database.reason != "Starting", what=f"mode {mode}")
                assert report.database.ok == (mode in ACCEPTED[kind]), f"{mode} against {kind}: {report.database}"
                if report.database.ok:
                    role = (tmp_path / mode / "username").read_text()
                    encrypted = owner.execute(
                        "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where usename = %s", [role]
                    )
                    assert encrypted == [(mode != "disable",)]
                else:
                    assert report.database.reason == "TlsFailed", f"{mode} against {kind}: {report.database}"
        finally:
            for pair in pairs.values():
                pair.end()


def test_se_05_a_ca_with_require_is_refused(database: Database, tmp_path: Path) -> None:
    """cases.md SE-05: libpq verifies in mode `require` as soon as it has a CA, so the combination has two meanings."""
    for mode in ("disable", "require"):
        with pytest.raises(ValidationError, match="ca_file"):
            relay_config(
                database=database,
                bootstrap_servers="127.0.0.1:9",
                topic="t",
                directory=tmp_path,
                tls={"mode": mode, "ca_file": database.ca_file},
            )
