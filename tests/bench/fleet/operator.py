"""The operator as a process of its own, and what it costs."""

from __future__ import annotations

import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.bench.cpu import cpu_seconds
from tests.bench.fleet.control_plane import OPERATOR_NAMESPACE
from tests.testbed.paths import REPOSITORY
from tests.testbed.services.processes import ServiceProcess, peak_resident_bytes, remove, service_directory

_PORT: Final = 9000


class OperatorProcess:
    """`python -m outboxrelay_operator` with the chart's settings, for as long as its `with` block takes."""

    def __init__(self, *, kubeconfig: Path, profile: Path | None = None) -> None:
        """`profile` is where the profile of every run goes; it makes the operator slower."""
        self._directory = service_directory("operator")
        module = ("outboxrelay_operator",) if profile is None else ("tests.bench.fleet.profiled", str(profile))
        self._process = ServiceProcess(
            name="operator",
            directory=self._directory,
            command=(sys.executable, "-m", *module),
            environment={
                "KUBECONFIG": str(kubeconfig),
                "POD_NAME": "operator-0",
                "POD_NAMESPACE": OPERATOR_NAMESPACE,
                "OUTBOXRELAY_LISTEN_PORT": str(_PORT),
                "OUTBOXRELAY_LEASE_NAME": "outboxrelay",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": str(REPOSITORY),
            },
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        remove(self._directory)

    def start(self) -> None:
        """Start it, and return before it works."""
        self._process.start()

    def stop(self) -> None:
        """SIGTERM, as the kubelet sends, and wait for the end."""
        self._process.stop(signal.SIGTERM, seconds=30)

    @property
    def log(self) -> Path:
        """Of all its runs."""
        return self._process.log

    @property
    def pid(self) -> int:
        """The running process."""
        return self._process.id.pid

    def cpu_seconds(self) -> float:
        """Used since its start."""
        return cpu_seconds(self.pid)

    def peak_bytes(self) -> int:
        """Largest resident set since its start."""
        return peak_resident_bytes(self.pid)

    def resident_bytes(self) -> int:
        """Resident set now."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def metrics(self) -> Scrape:
        """What it tells now; nothing while it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/metrics", timeout=30) as answer:
                return Scrape(answer.read().decode())
        except OSError:
            if not self._process.running():
                raise RuntimeError(f"the operator has ended:\n{self._process.log_tail()}") from None
            return Scrape("")


class Scrape:
    """One answer of /metrics: of a large fleet tens of thousands of lines, so only those asked for are parsed."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def total(self, name: str) -> float:
        """The sum of all samples of a metric; 0 if there are none."""
        return sum(sample.value for sample in self._samples(name))

    def count(self, name: str, value: float) -> int:
        """How many samples of a metric have a value."""
        return sum(sample.value == value for sample in self._samples(name))

    def _samples(self, name: str) -> Iterator[Sample]:
        chosen = "\n".join(line for line in self._lines if line.startswith((f"{name}{{", f"{name} ")))
        return (sample for family in text_string_to_metric_families(f"{chosen}\n") for sample in family.samples)
