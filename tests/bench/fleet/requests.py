"""What the operator asked of the API server, as the audit log tells."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.bench.fleet.control_plane import OPERATOR_USER


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered."""

    at: float
    """Unix time of the answer."""

    verb: str
    resource: str
    """With its subresource."""

    code: int

    @property
    def counts(self) -> bool:
        """Whether it is one that a quiet operator has no reason to make: neither a watch nor for the Lease."""
        return self.verb != "watch" and self.resource != "leases"


@dataclass(slots=True)
class RequestLog:
    """Reads what has been added to the log since the last time."""

    files: Callable[[], list[Path]]
    """The oldest first: a file that grew too large is given another name."""

    _read: dict[int, int] = field(default_factory=dict)
    """Bytes that were read of each file, by inode."""

    def news(self) -> list[Request]:
        """The requests that were answered since the last call."""
        return [request for path in self.files() for request in self._new_of(path)]

    def _new_of(self, path: Path) -> Iterator[Request]:
        inode = path.stat().st_ino
        with path.open("rb") as log:
            log.seek(self._read.get(inode, 0))
            for line in log:
                if not line.endswith(b"\n"):
                    return
                self._read[inode] = self._read.get(inode, 0) + len(line)
                if OPERATOR_USER.encode() in line:
                    yield from _request(json.loads(line))


def _request(entry: dict[str, object]) -> Iterator[Request]:
    reference, status = entry.get("objectRef"), entry.get("responseStatus")
    if entry["stage"] not in ("ResponseComplete", "ResponseStarted") or not isinstance(reference, dict):
        return
    if entry["stage"] == "ResponseStarted" and entry["verb"] != "watch":
        return
    resource, subresource = reference["resource"], reference.get("subresource")
    yield Request(
        at=datetime.fromisoformat(str(entry["stageTimestamp"])).timestamp(),
        verb=str(entry["verb"]),
        resource=f"{resource}/{subresource}" if subresource else resource,
        code=status["code"] if isinstance(status, dict) else 0,
    )


def summary(requests: list[Request]) -> str:
    """Verb and resource, the most frequent first."""
    counted = Counter(f"{request.verb} {request.resource}" for request in requests if request.counts)
    return ", ".join(f"{count:,} {what}" for what, count in counted.most_common()) or "none"
