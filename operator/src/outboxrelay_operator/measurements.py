"""What was measured of a pair, by the operator in the database and by the relays themselves. Values only.

A measurement says until when it may be believed; what is older is unknown, which is not the same as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from outboxrelay.report import DatabaseReason, RelayReport
from outboxrelay_operator.pairs import Key, Pair


@dataclass(frozen=True, slots=True)
class PairId:
    """A pair and the rows that it has: its name, which is unique in its namespace, stays when it gets others."""

    key: Key
    name: str
    rows: tuple[object, ...] = ()
    """Where they are, and which they are: what was measured of some says nothing of others."""

    @classmethod
    def of(cls, pair: Pair) -> Self:
        """The identity of a pair. Who looks at its rows, and where they are sent, does not matter."""
        database, table, match = pair.database, pair.database.table, pair.match
        columns = (table.columns.id, table.columns.route, table.columns.created_at)
        place = (database.servers, database.port, database.dbname, table.schema_, table.name)
        return cls(pair.key, pair.name, (*place, *columns, match.include, match.exclude, pair.retention.mark))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections PostgreSQL admits; None: there is no such limit."""

    server: int
    """For everybody who is no superuser."""

    database: int | None
    """CONNECTION LIMIT of the database."""

    role: int | None
    """CONNECTION LIMIT of the role that relays log in as."""

    role_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The rows of a pair that wait."""

    rows: int
    exact: bool
    """False: more than 10,000, and `rows` is the planner's estimate."""

    lag_seconds: float | None
    """Age of the oldest row that waits; 0 if none does, None if it cannot be told."""

    lag_exact: bool
    """False: derived from when which ids were seen, and so a lower bound."""

    highest_id: int | None
    """Highest id of the table that was ever seen; None if it was always empty."""

    whole_table: bool
    """Whether every row of the table belongs to the pair."""

    index_missing: bool
    """Nothing bounds the cost of reading by id: the table needs an index."""

    at: float
    """Unix time of the measurement, by the operator's clock."""

    believe_until: float
    """Unix time after which this is too old."""

    routes: tuple[str | None, ...] = ()
    """Of rows that no topic takes: a few values of the route column, the most frequent first."""

    connections: ConnectionLimits | None = None
    """None: whoever looked was not able to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a pair could not be measured."""

    reason: DatabaseReason
    message: str
    at: float
    believe_until: float


Measurement = Backlog | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One relay pod: what Kubernetes says about it, and its own report if it answered lately."""

    name: str
    uid: str
    ready: bool
    terminating: bool
    problem: tuple[str, str] | None
    """Reason (of Kubernetes) and message if it cannot run."""

    template_digest: str
    """Which template it was made of."""

    secrets_annotation: str
    """Which versions of the Secrets the kubelet was told of last."""

    report: RelayReport | None
    report_believe_until: float = 0.0

    def fresh_report(self, now: float) -> RelayReport | None:
        """The report, if it is young enough."""
        return self.report if now <= self.report_believe_until else None

    def silent(self, now: float) -> bool:
        """Whether it is ready and says nothing, so that what the others say is not all there is."""
        return self.ready and self.fresh_report(now) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rows a second, over about half a minute; None is unknown."""

    arrival: float | None = None
    sent: float | None = None


UNKNOWN_RATES = Rates()
