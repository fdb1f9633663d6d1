"""What a failure of PostgreSQL means, and that no message gives anything away (SE-04)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import get_args

import psycopg
import pytest

from outboxrelay.dberrors import Place, cause, classify, describe
from outboxrelay.report import DatabaseReason
from outboxrelay_operator.measure.session import MeasureError, guarded

PLACE = Place(address="db:5432", dbname="orders", user="relay", table="public.outbox")
CANARY = "S3CR3T-CANARY"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('FATAL:  password authentication failed for user "relay"', "AuthenticationFailed"),
        ('FATAL:  role "relay" does not exist', "AuthenticationFailed"),
        (
            'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "r", database "d", no encryption',
            "AuthenticationFailed",
        ),
        ("fe_sendauth: no password supplied", "AuthenticationFailed"),
        ('FATAL:  database "orders" does not exist', "DatabaseMissing"),
        ('FATAL:  permission denied for database "orders"', "PermissionDenied"),
        ("server does not support SSL, but SSL was required", "TlsFailed"),
        ("SSL error: certificate verify failed", "TlsFailed"),
        ('server certificate for "a" does not match host name "b"', "TlsFailed"),
        ("Connection refused\n\tIs the server running on that host?", "DatabaseUnreachable"),
        ('could not translate host name "ssl-certificate-db" to address', "DatabaseUnreachable"),
        ("FATAL:  the database system is starting up", "DatabaseUnreachable"),
        ("FATAL:  sorry, too many clients already", "DatabaseUnreachable"),
        ("connection timeout expired", "DatabaseUnreachable"),
    ],
)
def test_a_refused_connection_is_told_by_its_text(text: str, reason: str) -> None:
    shown = f'connection failed: connection to server at "ssl-db" (10.0.0.1), port 5432 failed: {text}'
    assert classify(sqlstate=None, text=shown) == reason


@pytest.mark.parametrize(
    ("sqlstate", "reason"),
    [
        ("28P01", "AuthenticationFailed"),
        ("3D000", "DatabaseMissing"),
        ("42P01", "TableMissing"),
        ("42703", "ColumnMissing"),
        ("42501", "PermissionDenied"),
        ("25006", "ReadOnly"),
        ("53300", "DatabaseUnreachable"),
        ("08006", "DatabaseUnreachable"),
        ("57P01", "DatabaseUnreachable"),
        ("XX000", "DatabaseError"),
    ],
)
def test_a_failed_statement_is_told_by_its_code(sqlstate: str, reason: str) -> None:
    assert classify(sqlstate=sqlstate, text="") == reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('connection to server at "refused" failed: Connection refused', "connection refused"),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", "the host's name cannot be resolved"),
        ("connection timeout expired", "timed out"),
        ("FATAL:  sorry, too many clients already", "the server takes no more connections"),
        ("something new", None),
    ],
)
def test_the_cause_of_a_failed_connection_is_said_in_fixed_words(text: str, words: str | None) -> None:
    assert cause(text) == words


@pytest.mark.parametrize("reason", [word for word in get_args(DatabaseReason) if word not in ("Connected", "Starting")])
def test_every_reason_has_advice_and_names_the_place(reason: DatabaseReason) -> None:
    message = describe(reason, PLACE, sqlstate="28P01")
    assert message.startswith("table public.outbox in database orders on db:5432 as user relay (SQLSTATE 28P01): ")
    assert not message.endswith(f": {reason}")


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError(f'missing "=" after "{CANARY}" in connection info string'),
        psycopg.errors.InvalidTextRepresentation(f"invalid input syntax: {CANARY}"),
        psycopg.errors.QueryCanceled(CANARY),
        psycopg.ProgrammingError(f"password={CANARY}"),
    ],
)
async def test_no_text_of_the_driver_gets_into_a_message(error: Exception) -> None:
    with pytest.raises(MeasureError) as caught:
        await guarded(raising(error), PLACE)
    assert CANARY not in caught.value.message
    assert caught.value.__suppress_context__


async def test_a_lost_session_is_known_as_such() -> None:
    with pytest.raises(MeasureError) as lost:
        await guarded(raising(psycopg.errors.AdminShutdown("")), PLACE)
    assert lost.value.session_lost
    with pytest.raises(MeasureError) as kept:
        await guarded(raising(psycopg.errors.UndefinedTable("")), PLACE)
    assert (kept.value.session_lost, kept.value.reason) == (False, "TableMissing")
