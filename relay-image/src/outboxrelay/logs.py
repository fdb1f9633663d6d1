"""Log lines for people (text) or for collectors (one JSON object a line), on standard error.

No line may hold a password or a payload; row ids, keys and names are what a person needs.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, Literal

_EXTRA: Final = ("reason", "row_id")
_REPEAT_SECONDS: Final = 30.0


class TextFormatter(logging.Formatter):
    """What was given as format; of an exception its kind and where it came from."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Without its text: that of an error that nobody has thought of may quote a row."""
        kind, _, frames = ei
        return "".join([*traceback.format_tb(frames), kind.__name__])


class JsonFormatter(TextFormatter):
    """One JSON object a line: time, level, logger, message, and what was given as `extra`."""

    def __init__(self, *, pair: str) -> None:
        super().__init__()
        self._pair = pair

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        document: dict[str, object] = {
            "time": stamp,
            "level": record.levelname.lower(),
            "logger": record.name,
            "pair": self._pair,
            "message": record.getMessage(),
        }
        document |= {name: getattr(record, name) for name in _EXTRA if hasattr(record, name)}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class RepeatFilter(logging.Filter):
    """Lets a line of one place in the code and one outcome through once in 30 s, and says how many were left out."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic: by a wall clock that is set back an hour, nothing would be said for an hour."""
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        if record.levelno < logging.WARNING and not record.name.endswith("librdkafka"):
            return True
        place = (record.pathname, record.lineno, getattr(record, "reason", None))
        last, hidden = self._seen.get(place, (float("-inf"), 0))
        now = self._clock()
        if now - last < _REPEAT_SECONDS:
            self._seen[place] = (last, hidden + 1)
            return False
        self._seen[place] = (now, 0)
        if hidden:
            record.msg = f"{record.getMessage()} ({hidden} more like this were left out)"
            record.args = ()
        return True


class ClientNoiseFilter(logging.Filter):
    """Leaves out librdkafka's remark that a setting is experimental: the relay depends on it and tests it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        return "enable.gapless.guarantee is experimental" not in record.getMessage()


def configure(*, style: Literal["json", "text"], level: str, pair: str) -> None:
    """Send everything to standard error; replaces what was configured before."""
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(JsonFormatter(pair=pair))
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    handler.addFilter(ClientNoiseFilter())
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
