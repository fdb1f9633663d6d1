"""The preflight's look at what `wake: Notify` needs: a trigger, and notifications that arrive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl
from outboxrelay.stores.wake import TEST_WITHIN_SECONDS, Listener, announced_by_trigger, channel

_SLICE_SECONDS: Final = 0.1

_FULL: Final = 0.5
"""Share of the server's notification queue above which it is time to look for who does not empty it."""


def examine_wake(connection: psycopg.Connection[Any], config: RelayConfig) -> list[Finding]:
    """Whether a trigger announces new rows; nothing where the relay is to poll.

    Raises:
        psycopg.Error: the catalog could not be read.
    """
    if config.table.wake == "Poll":
        return []
    if announced_by_trigger(connection, config.table):
        return [Finding(level="ok", subject="wake", message="a trigger announces new rows")]
    return [
        Finding(
            level="warning",
            subject="wake",
            message=f"no trigger announces new rows on channel {channel(config.table)}: the relay polls, as without"
            " wake: Notify",
            remedy="create one; it waits for the transactions that write to the table, and new ones wait for it",
            statements=ddl.wake_trigger(config),
        )
    ]


def examine_notifications(
    connection: psycopg.Connection[Any], config: RelayConfig, *, clock: Callable[[], float] = time.monotonic
) -> list[Finding]:
    """Send a notification that every relay ignores, and wait for it; nothing where the relay is to poll.

    Raises:
        psycopg.Error: the session was lost.
    """
    if config.table.wake == "Poll":
        return []
    listener = Listener(connection, config, clock=clock)
    listener.look()
    give_up_at = clock() + TEST_WITHIN_SECONDS
    while (heard := listener.state()).reason == "Starting" and clock() < give_up_at:
        listener.listen(_SLICE_SECONDS)
    findings: list[Finding] = []
    if heard.reason == "NotHeard":
        findings.append(Finding(level="warning", subject="notifications", message=heard.message))
    (used,) = connection.execute("SELECT pg_notification_queue_usage()").fetchone() or (0.0,)
    if used > _FULL:
        findings.append(
            Finding(
                level="warning",
                subject="notifications",
                message=f"the server's queue of notifications is {used:.0%} full; once it is, transactions that insert"
                " rows fail",
                remedy="end the session that listens and leaves its transaction open: the server's log names it",
            )
        )
    return findings or [Finding(level="ok", subject="notifications", message="they arrive")]
