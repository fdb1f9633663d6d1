"""Passwords and payloads stay out of everything a relay says, whatever goes wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.config import RelayConfig, dump
from tests.integration.harness.consumer import await_messages
from tests.integration.harness.relay import OUTBOXRELAY, Pair, RelayProcess, relay_config
from tests.testbed.services.certificates import Authority
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.processes import free_port

PASSWORD = "S3CR3T-CANARY' \\ \"x"
CANARIES = ("S3CR3T", "CANARY")
PAYLOAD = "PAYL0AD-CANARY"

Change = Callable[[dict[str, Any], Path], None]


def wrong_password(document: dict[str, Any], directory: Path) -> None:
    """The server refuses the login."""


def unknown_host(document: dict[str, Any], directory: Path) -> None:
    """The name cannot be resolved (RFC 2606 reserves `.invalid`)."""
    document["database"]["host"] = "no-such-host.invalid"


def wrong_ca(document: dict[str, Any], directory: Path) -> None:
    """The server's certificate is not signed by the CA at hand."""
    document["database"]["tls"]["ca_file"] = str(Authority().write(directory / "other-ca.crt"))


def nobody_listens(document: dict[str, Any], directory: Path) -> None:
    """The port is closed."""
    document["database"]["port"] = free_port()


def options_in_the_name(document: dict[str, Any], directory: Path) -> None:
    """A name that libpq could take for a connection string."""
    document["database"]["dbname"] = "host=elsewhere sslmode=bad"


FAULTS: list[tuple[Change, set[str]]] = [
    (wrong_password, {"AuthenticationFailed"}),
    (unknown_host, {"DatabaseUnreachable"}),
    (wrong_ca, {"TlsFailed"}),
    (nobody_listens, {"DatabaseUnreachable"}),
    (options_in_the_name, {"DatabaseMissing", "AuthenticationFailed"}),
]


def everything_said(relay: RelayProcess) -> str:
    """All output of a running relay."""
    return "\n".join(
        [relay.log_text(), *(relay.get(path).body for path in ("/status", "/metrics", "/readyz", "/livez"))]
    )


def check_output(config: RelayConfig, directory: Path, *options: str) -> str:
    """What `outboxrelay check` prints."""
    path = directory / "check.json"
    path.write_text(dump(config))
    done = subprocess.run(
        [OUTBOXRELAY, "check", "--config", path, *options], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(("fault", "reasons"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_se_04_a_failing_connection_never_shows_the_password(pair: Pair, fault: Change, reasons: set[str]) -> None:
    """cases.md SE-04: authentication, DNS, TLS and network failures and a bad option, all at debug level."""
    document = pair.config.model_dump(mode="json", by_alias=True) | {"log_level": "debug"}
    (pair.directory / "password").write_text(PASSWORD)
    fault(document, pair.directory)
    config = RelayConfig.model_validate_json(json.dumps(document))
    relay = pair.relay(config=config)
    report = relay.await_report(lambda report: report.database.reason != "Starting", what="a reason", seconds=60)
    assert not report.database.ok
    assert report.database.reason in reasons
    # What a person needs in order to act is still there.
    assert config.database.address in report.database.message
    assert config.database.dbname in report.database.message
    said = (
        everything_said(relay) + check_output(config, pair.directory) + check_output(config, pair.directory, "--json")
    )
    assert report.database.reason in said
    for canary in CANARIES:
        assert canary not in said


def test_se_04_a_refused_login_names_the_user_and_the_sqlstate(pair: Pair) -> None:
    """cases.md SE-04: errors keep host, database, user and SQLSTATE (28P01: invalid password)."""
    (pair.directory / "password").write_text(PASSWORD)
    report = pair.relay().await_report(lambda report: report.database.reason == "AuthenticationFailed", what="refusal")
    assert (pair.directory / "username").read_text() in report.database.message
    assert "28P01" in report.database.message


def test_se_04_a_password_in_the_configuration_is_refused_without_being_shown(pair: Pair) -> None:
    """cases.md SE-04: an unknown field is named, its value is not."""
    document = json.loads(dump(pair.config))
    document["database"]["password"] = PASSWORD
    path = pair.directory / "inline.json"
    path.write_text(json.dumps(document))
    for command in ("run", "check"):
        done = subprocess.run(
            [OUTBOXRELAY, command, "--config", path], capture_output=True, text=True, timeout=60, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode == 2
        assert "database.password" in said
        for canary in CANARIES:
            assert canary not in said


def test_se_04_a_failing_row_never_shows_its_payload(pair: Pair, kafka: LocalKafka) -> None:
    """cases.md SE-04: the second canary sits in payload and headers of rows that fail."""
    topic = kafka.create_topic(partitions=1, configs={"max.message.bytes": "2000"})
    config = relay_config(
        database=pair.database.relay_role(),
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic.name,
        directory=pair.directory,
        log_level="debug",
    )
    filler = "".join(f"{number:05}" for number in range(1000))
    pair.insert(("too-large", json.dumps({"secret": PAYLOAD, "filler": filler})), ("good", json.dumps({"n": 1})))
    pair.database.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload, headers)"
        " values ('order', 'headers', 'T', %s, %s)",
        [json.dumps({"secret": PAYLOAD}), json.dumps({"nested": {"secret": PAYLOAD}})],
    )
    # A tombstone has no meaning on a topic that is not compacted.
    pair.database.execute("insert into outbox (aggregatetype, aggregateid, type) values ('order', 'null', %s)", ["T"])
    relay = pair.relay(config=config)
    report = relay.await_report(lambda report: report.parked_total == 3, what="three parked rows")
    await_messages(kafka, topic, 1)
    assert {row.reason for row in report.parked} == {"RowTooLarge", "HeadersInvalid", "PayloadIsNull"}
    assert PAYLOAD not in everything_said(relay) + check_output(config, pair.directory)
