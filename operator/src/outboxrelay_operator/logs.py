"""Logging: one line for each record, as JSON for machines or as text for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from outboxrelay_operator.settings import LogFormat, LogLevel

_NOISY = ("kopf", "aiohttp", "asyncio", "kubernetes", "psycopg")
"""Libraries whose own messages are for their developers; their warnings are kept."""

_TOLD_BY_US = ("kopf._cogs.clients", "kopf._core.reactor.orchestration", "kopf._core.reactor.running")
"""kopf logs every attempt of a request that is refused, with its traceback, and that it handles no signals, which is
our intention; what came of it in the end is told by the informer, once."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(*, form: LogFormat, level: LogLevel) -> None:
    """Send every record to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    if level != "debug":
        for name in _TOLD_BY_US:
            logging.getLogger(name).setLevel(logging.CRITICAL)
