"""Hearing of new rows: `wake: Notify`, LISTEN on the very session that reads them.

The session is the relay's own and no pooler's, or it would have been refused, so listening costs no connection, and
cannot be lost without the session. What it cannot do is be trusted: a proxy may swallow notifications, the trigger that
sends them may be missing or disabled. So the relay sends itself one, looks for the trigger, and polls at its usual pace
for as long as either is in doubt. Also while both are well it polls now and then: rows may come without the trigger.

A notification only ends a rest. Which rows are read, and in which order, is decided without it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from outboxrelay.config import RelayConfig, Table
from outboxrelay.ports import Wake
from outboxrelay.readable import readable
from outboxrelay.stores.errors import place, translate

TEST_WITHIN_SECONDS: Final = 2.0
"""How long the relay's notification to itself may take; it takes a millisecond on a server that is not overloaded."""

_TEST_AGAIN_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 10.0
"""How often to see whether the trigger is still there."""

_LONGEST_NAME: Final = 63
_TEST: Final = "outboxrelay-test:"
"""What notifications of a test begin with; all other relays of the table get them too, and must not mind."""

_TRIGGER: Final = """
SELECT EXISTS (
    SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 4 = 4
      -- Each argument ends with a zero: the name of one table may be the beginning of another's.
      AND (position(convert_to(%(channel)s, getdatabaseencoding()) || decode('00', 'hex') IN t.tgargs) > 0
           OR position(%(channel)s::text IN p.prosrc) > 0))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s
"""
"""Bit 2 of tgtype is INSERT. O and A: fires for sessions that are no replication workers, which rows come from."""


def channel(table: Table) -> str:
    """The channel on which rows of a table are announced: its name, or a hash of that if it is too long for one."""
    name = f"outboxrelay:{table.qualified}"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return f"outboxrelay:{hashlib.blake2b(table.qualified.encode(), digest_size=16).hexdigest()}"


def announced_by_trigger(connection: psycopg.Connection[Any], table: Table) -> bool:
    """Whether an enabled trigger for INSERT notifies the table's channel, by its arguments or its function's text.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    given = {"channel": channel(table), "schema": table.schema_, "table": table.name}
    row = connection.execute(_TRIGGER, given).fetchone()
    return row is not None and bool(row[0])


class Listener:
    """What one session hears of one table. Nothing here may be called while a question to the server is open,
    except `announced` and `forget`."""

    def __init__(self, connection: psycopg.Connection[Any], config: RelayConfig, *, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._config = config
        self._clock = clock
        self._channel = channel(config.table)
        self._announced = False
        self._test = ""
        self._tested_at = float("-inf")
        self._looked_at = float("-inf")
        self._heard = False
        self._trigger = False
        self._refused: str | None = None
        # As bytes: the driver would decode channel and payload, for nothing.
        connection.pgconn.notify_handler = self._on_notification

    def look(self) -> None:
        """Test and look again what is due. Waits for the server, but never for the notification.

        Raises:
            psycopg.Error: the session was lost, or the catalog could not be read.
        """
        now = self._clock()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._trigger = announced_by_trigger(self._connection, self._config.table)
        self.announced()
        if not self._heard and now - self._tested_at >= _TEST_AGAIN_SECONDS:
            self._tested_at = now
            self._send_test()

    def _send_test(self) -> None:
        self._test = _TEST + secrets.token_hex(8)
        self._refused = None
        try:
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._connection.execute("SELECT pg_notify(%s, %s)", (self._channel, self._test))
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            self._refused = translate(error, config=self._config, attempt="listening for new rows").message

    def announced(self) -> bool:
        """Whether rows were announced since `forget`; never waits."""
        pgconn = self._connection.pgconn
        while (notification := pgconn.notifies()) is not None:
            self._on_notification(notification)
        return self._announced

    def listen(self, seconds: float) -> None:
        """Wait up to `seconds` for anything that the server has to say.

        Raises:
            psycopg.Error: the session was lost.
        """
        pgconn = self._connection.pgconn
        if readable(pgconn.socket, within=seconds):
            pgconn.consume_input()
        self.announced()

    def forget(self) -> None:
        """From now on a read sees all that was announced until now."""
        self.announced()
        self._announced = False

    def _on_notification(self, notification: pq.PGnotify) -> None:
        if not notification.extra.startswith(_TEST.encode()):
            self._announced = True
        elif notification.extra == self._test.encode():
            self._heard = True

    def state(self) -> Wake:
        """Whether every new row is announced, as far as can be known, and what is to be done if not."""
        table = self._config.table
        instead = f"while idle the relay asks every {self._config.tuning.idle_poll_max_ms} ms instead"
        if self._refused is not None:
            return Wake(ok=False, reason="NotHeard", message=f"{self._refused}; {instead}, and tries to listen again")
        if not self._heard and self._clock() - self._tested_at < TEST_WITHIN_SECONDS:
            return Wake(ok=False, reason="Starting", message="the relay waits for a notification that it sent itself")
        if not self._heard:
            return Wake(
                ok=False,
                reason="NotHeard",
                message=f"a notification that the relay sent itself did not come back within {TEST_WITHIN_SECONDS:g} s"
                f" ({place(self._config)}): a pooler or proxy swallows notifications, or the server is overloaded;"
                f" {instead}, and tries again; connect to PostgreSQL directly, or set table.wake to Poll",
            )
        if not self._trigger:
            return Wake(
                ok=False,
                reason="TriggerMissing",
                message=f"no trigger announces new rows of {table.qualified} on channel {self._channel}"
                f" ({place(self._config)}): {instead}; let the owner run what `outboxrelay sql` prints",
            )
        return Wake(ok=True, reason="Listening", message="")
