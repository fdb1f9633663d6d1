"""The command line: `outboxrelay run|check|sql|lag|drain|bench --config FILE`, and the wiring of the parts."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import math
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TextIO, TypeVar

from outboxrelay import loading, logs, preflight
from outboxrelay.config import ConfigError, RelayConfig, digest, parse
from outboxrelay.draining import Watch
from outboxrelay.engine import Engine
from outboxrelay.findings import Findings
from outboxrelay.health import HealthServer, Routes, routes, waiting_routes
from outboxrelay.looking import Looker
from outboxrelay.ports import StoreError
from outboxrelay.publishers.choice import kafka_publisher
from outboxrelay.publishers.dead_letter import kafka_dead_letters
from outboxrelay.status import StatusBoard
from outboxrelay.stop import StopSignal
from outboxrelay.stores import lag, setup
from outboxrelay.stores.backlog import BacklogMeter
from outboxrelay.stores.load import LEAST_PAYLOAD_BYTES, Rows, TableWriter, look
from outboxrelay.stores.postgres import PostgresStore
from outboxrelay.wording import counted

_log = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)

EXIT_OK: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_CONFIG: Final = 2
EXIT_OUTPUT: Final = 3
"""The result could not be written: it is unknown to whoever asked."""

EXIT_ENDED: Final = 130
"""As shells say of a command that was ended by Ctrl-C."""

_COLLECT_EVERY: Final = (200_000, 10, 10)
"""New objects, and collections of each generation, before the next is looked through for cycles."""

DIGEST_VARIABLE: Final = "OUTBOXRELAY_CONFIG_DIGEST"
"""If set, `run` waits until the configuration file has this digest: a mounted file may be older than the pod."""

_DIGEST_POLL_SECONDS: Final = 0.5
_EXIT_WITHIN_SECONDS: Final = 8.0
_TELL_WITHIN_SECONDS: Final = 1.0


class LoadedConfig(NamedTuple):
    """A configuration, and the digest of the text it came from."""

    config: RelayConfig
    digest: str


def main(arguments: Sequence[str], *, stop: StopSignal) -> int:
    """Run one command; returns the exit code. `stop` is set when the process is asked to end."""
    parser = argparse.ArgumentParser(
        prog="outboxrelay", description="Carry rows of a PostgreSQL outbox table to a Kafka topic."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run", help="carry rows until the process is asked to end")
    check_parser = commands.add_parser("check", help="prove that database and topic are fit, and say what is not")
    sql_parser = commands.add_parser("sql", help="print the SQL that the table lacks, for its owner to run")
    lag_parser = commands.add_parser("lag", help="tell how many rows wait, since when, and who is in the way")
    drain_parser = commands.add_parser("drain", help="carry rows until none waits, then end")
    bench_parser = commands.add_parser(
        "bench", help="write rows as an application would, and tell whether the relays keep up; consumers get them"
    )
    for command in (run_parser, check_parser, sql_parser, lag_parser, drain_parser, bench_parser):
        command.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="the configuration, a JSON file"
        )
    for command in (check_parser, lag_parser, bench_parser):
        command.add_argument("--json", action="store_true", help="print one JSON document")
    sql_parser.add_argument("--new", action="store_true", help="a whole new table, without asking the database")
    sql_parser.add_argument("--role", metavar="NAME", help="the relay's user, if not the one of the configuration")
    drain_parser.add_argument(
        "--timeout",
        type=_number(float, "a number of seconds", least=0.0),
        metavar="SECONDS",
        help="give up after so long, with exit code 1; default: never",
    )
    _add_bench_options(bench_parser)
    options = parser.parse_args(arguments)
    # What libpq would take from the environment must come from the configuration alone.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    try:
        return _command(options, stop)
    except ConfigError as error:
        _complain(str(error))
        return EXIT_CONFIG
    except StoreError as error:
        _complain(f"{error.reason}: {error.message}")
        return EXIT_FINDINGS
    except _OutputError as error:
        _complain(f"cannot write the result: {error}")
        return EXIT_OUTPUT


class _OutputError(Exception):
    """Nobody takes what is to be printed; the message says why."""


def _tell(text: str) -> None:
    """Print a result.

    Raises:
        _OutputError: it was not written, or not all of it.
    """
    output: TextIO | None = sys.stdout
    if output is None:
        raise _OutputError("standard output is closed")
    try:
        output.write(text)
        output.flush()
    except OSError as error:
        # Else Python tries to write the rest once more when it ends, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        raise _OutputError(error.strerror) from None


def _tell_found(found: Findings | lag.Lag | loading.Bench, *, as_json: bool) -> None:
    _tell(found.model_dump_json(indent=2) + "\n" if as_json else found.text())


def _complain(text: str) -> None:
    """Print what went wrong, if anybody listens."""
    output: TextIO | None = sys.stderr
    if output is not None:
        with contextlib.suppress(OSError):
            output.write(f"{text}\n")
            output.flush()


def _add_bench_options(parser: argparse.ArgumentParser) -> None:
    some, seconds = _number(float, "a number", least=0.0), _number(float, "a number of seconds", least=0.0)
    whole, payload = (_number(int, "a whole number", least=least) for least in (1, LEAST_PAYLOAD_BYTES))
    parser.add_argument(
        "--rate", type=some, default=200.0, metavar="ROWS", help="a second; 0: as fast as it goes (default %(default)g)"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=30.0, metavar="N", help="how long it writes (default %(default)g)"
    )
    parser.add_argument(
        "--payload-bytes", type=payload, default=300, metavar="N", help="of each row (default %(default)s)"
    )
    parser.add_argument("--keys", type=whole, default=10_000, metavar="N", help="different ones (default %(default)s)")
    parser.add_argument(
        "--transaction-rows", type=whole, default=1, metavar="N", help="in each transaction (default %(default)s)"
    )
    parser.add_argument("--writers", type=whole, default=1, metavar="N", help="sessions that write (default 1)")
    parser.add_argument("--route", metavar="VALUE", help="of all rows; default: one that the pair takes")
    parser.add_argument("--topic", metavar="VALUE", help="of all rows, for table.columns.topic")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long no row may wait at the latest, else the exit code is 1; 0: do not look (default %(default)g)",
    )


def _number(kind: type[Number], what: str, *, least: Number) -> Callable[[str], Number]:
    """Reads an option's number that is finite and at least so much."""

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = kind(least - 1)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be {what}, {least:g} or more")
        return value

    return read


def _command(options: argparse.Namespace, stop: StopSignal) -> int:
    match options.command:
        case "run":
            return _run(options.config, stop)
        case "drain":
            return _drain(options.config, stop, within_seconds=options.timeout)
        case "bench":
            return _bench(options, stop)
    # They change nothing, and where nobody answers they would take long to notice.
    _end_in_time(stop, within_seconds=0, code=EXIT_ENDED)
    match options.command:
        case "check":
            return _check(options.config, as_json=options.json)
        case "sql":
            return _sql(options.config, new=options.new, role=options.role)
        case _:
            return _lag(options.config, as_json=options.json)


def read_config(path: Path) -> LoadedConfig:
    """The configuration and its digest.

    Raises:
        ConfigError: the file cannot be read or used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read configuration {path}: {error}") from None
    return LoadedConfig(parse(text, source=str(path)), digest(text))


def _check(path: Path, *, as_json: bool) -> int:
    config = read_config(path).config
    logs.configure(style="text", level="error", pair=config.pair.name)
    found = preflight.run(config)
    _tell_found(found, as_json=as_json)
    return EXIT_OK if found.ok else EXIT_FINDINGS


def _sql(path: Path, *, new: bool, role: str | None) -> int:
    config = read_config(path).config
    logs.configure(style="text", level="error", pair=config.pair.name)
    if new:
        _tell(setup.for_new_table(config, role=role or setup.relay_user(config)))
    else:
        _tell(setup.for_what_is_missing(config, role=role))
    return EXIT_OK


def _lag(path: Path, *, as_json: bool) -> int:
    config = read_config(path).config
    logs.configure(style="text", level="error", pair=config.pair.name)
    found = lag.measure(config)
    _tell_found(found, as_json=as_json)
    return EXIT_OK


def _drain(path: Path, stop: StopSignal, *, within_seconds: float | None) -> int:
    """Beside relays that run, it is one more of them for a while; it serves no /status, since theirs is in use."""
    _end_in_time(stop, within_seconds=_EXIT_WITHIN_SECONDS, code=EXIT_FINDINGS)
    loaded = read_config(path)
    config = loaded.config
    logs.configure(style="text", level=config.log_level, pair=config.pair.name)
    pod = f"{os.environ.get('POD_NAME') or socket.gethostname()}-drain"
    status = StatusBoard(config, pod=pod, config_digest=loaded.digest)
    watch = Watch(lag.Waiting(config), stop=stop, within_seconds=within_seconds, clock=time.monotonic)
    thread = watch.start()
    _engine(config, pod=pod, status=status, stop=stop).run()
    stop.set()
    thread.join()
    if watch.empty:
        _tell(
            f"drained: no row of {config.table.qualified} waits for {config.kafka.topic}"
            f" ({status.sent_rows} sent by this process)\n"
        )
        return EXIT_OK
    why = f"; {counted(status.parked_total, 'row is', 'rows are')} parked" if status.parked_total else ""
    if status.last_error is not None:
        why += f"; the last error: {status.last_error.message}"
    _complain(f"not drained: ended while rows of {config.table.qualified} wait{why}")
    return EXIT_FINDINGS


def _bench(options: argparse.Namespace, stop: StopSignal) -> int:
    """With the login of the configuration, which needs INSERT for it."""
    _end_in_time(stop, within_seconds=_EXIT_WITHIN_SECONDS, code=EXIT_FINDINGS)
    config = read_config(options.config).config
    logs.configure(style="text", level="error", pair=config.pair.name)
    if options.keys < options.writers:
        raise ConfigError(f"--keys {options.keys} are too few: each of {options.writers} --writers has its own")
    load = loading.Load(
        rows_per_second=options.rate,
        seconds=options.seconds,
        writers=options.writers,
        rows_per_transaction=options.transaction_rows,
        keys=options.keys,
    )
    rng = random.SystemRandom()
    rows = Rows(payload_bytes=options.payload_bytes, route=options.route, topic=options.topic)
    made = look(config, rows, rng=rng)
    with contextlib.ExitStack() as closing:
        writers = []
        for _ in range(load.writers):
            writers.append(TableWriter(config, made))
            closing.callback(writers[-1].close)
        tally, seconds = loading.generate(load, writers, stop=stop, clock=time.monotonic, rng=rng)
    waited, looked = None, options.wait > 0 and not stop.is_set()
    if looked:
        waited = loading.await_none(lag.Waiting(config), within_seconds=options.wait, stop=stop, clock=time.monotonic)
    found = loading.Bench(
        table=config.table.qualified,
        rows=tally.rows,
        transactions=tally.transactions,
        writers=load.writers,
        payload_bytes=rows.payload_bytes,
        seconds=seconds,
        rows_per_second=tally.rows / seconds if seconds else 0.0,
        wanted_rows_per_second=load.rows_per_second or None,
        commit_p50_seconds=tally.percentile(0.5),
        commit_p99_seconds=tally.percentile(0.99),
        looked=looked,
        none_waits_after_seconds=waited,
    )
    _tell_found(found, as_json=options.json)
    return EXIT_FINDINGS if looked and waited is None else EXIT_OK


def _engine(config: RelayConfig, *, pod: str, status: StatusBoard, stop: StopSignal) -> Engine:
    return Engine(
        store=PostgresStore(config),
        publisher=kafka_publisher(config, client_id=f"outboxrelay-{pod}"),
        tuning=config.tuning,
        status=status,
        stop=stop,
        clock=time.monotonic,
        rng=random.SystemRandom(),
        on_error=config.on_error,
        dead_letters=kafka_dead_letters(config, client_id=f"outboxrelay-{pod}"),
    )


def _run(path: Path, stop: StopSignal) -> int:
    _end_in_time(stop, within_seconds=_EXIT_WITHIN_SECONDS, code=EXIT_OK)
    wanted = os.environ.get(DIGEST_VARIABLE)
    loaded = _await_config(path, wanted, stop) if wanted else read_config(path)
    if loaded is None:
        return EXIT_OK
    config = loaded.config
    logs.configure(style=config.log_format, level=config.log_level, pair=config.pair.name)
    pod = os.environ.get("POD_NAME") or socket.gethostname()
    status = StatusBoard(config, pod=pod, config_digest=loaded.digest)
    # One cycle may hold a connect, two statements and a check of the brokers, each up to its time-out.
    connecting = config.database.connect_timeout_seconds * len(config.database.servers)
    dead_after = 30 + connecting + 2 * config.tuning.statement_timeout_seconds
    looker = Looker(
        BacklogMeter(config, clock=time.monotonic), monotonic=time.monotonic, wall=time.time, rng=random.SystemRandom()
    )
    looker.start()
    answers = routes(status, dead_after_seconds=dead_after, looker=looker)
    server = _serve(config.listen_host, config.listen_port, answers)
    # A batch is some ten thousand objects that live for milliseconds and form no cycles; looking for cycles among them
    # at the usual pace takes a fifth of the relay's time.
    gc.freeze()
    gc.set_threshold(*_COLLECT_EVERY)
    _engine(config, pod=pod, status=status, stop=stop).run()
    server.stop()
    looker.stop()
    _log.info("ended")
    return EXIT_OK


def _await_config(path: Path, wanted: str, stop: StopSignal) -> LoadedConfig | None:
    """Wait for the file with the digest `wanted`, alive but not ready; None if the process shall end first.

    Raises:
        ConfigError: the file with that digest cannot be used.
    """
    server: HealthServer | None = None
    try:
        while not stop.is_set():
            text = _text_of(path)
            if text is not None and digest(text) == wanted:
                return LoadedConfig(parse(text, source=str(path)), wanted)
            if server is None:
                server = _serve_while_waiting(text, wanted)
            stop.wait(_DIGEST_POLL_SECONDS)
        return None
    finally:
        if server is not None:
            server.stop()


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _serve_while_waiting(text: str | None, wanted: str) -> HealthServer:
    """At the address of the configuration that is there, if it can be read, else at the default one."""
    fields = RelayConfig.model_fields
    host, port = str(fields["listen_host"].default), int(fields["listen_port"].default)
    if text is not None:
        try:
            stale = parse(text, source="the configuration before")
        except ConfigError as error:
            _log.warning("%s", error)
        else:
            host, port = stale.listen_host, stale.listen_port
            logs.configure(style=stale.log_format, level=stale.log_level, pair=stale.pair.name)
    _log.info("waiting for configuration %s; what is there is %s", wanted, "missing" if text is None else digest(text))
    return _serve(host, port, waiting_routes(wanted))


def _serve(host: str, port: int, answers: Routes) -> HealthServer:
    try:
        server = HealthServer(host=host, port=port, routes=answers)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host or 'all addresses'} port {port}: {error.strerror}; choose another listen_port"
        ) from None
    server.start()
    _log.info("serving /status on port %d", server.port)
    return server


def _end_in_time(stop: StopSignal, *, within_seconds: float, code: int) -> None:
    """End the process so long after the request, even if a driver call does not come back.

    What is in flight is then sent again.
    """

    def end() -> None:
        stop.wait(None)
        time.sleep(within_seconds)
        if within_seconds:
            # Whoever cannot get rid of a line may be what keeps the process, and keeps the lock that a line needs.
            telling = threading.Thread(target=_tell_of_the_end, args=(within_seconds,), daemon=True)
            telling.start()
            telling.join(_TELL_WITHIN_SECONDS)
        os._exit(code)

    threading.Thread(target=end, name="end-in-time", daemon=True).start()


def _tell_of_the_end(seconds: float) -> None:
    _log.warning("not ended %.0f s after the request; leaving what is in flight to be sent again", seconds)
    logging.shutdown()
