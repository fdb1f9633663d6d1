"""The commands beside `run`, as processes: their exit codes, and what they do beside a relay."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from outboxrelay.config import RelayConfig, dump
from tests.integration.harness.consumer import read_all
from tests.integration.harness.relay import OUTBOXRELAY, Pair
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import LocalPostgres


def command(config: RelayConfig, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    path = directory / "command.json"
    path.write_text(dump(config))
    return subprocess.run(
        [str(OUTBOXRELAY), *arguments, "--config", str(path)], capture_output=True, text=True, timeout=120, check=False
    )


def rows(number: int) -> list[tuple[str, str]]:
    return [(f"key-{index % 7}", f'{{"n": {index}}}') for index in range(number)]


def test_drain_ends_with_the_last_row(pair: Pair, kafka: LocalKafka) -> None:
    pair.insert(*rows(500))
    done = command(pair.config, pair.directory, "drain")
    assert done.returncode == 0, done.stderr
    assert "500 sent by this process" in done.stdout
    assert pair.pending() == 0
    assert len(read_all(kafka, pair.topic)) == 500


def test_drain_shares_the_work_with_a_relay_that_runs(pair: Pair, kafka: LocalKafka) -> None:
    relay = pair.relay()
    relay.await_ready()
    pair.insert(*rows(3000))
    done = command(pair.config, pair.directory, "drain")
    assert done.returncode == 0, done.stderr
    assert pair.pending() == 0
    assert relay.running()
    pair.insert(("later", "{}"))
    pair.await_empty()
    assert len(read_all(kafka, pair.topic)) == 3001


def test_drain_gives_up_in_time_and_says_what_is_left(pair: Pair) -> None:
    """A row that can never be sent: longer than the topic takes."""
    pair.insert(("k", json.dumps({"text": "x" * 2_000_000})))
    done = command(pair.config, pair.directory, "drain", "--timeout", "5")
    assert done.returncode == 1
    assert "not drained" in done.stderr
    assert "1 row is parked" in done.stderr
    assert pair.pending() == 1


def test_lag_and_sql_tell_without_changing_anything(pair: Pair) -> None:
    pair.insert(*rows(3))
    lag = command(pair.config, pair.directory, "lag", "--json")
    assert lag.returncode == 0, lag.stderr
    assert json.loads(lag.stdout)["waiting"] == 3
    sql = command(pair.config, pair.directory, "sql")
    assert (sql.returncode, sql.stdout.splitlines()[0]) == (0, "-- Nothing is missing in public.outbox.")
    new = command(pair.config, pair.directory, "sql", "--new", "--role", "relay")
    assert 'CREATE TABLE "public"."outbox" (' in new.stdout
    assert pair.pending() == 3


def test_a_database_that_cannot_be_asked_is_an_exit_code(pair: Pair) -> None:
    config = pair.config.model_copy(update={"database": pair.config.database.model_copy(update={"dbname": "nowhere"})})
    for arguments in (("lag",), ("sql",)):
        done = command(config, pair.directory, *arguments)
        assert done.returncode == 1
        assert done.stderr.startswith("DatabaseMissing: ")


def test_status_names_the_session_that_holds_vacuum_back(pair: Pair, postgres: LocalPostgres) -> None:
    user = pair.config.database.credentials.username_file.read_text()
    postgres.superuser.execute(f"grant pg_read_all_stats to {user}")
    relay = pair.relay(config=pair.configured(held_back_seconds=0.5))
    with pair.database.connect(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1")
        report = relay.await_report(
            lambda report: report.held_back_by is not None and report.held_back_by.pid == reader.info.backend_pid,
            what="the session that holds vacuum back",
        )
        assert report.held_back_by is not None
        assert report.held_back_by.database == pair.database.dbname
    relay.await_report(lambda report: report.held_back_by is None, what="the end of it")


def test_bench_writes_what_relays_carry(pair: Pair, kafka: LocalKafka) -> None:
    pair.database.execute(f"grant insert on outbox to {pair.config.database.credentials.username_file.read_text()}")
    pair.relay().await_ready()
    options = ("--rate", "0", "--seconds", "1", "--writers", "2", "--keys", "10", "--transaction-rows", "20")
    done = command(pair.config, pair.directory, "bench", "--json", "--payload-bytes", "1000", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == found["transactions"] * 20 > 0
    assert found["none_waits_after_seconds"] is not None
    messages = read_all(kafka, pair.topic)
    assert len(messages) == found["rows"]
    assert {message.key for message in messages} == {f"bench-{number}".encode() for number in range(10)}


def test_bench_tells_that_nobody_carries_its_rows(pair: Pair) -> None:
    user = pair.config.database.credentials.username_file.read_text()
    refused = command(pair.config, pair.directory, "bench")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"user {user} may not write rows" in refused.stderr
    pair.database.execute(f"grant insert on outbox to {user}")
    options = ("--rate", "5", "--seconds", "1", "--wait", "1")
    done = command(pair.config, pair.directory, "bench", *options)
    assert done.returncode == 1
    assert "rows waited still when the bench ended" in done.stdout
    assert pair.pending() == 5
    unwatched = command(pair.config, pair.directory, "bench", *options[:-1], "0")
    assert unwatched.returncode == 0
    assert "not looked at" in unwatched.stdout
