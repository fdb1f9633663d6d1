"""The command line: exit codes, the wait for the right configuration, the environment, and the stop request.

Covered of the stop request: it comes while the main thread is in a call that does not come back, while nobody takes
the log, and to commands that wait for nothing but answers; there may be many descriptors. And that nobody takes what
is printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from outboxrelay import cli
from outboxrelay.config import digest, dump
from outboxrelay.stop import StopSignal
from tests.contract.relay.settings import relay_config
from tests.descriptors import many_descriptors
from tests.testbed.services.eventually import eventually
from tests.testbed.services.processes import free_port


def write_config(directory: Path, *, port: int = 0) -> Path:
    path = directory / "config.json"
    path.write_text(dump(relay_config(directory, listen_port=port, log_format="text")))
    return path


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"version": 2}'])
def test_a_configuration_that_cannot_be_used_ends_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: str | None
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert cli.main([command, "--config", str(path)], stop=StopSignal()) == cli.EXIT_CONFIG
    assert str(path) in capsys.readouterr().err


def test_an_address_in_use_ends_the_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from outboxrelay.health import HealthServer, waiting_routes

    other = HealthServer(host="127.0.0.1", port=0, routes=waiting_routes("x"))
    other.start()
    try:
        path = write_config(tmp_path, port=other.port)
        assert cli.main(["run", "--config", str(path)], stop=StopSignal()) == cli.EXIT_CONFIG
    finally:
        other.stop()
    assert f"port {other.port}" in capsys.readouterr().err


def test_check_tells_of_both_ends_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path)
    assert cli.main(["check", "--json", "--config", str(path)], stop=StopSignal()) == cli.EXIT_FINDINGS
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    assert [(each["level"], each["subject"]) for each in document["findings"]] == [
        ("error", "database"),
        ("error", "topic"),
    ]
    assert "BrokerUnreachable" in document["findings"][1]["message"]


def test_nothing_of_libpqs_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICEFILE", "/nowhere")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=evil")
    cli.main(["run", "--config", str(tmp_path / "missing")], stop=StopSignal())
    assert not [name for name in os.environ if name.startswith("PG")]


def run_process(config: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "outboxrelay", "run", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def port_of(process: subprocess.Popen[str]) -> int:
    """The port named in the first line that names one."""
    assert process.stderr is not None
    for line in process.stderr:
        if "serving /status on port" in line:
            return int(line.split()[-1])
    raise AssertionError("the relay ended without serving")


def end(process: subprocess.Popen[str], *, within: float = 10) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=within)
        return process.returncode
    finally:
        process.kill()
        process.communicate()


def test_rr_10_it_ends_well_when_neither_side_answers(tmp_path: Path) -> None:
    """cases.md RR-10: exit 0 inside 10 s, database and broker down."""
    process = run_process(write_config(tmp_path))
    port_of(process)
    assert end(process) == 0


def test_it_waits_for_the_configuration_it_was_told_of(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    new = dump(relay_config(tmp_path, listen_port=0, log_format="text", lanes=8))
    process = run_process(path, OUTBOXRELAY_CONFIG_DIGEST=digest(new))
    port = port_of(process)
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)
    caught.value.close()
    # As the kubelet does it: a new file takes the old one's place.
    fresh = tmp_path / "fresh.json"
    fresh.write_text(new)
    fresh.rename(path)
    port = port_of(process)
    report = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10))
    assert (report["lanes"], report["config_digest"]) == (8, digest(new))
    assert end(process) == 0


def test_it_ends_while_it_waits_for_the_configuration(tmp_path: Path) -> None:
    process = run_process(write_config(tmp_path), OUTBOXRELAY_CONFIG_DIGEST="not there yet")
    port_of(process)
    assert end(process) == 0


HELD_IN_A_CALL = """
import ctypes
import sys
from outboxrelay import __main__, cli


class Held:
    def run(self) -> None:
        # It does not come back for a signal, and lets other threads run, as a resolver or librdkafka does.
        ctypes.CDLL(None).system(b"echo held >&2; read line")


cli._engine = lambda *_, **__: Held()
cli._EXIT_WITHIN_SECONDS = 0.1
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(("command", "code"), [("run", cli.EXIT_OK), ("drain", cli.EXIT_FINDINGS)])
def test_rr_10_it_ends_although_a_call_does_not_come_back(tmp_path: Path, command: str, code: int) -> None:
    """cases.md RR-10: a handler of Python's own waits for the call, so nothing may depend on it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD_IN_A_CALL, command, "--config", str(write_config(tmp_path))],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("held" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == code
    finally:
        process.kill()
        # With it ends what `read` waits for.
        process.communicate()


IN_A_HURRY = """
import sys
from outboxrelay import __main__, cli

cli._EXIT_WITHIN_SECONDS = 0.1
sys.exit(__main__.main())
"""


def test_rr_10_it_ends_although_nobody_takes_its_log(tmp_path: Path) -> None:
    """cases.md RR-10: the line that says so is no reason to stay."""
    port = free_port()
    config = write_config(tmp_path, port=port)
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        process = subprocess.Popen(
            [sys.executable, "-c", IN_A_HURRY, "run", "--config", str(config)], stderr=writer, text=True
        )
        try:
            # The first line comes right after that.
            eventually(
                lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10).status == 200,
                seconds=20,
                what="an answer",
                tolerate=(OSError,),
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == cli.EXIT_OK
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["check", "lag", "sql"])
def test_commands_that_wait_for_an_answer_can_be_ended(tmp_path: Path, command: str, number: signal.Signals) -> None:
    """Ctrl-C, say, while the database does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = relay_config(tmp_path)
        database = config.database.model_copy(update={"port": silent.getsockname()[1], "connect_timeout_seconds": 60})
        path = tmp_path / "config.json"
        path.write_text(dump(config.model_copy(update={"database": database})))
        process = subprocess.Popen(
            [sys.executable, "-m", "outboxrelay", command, "--config", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            silent.settimeout(20)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(number)
                assert process.wait(timeout=20) == cli.EXIT_ENDED
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "| true", "2>&- >&-"])
def test_a_result_that_cannot_be_written_is_told(tmp_path: Path, redirection: str) -> None:
    """Not by a traceback, nor as success, nor as a finding."""
    command = f"exec {sys.executable} -m outboxrelay sql --new --config {write_config(tmp_path)}"
    if redirection == "| true":
        reader, writer = os.pipe()
        os.close(reader)
        redirection = f">&{writer}"
    else:
        writer = os.open(os.devnull, os.O_WRONLY)
    try:
        ended = subprocess.run(
            ["bash", "-c", f"{command} {redirection}"],
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[writer],
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert ended.returncode == cli.EXIT_OUTPUT
    assert "Traceback" not in ended.stderr
    assert ("cannot write the result: " in ended.stderr) == ("2>&-" not in redirection)


@pytest.mark.parametrize("given", ["-1", "nan", "inf", "1e999", "soon", ""])
def test_a_time_that_cannot_be_waited_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """Compared with any time, NaN has not come yet: it would be waited for for ever."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["drain", "--config", str(write_config(tmp_path)), f"--timeout={given}"], stop=StopSignal())
    assert ended.value.code == cli.EXIT_CONFIG
    assert "0 or more" in capsys.readouterr().err


def test_who_ignores_a_lost_terminal_goes_on_ignoring_it() -> None:
    """As nohup has it."""
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal, sys, outboxrelay.__main__ as entry\n"
            "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
            "sys.argv[1:] = ['--help']\n"
            "try: entry.main()\n"
            "except SystemExit: print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert shown.stdout.splitlines()[-1] == "True"


def test_descriptors_of_any_number_are_waited_for() -> None:
    with many_descriptors():
        stop = StopSignal()
        reader, writer = os.pipe()
    try:
        assert reader > 1023
        assert not stop.wait(0.0, also=reader)
        os.write(writer, b"!")
        assert not stop.wait(60, also=reader)
        stop.set()
        assert stop.wait(60, also=reader)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_stop_request_wakes_every_waiter() -> None:
    stop = StopSignal()
    assert not stop.wait(0.0)
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(stop.wait(None))) for _ in range(2)]
    for thread in threads:
        thread.start()
    stop.set()
    stop.set()
    for thread in threads:
        thread.join(timeout=10)
    eventually(lambda: woken == [True, True], seconds=10, what="both waiters")
    assert stop.is_set()
    assert stop.wait(60)
