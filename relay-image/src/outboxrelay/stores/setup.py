"""`outboxrelay sql`: what the owner of a table should run before its relay does. Only prints; executes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Finding
from outboxrelay.stores import ddl
from outboxrelay.stores.errors import translate
from outboxrelay.stores.holders import sees_all_sessions
from outboxrelay.stores.preflight import examine_table
from outboxrelay.stores.session import acting_user, connect, read_secret


def relay_user(config: RelayConfig) -> str:
    """The user in the credentials file.

    Raises:
        StoreError: CredentialsMissing.
    """
    return read_secret(config.database.credentials.username_file, what="user name", config=config)


def for_new_table(config: RelayConfig, *, role: str) -> str:
    """The script for a table that is not there yet; asks no server."""
    statements = (*ddl.new_table(config), *ddl.grants(config, role=role), *ddl.optional_grants(role=role))
    heading = ddl.comment(f"A new outbox table {config.table.qualified}, and the grants of {role}.")
    return "\n".join([heading, *statements]) + "\n"


def for_what_is_missing(config: RelayConfig, *, role: str | None) -> str:
    """The script for what the table in the database lacks, or for the whole table if there is none.

    `role`: who is to have the grants; None: whose rights the relay's session has.

    Raises:
        StoreError: the database cannot be asked.
    """
    with connect(config) as connection:
        try:
            user = role or acting_user(connection)
            found = examine_table(connection, config, user=user)
            sees_all = sees_all_sessions(connection, role=user)
        except psycopg.Error as error:
            raise translate(error, config=config, attempt="looking at the table") from None
    return script(config, found, extra=() if sees_all else ddl.optional_grants(role=user))


def script(config: RelayConfig, found: Iterable[Finding], *, extra: Iterable[str] = ()) -> str:
    """The statements of the findings, each below what it mends; a remedy that is no statement is a comment."""
    lines: list[str] = []
    for finding in found:
        if finding.level == "ok":
            continue
        lines.append(ddl.comment(f"{finding.subject}: {finding.message}"))
        if finding.remedy:
            lines.append(ddl.comment(finding.remedy))
        lines.extend(finding.statements)
    if not lines:
        lines = [ddl.comment(f"Nothing is missing in {config.table.qualified}.")]
    return "\n".join([*lines, *extra]) + "\n"
