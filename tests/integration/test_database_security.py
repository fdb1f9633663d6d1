"""PostgreSQL with client certificates and with several hosts: what works, what is named, and what changes in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness.checker import check
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.load import Load
from tests.integration.harness.relay import Pair, RelayProcess, relay_config, relaying
from tests.integration.test_secrets_in_output import check_output, everything_said
from tests.testbed.services.certificates import Authority, ServerCertificate
from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import Database, LocalPostgres
from tests.testbed.services.processes import free_port
from tests.testbed.services.table import create_outbox_table


@pytest.fixture
def certified(server: LocalPostgres) -> Iterator[LocalPostgres]:
    """The server lets in whoever shows a certificate, and nobody by a password."""
    server.set_hba("hostssl all all 127.0.0.1/32 cert")
    yield server
    server.set_hba()


def show(directory: Path, client: ServerCertificate) -> dict[str, str]:
    """The files of a client certificate, readable by all as those of a mounted Secret are."""
    (directory / "client.crt").write_bytes(client.certificate)
    (directory / "client.key").write_bytes(client.key)
    (directory / "client.key").chmod(0o644)
    return {"certificate_file": str(directory / "client.crt"), "key_file": str(directory / "client.key")}


def certified_pair(
    database: Database, kafka: LocalKafka, topic: Topic, directory: Path, *, client: ServerCertificate
) -> Pair:
    """A pair whose login has no password at all."""
    config = relay_config(
        database=database,
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=directory,
        tls={"mode": "verify-full", "ca_file": database.ca_file, "client_certificate": show(directory, client)},
        tuning={"batch_rows": 50, "reconnect_max_seconds": 1.0},
    )
    document = config.model_dump(mode="python", by_alias=True, exclude_defaults=True)
    del document["database"]["credentials"]["password_file"]
    config = config.model_validate(document)
    return Pair(database=database, topic=topic, config=config, directory=directory)


def serials(server: LocalPostgres, user: str) -> list[str]:
    """Serial numbers of the certificates with which a user is connected."""
    rows = server.superuser.execute(
        "select client_serial::text from pg_stat_ssl join pg_stat_activity using (pid) where usename = %s", [user]
    )
    return [serial for (serial,) in rows]


def test_a_client_certificate_is_enough_and_is_rotated_in_place(
    certified: LocalPostgres, database: Database, kafka: LocalKafka, topic: Topic, tmp_path: Path
) -> None:
    """The next session is opened with the new certificate; the process stays."""
    role = relay_role(certified, database)
    first, second = (certified.authority.issue_client(role.user) for _ in range(2))
    pair = certified_pair(role, kafka, topic, tmp_path, client=first)
    with relaying(pair):
        relay = pair.relay()
        relay.await_ready()
        pid = relay.pid
        [before] = serials(certified, role.user)
        show(tmp_path, second)
        certified.superuser.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [role.user]
        )
        eventually(
            lambda: [serial for serial in serials(certified, role.user) if serial != before],
            seconds=60,
            what="a session with the new certificate",
            detail=relay.log_tail,
        )
        insert(certified, database, "after")
        await_messages(kafka, topic, 1)
        assert relay.pid == pid
        assert "ready to relay" in check_output(pair.config, tmp_path)
        assert "PRIVATE KEY" not in everything_said(relay)


@pytest.mark.parametrize("kind", ["expired", "of another authority", "with another key", "of another user", "missing"])
def test_se_05_a_client_certificate_that_does_not_fit_is_named(
    kind: str, certified: LocalPostgres, database: Database, kafka: LocalKafka, topic: Topic, tmp_path: Path
) -> None:
    """And the right one is taken up without a restart."""
    role = relay_role(certified, database)
    good = certified.authority.issue_client(role.user)
    other = Authority().issue_client(role.user)
    wrong, reason = {
        "expired": (certified.authority.issue_client(role.user, expired=True), "TlsFailed"),
        "of another authority": (other, "TlsFailed"),
        "with another key": (ServerCertificate(certificate=good.certificate, key=other.key), "TlsFailed"),
        "of another user": (certified.authority.issue_client("somebody"), "AuthenticationFailed"),
        "missing": (good, "CredentialsMissing"),
    }[kind]
    pair = certified_pair(role, kafka, topic, tmp_path, client=wrong)
    if kind == "missing":
        (tmp_path / "client.key").unlink()
    with relaying(pair):
        relay = pair.relay()
        report = relay.await_report(lambda report: report.database.reason != "Starting", what="a reason")
        assert (report.database.ok, report.database.reason) == (False, reason), report.database.message
        assert role.user in report.database.message or kind == "missing"
        show(tmp_path, good)
        relay.await_report(lambda report: report.database.ok, what="the database reached", seconds=60)


def test_password_and_ca_are_rotated_in_place(kafka: LocalKafka, tmp_path: Path) -> None:
    """cases.md SE-05 (CA Secret rotated): all under load; each time the sessions are ended, and nothing is lost."""
    with LocalPostgres(fsync=False) as own:
        owner = own.create_database().as_plaintext()
        create_outbox_table(owner)
        role = owner.relay_role()
        topic = kafka.create_topic(partitions=3)
        config = relay_config(
            database=role,
            bootstrap_servers=kafka.bootstrap_servers,
            topic=topic.name,
            directory=tmp_path,
            tls={"mode": "verify-full", "ca_file": own.authority.write(tmp_path / "ca.crt")},
            tuning={"batch_rows": 50, "reconnect_max_seconds": 1.0},
        )

        def ended() -> None:
            own.superuser.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [role.user]
            )

        with relaying(Pair(database=owner, topic=topic, config=config, directory=tmp_path)) as pair:
            relay = pair.relay()
            relay.await_ready()
            pid = relay.pid
            with Load(owner, rows_per_second=200) as load:
                own.superuser.execute(f"alter role {role.user} password 'the-next-one'")
                ended()
                report = relay.await_report(lambda report: not report.database.ok, what="the old password refused")
                assert report.database.reason in ("AuthenticationFailed", "DatabaseUnreachable")
                (tmp_path / "password").write_text("the-next-one")
                goes_on(relay)
                Authority().write(tmp_path / "ca.crt")
                ended()
                relay.await_report(
                    lambda report: report.database.reason == "TlsFailed", what="a CA that does not fit", seconds=60
                )
                own.authority.write(tmp_path / "ca.crt")
                goes_on(relay)
            pair.await_empty()
            assert relay.pid == pid
            committed = load.committed()
            verdict = check(committed=committed, delivered=read_all(kafka, topic))
            # A session that is ended between acknowledgement and removal repeats its batch.
            problems = verdict.problems(repeatable={row.row_id for row in committed}, most_repeats=4 * 50)
            assert not problems, f"{verdict}: {problems}"


def goes_on(relay: RelayProcess) -> None:
    """Rows are sent from now on."""
    relay.await_report(lambda report: report.database.ok, what="the database reached", seconds=60)
    sent = relay.report().sent_rows
    relay.await_report(lambda report: report.sent_rows >= sent + 60, what="60 more rows sent", seconds=60)


def relay_role(server: LocalPostgres, database: Database) -> Database:
    """A relay's login, made while passwords count."""
    server.set_hba()
    role = database.relay_role()
    server.set_hba("hostssl all all 127.0.0.1/32 cert")
    return role


def insert(server: LocalPostgres, database: Database, key: str) -> None:
    """One row, by the superuser, who still has a password."""
    with server.superuser.connect(dbname=database.dbname) as connection:
        connection.execute(
            "insert into outbox (aggregatetype, aggregateid, type, payload) values ('order', %s, 'T', '{}')", [key]
        )


def failover_pair(
    primary: LocalPostgres, database: Database, kafka: LocalKafka, topic: Topic, directory: Path, *, hosts: list[str]
) -> Pair:
    """A pair over both servers of a cluster."""
    config = relay_config(
        database=database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=directory,
        tuning={"batch_rows": 50, "reconnect_max_seconds": 1.0, "full_sweep_seconds": 5.0},
    )
    document = config.model_dump(mode="python", by_alias=True, exclude_defaults=True)
    document["database"] |= {"host": None, "hosts": tuple(hosts)}
    return Pair(database=database, topic=topic, config=config.model_validate(document), directory=directory)


def where(relay: RelayProcess, servers: dict[str, LocalPostgres]) -> set[str]:
    """Hosts at which the relay has a session now."""
    return {name for name, server in servers.items() if server.process.running() and relay.backends(server.superuser)}


def test_of_several_hosts_the_one_that_takes_writes_is_used_and_found_again_after_a_failover(
    kafka: LocalKafka, topic: Topic, tmp_path: Path
) -> None:
    """A standby is skipped; the primary is killed, the standby promoted: nothing that it had is lost or reordered."""
    port = free_port()
    with (
        LocalPostgres(fsync=False, port=port) as primary,
        LocalPostgres(
            fsync=False, host="127.0.0.2", port=port, primary=primary, authority=primary.authority
        ) as standby,
    ):
        servers = {"127.0.0.1": primary, "127.0.0.2": standby}
        database = primary.create_database()
        create_outbox_table(database)
        pair = failover_pair(primary, database, kafka, topic, tmp_path, hosts=["127.0.0.2", "127.0.0.1"])
        with relaying(pair):
            relay = pair.relay()
            relay.await_ready()
            assert where(relay, servers) == {"127.0.0.1"}
            with Load(database, rows_per_second=200) as load:
                relay.await_report(lambda report: report.sent_rows >= 100, what="100 rows sent")
            written = primary.superuser.execute("select pg_current_wal_lsn()")[0][0]
            eventually(
                lambda: standby.superuser.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [written])[0][0],
                seconds=60,
                what="the standby to have all",
            )
            committed = load.committed()
            primary.kill()
            report = relay.await_report(lambda report: not report.database.ok, what="the loss noticed", seconds=60)
            # Neither takes writes now, and both are named.
            report = relay.await_report(
                lambda report: report.database.reason == "ReadOnly", what="only the standby found", seconds=60
            )
            assert "127.0.0.1" in report.database.message
            assert "127.0.0.2" in report.database.message
            standby.promote()
            relay.await_report(lambda report: report.database.ok, what="the new primary found", seconds=60)
            assert where(relay, servers) == {"127.0.0.2"}
            moved = database.at(host="127.0.0.2")
            with Load(moved, rows_per_second=200) as more:
                sent = relay.report().sent_rows
                relay.await_report(lambda report: report.sent_rows >= sent + 100, what="100 more rows sent")
            eventually(lambda: not moved.execute("select from outbox"), seconds=60, what="an empty outbox")
            verdict = check(committed=more.committed(), delivered=read_all(kafka, topic))
            # What was removed but not yet replayed when the primary died comes again.
            problems = verdict.problems(repeatable={row.row_id for row in committed}, most_repeats=len(committed))
            assert not problems, f"{verdict}: {problems}"
            assert "ready to relay" in check_output(pair.config, tmp_path)
