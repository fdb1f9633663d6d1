#!/usr/bin/env python3
"""PID 1 of the Kafka pod: keeps the broker in the state that is asked for, so that outages can be played.

An emptyDir dies with its pod, so a broker that is scaled to zero would lose its log. Here only the broker's
process stops; pod and data stay:

    kubectl exec deploy/kafka -- broker stop      # real outage: connections are refused; returns when down
    kubectl exec deploy/kafka -- broker start     # returns when topics can be used again
    kubectl exec deploy/kafka -- broker status    # running | stopped
    kubectl exec deploy/kafka -- broker consume TOPIC [SECONDS]   # print what arrives, headers and key included
    kubectl exec deploy/kafka -- broker tool CLASS [ARGUMENT...]  # one of Kafka's command line tools

Python's standard library only: this file runs in the image as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import NoReturn

DATA = Path(os.environ.get("KAFKA_DATA", "/data"))
HOME = Path(os.environ.get("KAFKA_HOME", "/opt/kafka"))
RUN = Path(os.environ.get("KAFKA_RUN", "/tmp/broker"))
PORT = int(os.environ.get("KAFKA_PORT", "9092"))
READY_PORT = int(os.environ.get("KAFKA_READY_PORT", "9095"))
CONTROLLER_PORT = int(os.environ.get("KAFKA_CONTROLLER_PORT", "9093"))
# The pod's own tools have a listener of their own: the advertised name is a Service's, which leads here only once
# the pod is ready, and it is ready only once the tools have created the topics.
LOCAL_PORT = int(os.environ.get("KAFKA_LOCAL_PORT", "9094"))
ADVERTISED = os.environ.get("KAFKA_ADVERTISED", "localhost")
# With a certificate (key and chain in one PEM file) there is a listener for TLS and SCRAM-SHA-512, too.
CERTIFICATE = os.environ.get("KAFKA_CERTIFICATE", "")
SECURED_PORT = int(os.environ.get("KAFKA_SECURED_PORT", "9096"))
TOPICS = os.environ.get("KAFKA_TOPICS", "").split()
HEAP = os.environ.get("KAFKA_HEAP", "384m")

CHANGE_SECONDS = 150
"""For a broker to start or stop on a busy machine."""

DESIRED = RUN / "desired"
READY = RUN / "ready"
PROPERTIES = RUN / "server.properties"


def java(*arguments: str, heap: str) -> list[str]:
    """Command line of a program of the Kafka distribution."""
    return [
        "java",
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        f"-Dlog4j2.configurationFile={HOME / 'log4j2.xml'}",
        "-cp",
        f"{HOME / 'jars'}/*",
        *arguments,
    ]


def tool(*arguments: str) -> None:
    """Run one of Kafka's command line tools to its end."""
    subprocess.run(java(*arguments, heap="128m"), check=True, stdin=subprocess.DEVNULL)


def prepare() -> None:
    """Write the configuration, and format the log directory if it is empty."""
    RUN.mkdir(parents=True, exist_ok=True)
    READY.unlink(missing_ok=True)
    DESIRED.write_text("running")
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": f"1@localhost:{CONTROLLER_PORT}",
        "controller.listener.names": "CONTROLLER",
        "listeners": (
            f"PLAINTEXT://0.0.0.0:{PORT},LOCAL://127.0.0.1:{LOCAL_PORT},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}"
        ),
        "advertised.listeners": f"PLAINTEXT://{ADVERTISED}:{PORT},LOCAL://127.0.0.1:{LOCAL_PORT}",
        "inter.broker.listener.name": "LOCAL",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(DATA / "log"),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    if CERTIFICATE:
        settings = secured(settings)
    PROPERTIES.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    if not (DATA / "log" / "meta.properties").exists():
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Joined by "=": one id in 64 begins with a dash.
        tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(PROPERTIES))


def secured(settings: dict[str, str]) -> dict[str, str]:
    """The settings with the listener for TLS and SCRAM; users are made by whoever uses it."""
    return settings | {
        "listeners": f"{settings['listeners']},SECURED://0.0.0.0:{SECURED_PORT}",
        "advertised.listeners": f"{settings['advertised.listeners']},SECURED://{ADVERTISED}:{SECURED_PORT}",
        "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},SECURED:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": CERTIFICATE,
        "listener.name.secured.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secured.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }


def answers() -> bool:
    """Whether the broker's port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1):
        return True
    return False


def create_topics() -> None:
    """Create the topics given as name:partitions, once: later they may have been changed on purpose."""
    made = DATA / "topics-created"
    if made.exists():
        return
    for item in TOPICS:
        name, _, partitions = item.partition(":")
        tool(
            *("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", f"127.0.0.1:{LOCAL_PORT}"),
            *("--create", "--if-not-exists", "--topic", name, "--partitions", partitions or "1"),
            *("--replication-factor", "1"),
        )
    made.touch()


class ReadyPort:
    """A port that is open while the topics can be used: a TCP probe costs nothing, one that runs a program does."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None

    def show(self, ready: bool) -> None:
        """Open or close the port, and hang up on whoever asked."""
        if ready and self._server is None:
            self._server = socket.create_server(("", READY_PORT))
            self._server.setblocking(False)
        if not ready and self._server is not None:
            self._server.close()
            self._server = None
        with contextlib.suppress(BlockingIOError):
            while self._server is not None:
                self._server.accept()[0].close()


def supervise() -> int:
    """Run the broker, stopping and starting it as the file `desired` says; ends with the broker's own failure."""
    ending = False

    def end(number: int, frame: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    prepare()
    broker: subprocess.Popen[bytes] | None = None
    ready = ReadyPort()
    while True:
        ready.show(READY.exists())
        wanted = not ending and DESIRED.read_text() == "running"
        if broker is None and wanted:
            broker = subprocess.Popen(java("kafka.Kafka", str(PROPERTIES), heap=HEAP), stdin=subprocess.DEVNULL)
        if broker is not None and not wanted:
            READY.unlink(missing_ok=True)
            ready.show(False)
            broker.terminate()
            broker.wait()
            broker = None
        if ending:
            return 0
        if broker is not None and broker.poll() is not None:
            print(f"the broker ended with status {broker.returncode}", file=sys.stderr)
            return 1
        if broker is not None and not READY.exists() and answers():
            create_topics()
            READY.touch()
        time.sleep(0.2)


def change(state: str) -> int:
    """Ask for a state and wait until it is reached."""
    DESIRED.write_text(state)
    deadline = time.monotonic() + CHANGE_SECONDS
    while time.monotonic() < deadline:
        if (state == "running") == READY.exists() and (state == "running") == answers():
            print(state)
            return 0
        time.sleep(0.2)
    print(f"the broker is not {state} after {CHANGE_SECONDS} s; see the pod's log", file=sys.stderr)
    return 1


def consume(topic: str, seconds: str = "10") -> int:
    """Print the topic from its beginning until nothing arrives for some seconds."""
    shown = ("print.key=true", "print.headers=true", "print.partition=true")
    return subprocess.run(
        [
            *java("org.apache.kafka.tools.consumer.ConsoleConsumer", heap="128m"),
            *("--bootstrap-server", f"127.0.0.1:{LOCAL_PORT}", "--topic", topic, "--from-beginning"),
            *("--timeout-ms", str(int(seconds) * 1000)),
            *(part for item in shown for part in ("--property", item)),
        ],
        check=False,
    ).returncode


def become(*command: str) -> NoReturn:
    """Go on as another program, which then gets the signals and the terminal."""
    os.execvp(command[0], command)  # noqa: S606  the caller's arguments are to arrive as they are


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    match arguments:
        case ["run"]:
            return supervise()
        case ["stop"]:
            return change("stopped")
        case ["start"]:
            return change("running")
        case ["status"]:
            print("running" if READY.exists() else "stopped")
            return 0
        case ["consume", topic, *rest] if len(rest) <= 1:
            return consume(topic, *rest)
        case ["tool", program, *rest]:
            become(*java(program, *rest, heap="128m"))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
