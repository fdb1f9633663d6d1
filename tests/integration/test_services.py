"""The local services themselves: they must survive their own faults, and never outlive their session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from tests.testbed.services.eventually import DeadlineExceededError, eventually
from tests.testbed.services.images import write_build_context
from tests.testbed.services.kafka import LocalKafka
from tests.testbed.services.postgres import LocalPostgres
from tests.testbed.services.processes import ProcessId, live_sessions, sweep

_SESSION = """
import signal
from tests.testbed.services.postgres import LocalPostgres
with LocalPostgres(fsync=False) as server:
    print(server.process.id.pid, server.process.directory, flush=True)
    signal.pause()
"""


def test_a_killed_session_leaves_no_server_behind() -> None:
    """kill -9 of the session that owns a server: the kernel ends the server, the next sweep its files."""
    session = subprocess.Popen([sys.executable, "-c", _SESSION], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    with session, session.stdout:
        pid, directory = session.stdout.readline().split()
        server, owner = ProcessId.of(int(pid)), ProcessId.of(session.pid)
        assert server is not None
        assert owner is not None
        assert owner in live_sessions()
        session.send_signal(signal.SIGKILL)
    eventually(lambda: not server.runs(), seconds=20, what="end of the orphaned server")
    sweep()
    assert owner not in live_sessions()
    assert not Path(directory).exists()


def test_postgres_keeps_its_data_over_restart_kill_and_pause() -> None:
    with LocalPostgres(fsync=False) as server:
        database = server.create_database()
        database.execute("create table kept (value int)")
        database.execute("insert into kept values (1)")
        server.restart()
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            database.execute("select 1")
        server.start()
        server.pause()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            database.connect(connect_timeout=2)
        server.resume()
        assert database.execute("select value from kept") == [(1,)]
        assert database.execute("select version from pg_stat_ssl where pid = pg_backend_pid()")[0][0].startswith("TLS")


def test_kafka_keeps_its_topics_over_stop_and_kill() -> None:
    with LocalKafka() as cluster:
        topic = cluster.create_topic(partitions=3)
        cluster.stop()
        cluster.start()
        cluster.kill()
        cluster.start()
        with cluster.admin() as admin:
            assert len(admin.list_topics(topic.name, timeout=10).topics[topic.name].partitions) == 3


def test_the_image_has_the_commands_that_manuals_name(tmp_path: Path) -> None:
    """The README's first rows are carried with Kafka's own scripts, of which the image has the jars only."""
    write_build_context("kafka", tmp_path)
    (tmp_path / "broker").symlink_to(tmp_path / "broker.py")
    given = {**os.environ, "KAFKA_HOME": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def run(script: str, *arguments: str) -> str:
        server = ("--bootstrap-server", cluster.bootstrap_servers)
        return subprocess.run(
            [script, *server, *arguments], env=given, check=True, capture_output=True, text=True
        ).stdout

    with LocalKafka() as cluster:
        run("kafka-topics.sh", "--create", "--topic", "shop.orders", "--partitions", "2")
        assert run("kafka-topics.sh", "--list").split() == ["shop.orders"]
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("shop.orders", key="42", value="paid", headers={"outbox-id": "1"})
        assert producer.flush(30) == 0
        read = run(
            "kafka-console-consumer.sh",
            *("--topic", "shop.orders", "--from-beginning", "--max-messages", "1"),
            *("--property", "print.headers=true"),
        )
        assert read == "outbox-id:1\tpaid\n"


def test_waiting_says_what_was_awaited_and_what_was_seen() -> None:
    with pytest.raises(DeadlineExceededError, match=r"a miracle: not within 0.2 s; last seen: \[\]"):
        eventually(list, seconds=0.2, what="a miracle")
