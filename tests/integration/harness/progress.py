"""How far the writers have come, seen from the database."""

from __future__ import annotations

from tests.testbed.services.eventually import eventually
from tests.testbed.services.postgres import Database


def await_inserted(database: Database, rows: int) -> None:
    """Wait until the writers have drawn this many ids."""
    eventually(
        lambda: database.execute("select last_value from outbox_id_seq")[0][0] >= rows,
        seconds=120,
        what=f"{rows} rows inserted",
    )
