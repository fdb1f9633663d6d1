"""A session that was opened: all that is made for one connection, and ends with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import abc, pq, sql
from psycopg.adapt import Transformer

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of
from outboxrelay.ports import Row, StoreError
from outboxrelay.stores.cleanup import Cleanup
from outboxrelay.stores.encoding import Texts, texts_of
from outboxrelay.stores.locks import require_room
from outboxrelay.stores.membership import Membership
from outboxrelay.stores.policy import Policy, policy_of
from outboxrelay.stores.question import Questions
from outboxrelay.stores.retire import Retirement
from outboxrelay.stores.session import Connection
from outboxrelay.stores.sql import Statements, Weigh
from outboxrelay.stores.standing import Standing, standing
from outboxrelay.stores.table import inspect, require_settling
from outboxrelay.stores.wake import Listener


@dataclass
class Question:
    """A question for rows whose answer was not handed out yet."""

    limit: int
    weigh: Weigh
    sweeping: bool = False
    """Whether it begins at the low end only for what nobody expects there."""

    answer: pq.abc.PGresult | psycopg.Error | None = None
    rows: list[Row] | None = None
    rewound: int | None = None
    """The lowest row that the caller handed back meanwhile: the answer says nothing of it."""


@dataclass
class Removal:
    """Rows that the server is to remove: all at once as a rule, else a piece at a time."""

    ids: Sequence[int]
    piece: Sequence[int]
    """Those of them that it was told to remove now."""

    began: float
    outcome: int | psycopg.Error | None = None
    """How many of these it removed; None while it has not answered."""


@dataclass
class Opened:
    """What lives and ends with one connection."""

    connection: Connection
    statements: Statements
    questions: Questions
    membership: Membership
    loader: abc.Transformer
    note: sql.Composed | None
    standing: Standing
    cleanup: Cleanup | None
    listener: Listener | None
    texts: Texts | None
    asked: Question | None = None
    removal: Removal | None = None


def begin(connection: Connection, config: RelayConfig, *, clock: Callable[[], float], text_refused: bool) -> Opened:
    """Prove that the table can be used, and make everything for it.

    `text_refused`: the server could not turn a text into UTF-8, so texts are to come as they are.

    Raises:
        StoreError: it cannot be used.
        psycopg.Error: the server could not be asked, or refuses the statement that settles rows.
    """
    types = inspect(connection, config)
    found = standing(connection, config)
    require_room(connection, config)
    policy = policy_of(config, types, columns=found.columns, may_stay=found.may_stay)
    require_settling(connection, policy.settle(sql.SQL("false")))
    texts = texts_of(connection.info.parameter_status("server_encoding"), refused=text_refused)
    statements = Statements(
        table=config.table,
        match=config.match,
        lanes=config.lanes,
        types=types,
        policy=policy,
        extras=extras_of(config),
        encoding=None if texts is None else texts.encoding,
    )
    return Opened(
        connection=connection,
        statements=statements,
        questions=Questions(connection),
        membership=Membership(connection, config),
        loader=Transformer(connection),
        note=policy.note(),
        standing=found,
        cleanup=_cleanup(config, policy, clock=clock),
        listener=Listener(connection, config, clock=clock) if config.table.wake == "Notify" else None,
        texts=texts,
    )


def begins_the_same(opened: Opened, config: RelayConfig) -> bool:
    """Whether a new session would find everything as this one did when it began."""
    try:
        types = inspect(opened.connection, config)
        require_settling(opened.connection, opened.statements.policy.settle(sql.SQL("false")))
        found = standing(opened.connection, config)
    except (StoreError, psycopg.Error):
        return False
    return types == opened.statements.types and found == opened.standing


def _cleanup(config: RelayConfig, policy: Policy, *, clock: Callable[[], float]) -> Cleanup | None:
    forget = policy.cleanup()
    if forget is None:
        return None
    retirement = Retirement(config) if config.retention.policy == "Keep" else None
    return Cleanup(forget, clock=clock, rest_seconds=config.tuning.clean_up_rest_seconds, retirement=retirement)
