"""From psycopg's errors to the reasons of the report.

What a failure means is decided in `outboxrelay.dberrors`, as in the operator. Here only causes are added that the
relay knows better. No text of libpq or of the server is passed on: it may quote connection strings and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import errors

from outboxrelay.config import RelayConfig
from outboxrelay.dberrors import Place, cause, classify, describe
from outboxrelay.ports import StoreError
from outboxrelay.stores.encoding import UNCONVERTIBLE
from outboxrelay.stores.keep import sent_table

_MENDED_ANEW: Final = frozenset({"0A000", "25006", "26000"})
"""What a new session mends, or is not given."""

_MAYBE_NAMED: Final = frozenset({"42501", "42703", "42804", "42883", "42P01"})
"""What a new session names when it looks at table and grants, unless it is of something that the table makes use of."""

_IDENTITY_REMEDY: Final = (
    "a table without a replica identity is in a publication that publishes what is removed or updated: give it a"
    " primary key or ALTER TABLE ... REPLICA IDENTITY FULL, or take it out of the publication"
)


def place(config: RelayConfig, *, user: str | None = None, host: str | None = None) -> Place:
    """Where we were, for messages; `host` if it was one of several."""
    database = config.database
    if host is not None:
        database = database.model_copy(update={"host": host, "hosts": ()})
    return Place(address=database.address, dbname=database.dbname, user=user, table=config.table.qualified)


def translate(
    error: psycopg.Error, *, config: RelayConfig, attempt: str, user: str | None = None, host: str | None = None
) -> StoreError:
    """The StoreError for what psycopg raised while doing `attempt` (a phrase like "reading rows")."""
    text = str(error)
    sqlstate = error.sqlstate
    reason = classify(sqlstate=sqlstate, text=text)
    hint: str | None = None
    if isinstance(error, errors.QueryCanceled):
        hint = (
            "the statement was cancelled or took longer than tuning.statement_timeout_seconds: look for locks and load"
        )
    elif isinstance(error, UNCONVERTIBLE):
        hint = "a text has no form in UTF-8: from now on it is sent as the bytes it is; mend the row if that is wrong"
    elif _lacks_identity(error):
        reason, hint = "DatabaseError", _IDENTITY_REMEDY
    elif _meets_a_rule(error):
        hint = f"a rule ON DELETE or ON INSERT of {' or '.join(_written(config))} is in the way: drop it"
    elif isinstance(error, errors.OutOfMemory) and "shared memory" in text:
        hint = "the server's lock table is full: raise max_locks_per_transaction; a relay needs a lock for each lane"
    elif sqlstate is None and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        # Made by psycopg itself, neither by the server nor by the network.
        reason, hint = "DatabaseError", f"{type(error).__name__} in the relay's own driver"
    elif type(error).__name__ == "_WaitTimeout":
        reason, hint = "DatabaseUnreachable", "the server does not answer; the session is given up"
    elif sqlstate is None and reason == "DatabaseUnreachable":
        hint = f"{cause(text) or 'no connection'}: check host, port and network policies, and that the server runs"
    elif sqlstate is None and "password authentication failed" in text:
        # libpq keeps the code of a refused login to itself; this text has only one.
        sqlstate = "28P01"
    where = place(config, user=user, host=host)
    return StoreError(reason, f"{attempt} failed: {describe(reason, where, sqlstate=sqlstate, hint=hint)}")


def _lacks_identity(error: psycopg.Error) -> bool:
    """Whether a publication cannot name rows that are changed; the code alone has other meanings."""
    return error.sqlstate == "55000" and error.diag.source_function == "CheckCmdReplicaIdentity"


def _meets_a_rule(error: psycopg.Error) -> bool:
    """Whether a rule would have to be followed by a part of a statement, as that of Keep and of every clean-up has."""
    return error.sqlstate == "0A000" and error.diag.source_function == "RewriteQuery"


def raised_by_function(error: psycopg.Error) -> bool:
    """Whether a function, such as that of a trigger, raised it, and was not ended for being slow."""
    return error.diag.context is not None and not isinstance(error, errors.QueryCanceled)


def refuses_rows(error: psycopg.Error, *, begins_the_same: Callable[[], bool]) -> bool:
    """Whether the server, in a session that goes on, refuses to change these rows, and a new session would not help.

    What a function raises does not concern the session, whatever its code: a trigger may write to a table that has
    gone, and nothing of that is seen when a session looks at the outbox table. Nor is a sequence, a function or a
    policy of rows seen that the second table makes use of: `begins_the_same` says whether a new session would find
    everything as it was when this one began.
    """
    diagnosis = error.diag
    if diagnosis.severity_nonlocalized != "ERROR":
        return False
    if diagnosis.context is not None:
        return True
    return error.sqlstate not in _MENDED_ANEW and (error.sqlstate not in _MAYBE_NAMED or begins_the_same())


def refusal(error: psycopg.Error, *, config: RelayConfig) -> str:
    """What to say of acknowledged rows that cannot be settled, for an error that `refuses_rows`."""
    return (
        f"removing acknowledged rows is refused ({place(config)}; SQLSTATE {error.sqlstate}):"
        f" {_obstacle(error, config=config)}; nothing more is sent until then, and no row is lost or sent again"
    )


def note_refusal(error: psycopg.Error, *, config: RelayConfig) -> str:
    """What to say of rows at fault beside which that cannot be written, for an error that `refuses_rows`."""
    return (
        f"noting why rows cannot be sent is refused ({place(config)}; SQLSTATE {error.sqlstate}):"
        f" {_obstacle(error, config=config)}; the rows are parked all the same"
    )


def _written(config: RelayConfig) -> list[str]:
    """The tables that the relay writes to."""
    return [config.table.name, *([sent_table(config)] if config.retention.policy == "Keep" else [])]


def _obstacle(error: psycopg.Error, *, config: RelayConfig) -> str:
    """What keeps the rows where they are, and what to do about it."""
    diagnosis = error.diag
    table = config.table.name
    written = {"Delete": None, "Keep": sent_table(config), "Mark": table}[config.retention.policy]
    if (
        config.retention.policy == "Keep"
        and error.sqlstate == "23514"
        and not (diagnosis.constraint_name or diagnosis.context)
    ):
        return f"{written} has no partition for rows that are sent now; create one"
    if isinstance(error, psycopg.IntegrityError):
        named = [("constraint", diagnosis.constraint_name), ("column", diagnosis.column_name)]
        where = " ".join(f"{kind} {name}" for kind, name in named if name is not None)
        # Who raises the error by hand, as a trigger may, need not name a table.
        return f"{where or 'a constraint'} of table {diagnosis.table_name or table} forbids it; alter that"
    if _lacks_identity(error):
        return _IDENTITY_REMEDY
    if error.sqlstate in _MAYBE_NAMED and diagnosis.context is None:
        return (
            f"something that {written or table} makes use of (a sequence, a function or a policy of row-level security)"
            " is missing or not granted; the server's log names it"
        )
    if isinstance(error, psycopg.DataError) and diagnosis.context is None and written is not None:
        return f"a value does not fit into a column of {written}; change its type"
    if isinstance(error, psycopg.DataError | errors.RaiseException) or diagnosis.context is not None:
        return f"a trigger or rule of {' or '.join(_written(config))} fails; the server's log says why"
    return "the server's log says why"
