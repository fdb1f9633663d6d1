"""Whether the pairs keep to spec.slo. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from outboxrelay.wording import counted
from outboxrelay_operator.api.slo import Slo
from outboxrelay_operator.api.status import PairStatus
from outboxrelay_operator.conditions import BACKLOG_TOO_HIGH, LAG_TOO_HIGH
from outboxrelay_operator.display import duration, significant

RECOVERED: Final = 0.9
"""What was missed is met again at this part of a limit: else a value at the limit would flip to and fro."""


def missed(slo: Slo, pair: PairStatus, *, before: Collection[str]) -> tuple[str, ...] | None:
    """The limits that the pair is above, as reasons; `before` are those of the status before. None if there are none.

    What is not known stays as it was: a gap in the measurements is no recovery.
    """
    limits = ((LAG_TOO_HIGH, slo.max_lag_seconds, pair.lag_seconds), (BACKLOG_TOO_HIGH, slo.max_backlog, pair.backlog))
    found = tuple(
        reason
        for reason, limit, value in limits
        if limit is not None
        and (reason in before if value is None else value > limit * (RECOVERED if reason in before else 1.0))
    )
    return found or None


def excesses(slo: Slo, pairs: Sequence[PairStatus]) -> list[tuple[str, str]]:
    """Reason and message for each limit that a pair is above now, as far as that is known."""
    return [found for pair in pairs for found in _excesses(slo, pair, pair.slo_missed or ())]


def _excesses(slo: Slo, pair: PairStatus, missed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Numbers have two digits: more of them would make a new message with every look."""
    lag, backlog = pair.lag_seconds, pair.backlog
    if LAG_TOO_HIGH in missed and lag is not None and slo.max_lag_seconds is not None:
        text = f"pair {pair.name}: the oldest row waits for {duration(lag)}, maxLagSeconds is {slo.max_lag_seconds}"
        yield LAG_TOO_HIGH, text + _almost(lag, slo.max_lag_seconds)
    if BACKLOG_TOO_HIGH in missed and backlog is not None and slo.max_backlog is not None:
        waiting = counted(f"{significant(backlog, 2):.0f}", "row waits", "rows wait")
        text = f"pair {pair.name}: {waiting}, maxBacklog is {slo.max_backlog}"
        yield BACKLOG_TOO_HIGH, text + _almost(backlog, slo.max_backlog)


def _almost(value: int, limit: int) -> str:
    return "" if value > limit else f"; it was above, and is met again at {RECOVERED:.0%} of that"


def unknown(slo: Slo, pairs: Sequence[PairStatus]) -> list[str]:
    """Pairs of which it cannot be told."""
    return [
        f"pair {pair.name}"
        for pair in pairs
        if pair.backlog is None or (slo.max_lag_seconds is not None and pair.lag_seconds is None)
    ]
