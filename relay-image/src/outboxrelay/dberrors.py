"""What a failure of PostgreSQL means, and how to say it without giving anything away.

Relay and operator decide alike, so this is shared; like `outboxrelay.config` it needs no database driver: the
callers hand over SQLSTATE and text. libpq's own text never goes into a message, since a connection string or a
row's value may be part of it. What a person needs (host, database, user, table, SQLSTATE) is put in by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from outboxrelay.report import DatabaseReason

_BY_SQLSTATE: Final[dict[str, DatabaseReason]] = {
    "28P01": "AuthenticationFailed",
    "28000": "AuthenticationFailed",
    "3D000": "DatabaseMissing",
    "3F000": "TableMissing",
    "42P01": "TableMissing",
    "42703": "ColumnMissing",
    "42501": "PermissionDenied",
    "42804": "ColumnUnsupported",
    "42883": "ColumnUnsupported",
    "25006": "ReadOnly",
    "53300": "DatabaseUnreachable",
    "55000": "DatabaseUnreachable",
    "57P01": "DatabaseUnreachable",
    "57P02": "DatabaseUnreachable",
    "57P03": "DatabaseUnreachable",
    "57P05": "DatabaseUnreachable",
}
"""https://www.postgresql.org/docs/current/errcodes-appendix.html; class 08 (connection) is handled apart."""

_BY_TEXT: Final[tuple[tuple[str, DatabaseReason], ...]] = (
    ("password authentication failed", "AuthenticationFailed"),
    ("no password supplied", "AuthenticationFailed"),
    ("no pg_hba.conf entry", "AuthenticationFailed"),
    ("pg_hba.conf rejects", "AuthenticationFailed"),
    ("authentication failed for user", "AuthenticationFailed"),
    ("is not permitted to log in", "AuthenticationFailed"),
    ("scram", "AuthenticationFailed"),
    ("permission denied for database", "PermissionDenied"),
    ("ssl", "TlsFailed"),
    ("certificate", "TlsFailed"),
    ("private key", "TlsFailed"),
    ("session is read-only", "ReadOnly"),
    ("fatal:  role ", "AuthenticationFailed"),
    ("fatal:  database ", "DatabaseMissing"),
)
"""A refused connection has no SQLSTATE in libpq, only text; in lower case, and the first hit counts.

Only what a server says in English is recognised; anything else becomes `DatabaseUnreachable`.
"""

_CAUSES: Final = (
    ("connection refused", "connection refused"),
    ("could not translate host name", "the host's name cannot be resolved"),
    ("name or service not known", "the host's name cannot be resolved"),
    ("failed to resolve host", "the host's name cannot be resolved"),
    ("no route to host", "no route to host"),
    ("network is unreachable", "network is unreachable"),
    ("timeout expired", "timed out"),
    ("connection timed out", "timed out"),
    ("closed the connection unexpectedly", "the server closed the connection"),
    ("connection reset by peer", "connection reset by peer"),
    ("starting up", "the server is starting up"),
    ("shutting down", "the server is shutting down"),
    ("too many", "the server takes no more connections"),
    ("remaining connection slots", "the server takes no more connections"),
)
"""What libpq says about a failed connection, in lower case, and how to say it in fixed words."""

_QUOTED: Final = re.compile(r"\"[^\"]*\"|host: '[^'\n]*'")
"""Names of hosts, users and databases: a host called ssl-gateway says nothing about TLS."""

_ADVICE: Final[dict[DatabaseReason, str]] = {
    "AuthenticationFailed": "the server refused the login: check user and password in the Secret, and pg_hba.conf",
    "DatabaseMissing": "the server has no such database: create it or correct dbname",
    "DatabaseUnreachable": "no connection: check host, port and network policies, and that the server runs",
    "TlsFailed": "TLS failed: check tls.mode, the CA in the Secret, name and dates of the server's certificate, and the"
    " client certificate if the server demands one",
    "TableMissing": "there is no such table: create it or correct table.schema and table.name",
    "ColumnMissing": "a column is missing: add it or correct table.columns",
    "ColumnUnsupported": "a column has a type that cannot be used: see the documented types of the outbox table",
    "LaneColumnWrong": "the lane column does not hold what lanes asks for: make it anew as `outboxrelay sql` prints it,"
    " or correct table.columns.lane",
    "PermissionDenied": "a grant is missing: `outboxrelay sql` prints those that are needed (by default CONNECT, USAGE"
    " on the schema, SELECT and DELETE on the table)",
    "ReadOnly": "the server is a standby or read-only: point host at the primary",
    "CredentialsMissing": "user or password is missing: check the Secret and its keys",
    "Conflict": "another OutboxRelay, or another pair of this one, carries this table to this topic: delete one",
    "DatabaseError": "the database refused a statement: see its log",
}


POOLER: Final = "a connection pooler answers, behind which session locks are not ours; connect to PostgreSQL directly"
"""Neither program may go on behind one, nor set anything before it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where it happened: what a person needs in order to look. Nothing in it is secret."""

    address: str
    dbname: str
    user: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        text = f"database {self.dbname} on {self.address}"
        if self.table is not None:
            text = f"table {self.table} in {text}"
        return text if self.user is None else f"{text} as user {self.user}"


def classify(*, sqlstate: str | None, text: str) -> DatabaseReason:
    """The reason behind a failure.

    `sqlstate` is None for what libpq reports by itself, such as every refused connection; then `text` decides.
    """
    if sqlstate is not None:
        if sqlstate in _BY_SQLSTATE:
            return _BY_SQLSTATE[sqlstate]
        return "DatabaseUnreachable" if sqlstate.startswith("08") else "DatabaseError"
    lowered = _QUOTED.sub("", text).lower()
    for part, reason in _BY_TEXT:
        if part in lowered:
            return reason
    return "DatabaseUnreachable"


def cause(text: str) -> str | None:
    """Why there is no connection, in fixed words; None if `text` (of libpq) does not say it in a known way."""
    lowered = _QUOTED.sub("", text).lower()
    return next((words for phrase, words in _CAUSES if phrase in lowered), None)


def describe(reason: DatabaseReason, place: Place, *, sqlstate: str | None = None, hint: str | None = None) -> str:
    """The message for people: what, where, and what to do.

    `hint` is the caller's own words for what it knows better, such as the missing column's name; it replaces
    the general advice and must not be text of libpq or the server.
    """
    code = "" if sqlstate is None else f" (SQLSTATE {sqlstate})"
    return f"{place}{code}: {hint or _ADVICE.get(reason, reason)}"
