"""Numbers as `kubectl get` shows them, times as Kubernetes writes them, and texts that fit into a status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from outboxrelay_operator.api.status import MAX_PAIR_MESSAGE

UNKNOWN = "?"
NOTHING = "-"

_NAMED = 3


def timestamp(unix: float) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    """The Unix time of what `timestamp` wrote."""
    return datetime.fromisoformat(text).timestamp()


def duration(seconds: float) -> str:
    """Two digits are enough: 45s, 3m, 5h, 12d."""
    for limit, unit, size in ((120, "s", 1), (7200, "m", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds / size)}{unit}"
    return f"{int(seconds / 86_400)}d"


def rate(per_second: float) -> str:
    """Rows a second."""
    return f"{per_second:.1f}/s" if 0 < per_second < 10 else f"{per_second:.0f}/s"


def significant(value: float, digits: int = 3) -> float:
    """Rounded to so many significant digits: more would be noise."""
    return float(f"{value:.{digits}g}")


def one_digit(value: float) -> int:
    """Cut down to one significant digit: a number that grows all the time must not look new all the time."""
    whole = int(value)
    step = int(10.0 ** (len(str(whole)) - 1))
    return whole // step * step


def combined(known: Sequence[object], *, exact: bool, complete: bool, total: str) -> str:
    """A total with its mark: ~ not exact, >= not complete, ? unknown, - nothing to measure."""
    if not known:
        return NOTHING if complete else UNKNOWN
    return ("" if complete else ">=") + ("" if exact else "~") + total


def shortened(text: str, limit: int) -> str:
    """Cut to a number of characters, visibly."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def listed(messages: Sequence[str]) -> str:
    """The first few, each cut, and how many more there are: 256 pairs must fit."""
    unique = list(dict.fromkeys(messages))
    text = "; ".join(shortened(message, MAX_PAIR_MESSAGE) for message in unique[:_NAMED])
    more = len(unique) - _NAMED
    return text if more <= 0 else f"{text}; and {more} more, see status.pairs"
