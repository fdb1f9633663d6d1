"""Run the local services by hand: `python -m tests.testbed.services up`, and `down` from elsewhere."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.testbed.services.eventually import eventually
from tests.testbed.services.kafka import LocalKafka, kafka_jars
from tests.testbed.services.packages import program
from tests.testbed.services.postgres import LocalPostgres
from tests.testbed.services.processes import live_sessions, remove, service_directory, sweep
from tests.testbed.services.table import create_outbox_table

_BY_HAND = "byhand"


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.services", description=__doc__)
    parser.add_argument("command", choices=("prepare", "up", "down"))
    match parser.parse_args(arguments).command:
        case "prepare":
            prepare()
            return 0
        case "up":
            return _up()
        case _:
            return _down()


def prepare() -> None:
    """Install or fetch what services and tests need, so that these find it.

    Raises:
        MissingProgramError, ServiceError: naming what is missing.
    """
    for name in ("initdb", "postgres", "pgbouncer", "java", "mvn", "setpriv", "promtool", "rsvg-convert"):
        program(name)
    kafka_jars()


def _up() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _by_hand(), LocalPostgres() as postgres, LocalKafka() as kafka:
        database = postgres.create_database("shop")
        create_outbox_table(database)
        topic = kafka.create_topic(partitions=3, name="shop.orders")
        print(f"PostgreSQL  {database.host}:{database.port} database shop user shop password {database.password}")
        print(f"            CA {database.ca_file}; table public.outbox")
        print(f"Kafka       {kafka.bootstrap_servers}; topic {topic.name}")
        print("Ctrl-C, or `python -m tests.testbed.services down`, ends and removes both.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("ending")
    return 0


@contextmanager
def _by_hand() -> Iterator[None]:
    """Mark this session as one that `down` may end; test sessions are none of its business."""
    directory = service_directory(_BY_HAND)
    try:
        yield
    finally:
        remove(directory)


def _down() -> int:
    sessions = live_sessions(_BY_HAND)
    for session in sessions:
        session.send(signal.SIGTERM)
    eventually(lambda: not any(session.runs() for session in sessions), seconds=60, what="end of the local services")
    sweep()
    print(f"ended {len(sessions)} session(s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
