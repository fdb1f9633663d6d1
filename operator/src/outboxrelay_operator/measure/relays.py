"""Measures through the relays, where the operator reads no Secrets: one pod of each pair looks at its table.

The pods only say what they saw. What needs a memory, such as the age of a row in a table without times, is kept here,
so that it does not matter which pod looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from outboxrelay.report import DATABASE_REASONS, DatabaseReason, Look, RelayReport, WaitingRows
from outboxrelay_operator.conflicts import TableId, table_id
from outboxrelay_operator.kube import Object
from outboxrelay_operator.measure.history import IdHistory
from outboxrelay_operator.measure.server import GRACE_SECONDS, Report
from outboxrelay_operator.measurements import Backlog, Failure, PairId
from outboxrelay_operator.names import PAIR_LABEL, TEMPLATE_DIGEST_ANNOTATION
from outboxrelay_operator.pairs import Key, Pair

Where = tuple[str, str]
"""Namespace and name of a pair, as labels of a pod tell them."""


@dataclass(slots=True)
class _Measured:
    pair_id: PairId
    pair: Pair
    asked: str = ""
    """Uid of the pod that is asked to look."""

    taken: tuple[str, float] | None = None
    """Pod and time of the newest look that was reported."""

    serves: dict[str, PairId] = field(default_factory=dict)
    """By digest of the templates that pods run of: the pair with the rows that it had when the first one was seen.

    A relay serves the rows that it started with until it ends, whatever the pair is edited to.
    """

    able: list[str] = field(default_factory=list)
    """Uids of the pods that serve the rows that the pair has now."""


class RelayMeasurer:
    """Which pairs are measured, by which of their pods. Use on one event loop."""

    def __init__(self, *, report: Report) -> None:
        self._report = report
        self._measured: dict[Where, _Measured] = {}
        self._histories: dict[TableId, IdHistory] = {}

    def measure(self, key: Key, pairs: Iterable[Pair]) -> None:
        """From now on measure exactly these pairs of a resource."""
        wanted = {(key.namespace, pair.name): pair for pair in pairs}
        for where in [where for where, one in self._measured.items() if one.pair.key == key and where not in wanted]:
            del self._measured[where]
        for where, pair in wanted.items():
            known = self._measured.get(where)
            if known is None or known.pair != pair:
                serves = {} if known is None else known.serves
                self._measured[where] = _Measured(PairId.of(pair), pair, serves=serves)
        tables = {table_id(one.pair) for one in self._measured.values()}
        self._histories = {table: history for table, history in self._histories.items() if table in tables}

    def retry_soon(self, pairs: Iterable[Pair]) -> None:
        """Relays try again by themselves."""

    async def close(self) -> None:
        """There is nothing to end."""

    def choose(self, pods: Sequence[Object]) -> frozenset[str]:
        """The uids of the pods that shall look, one of each pair: the one of before as long as it finds something."""
        running: dict[Where, dict[str, str]] = {}
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
            meta = pod["metadata"]
            where = meta["namespace"], (meta.get("labels") or {}).get(PAIR_LABEL, "")
            if where in self._measured and _runs(pod):
                template = (meta.get("annotations") or {}).get(TEMPLATE_DIGEST_ANNOTATION, "")
                running.setdefault(where, {})[meta["uid"]] = template
        for where, one in self._measured.items():
            templates = running.get(where, {})
            one.serves = {template: one.serves.get(template, one.pair_id) for template in templates.values()}
            one.able = [uid for uid, template in templates.items() if one.serves[template] == one.pair_id]
            if one.asked not in one.able:
                one.asked = one.able[0] if one.able else ""
        return frozenset(one.asked for one in self._measured.values() if one.asked)

    def take(self, pods: Sequence[Object], reports: Sequence[RelayReport | None], *, now: float, pause: float) -> None:
        """Hand on what the chosen pods saw. `now` is Unix time; they are asked again after `pause` seconds."""
        answers: dict[Where, RelayReport | None] = {}
        for pod, report in zip(pods, reports, strict=True):
            meta = pod["metadata"]
            where = meta["namespace"], (meta.get("labels") or {}).get(PAIR_LABEL, "")
            if where in self._measured and self._measured[where].asked == meta["uid"]:
                answers[where] = report
        for where, report in answers.items():
            one = self._measured[where]
            look = None if report is None else report.look
            if report is not None and look is not None:
                self._hand_on(one, look, at=now - max(0.0, report.now - look.at), pause=pause)
            if look is None or look.waiting is None:
                # Another may reach what this one cannot.
                one.asked = one.able[(one.able.index(one.asked) + 1) % len(one.able)]

    def _hand_on(self, one: _Measured, look: Look, *, at: float, pause: float) -> None:
        if one.taken == (one.asked, look.at):
            return
        one.taken = one.asked, look.at
        believe_until = at + max(pause, look.repeat_seconds) + GRACE_SECONDS
        if look.waiting is not None:
            self._report(one.pair_id, self._backlog(one.pair, look.waiting, at=at, believe_until=believe_until))
            return
        reason = look.reason if look.reason in DATABASE_REASONS else "DatabaseError"
        self._report(
            one.pair_id,
            Failure(reason=cast("DatabaseReason", reason), message=look.message, at=at, believe_until=believe_until),
        )

    def _backlog(self, pair: Pair, waiting: WaitingRows, *, at: float, believe_until: float) -> Backlog:
        history = self._histories.setdefault(table_id(pair), IdHistory())
        history.observe(clock=waiting.clock, highest=waiting.highest_id)
        lag, lag_exact = history.lag(
            oldest_id=waiting.oldest_id, oldest_age=waiting.oldest_age_seconds, clock=waiting.clock
        )
        return Backlog(
            rows=waiting.rows,
            exact=waiting.exact,
            lag_seconds=lag,
            lag_exact=lag_exact,
            highest_id=history.highest,
            whole_table=pair.match.everything,
            index_missing=not waiting.indexed,
            at=at,
            believe_until=believe_until,
        )


def _runs(pod: Object) -> bool:
    status = pod.get("status") or {}
    return (
        bool(status.get("podIP")) and status.get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    )
