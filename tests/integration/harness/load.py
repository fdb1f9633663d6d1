"""A steady stream of committed rows beside a fault, with a ledger of what really committed.

A commit whose answer was lost may have happened or not: so the truth is not kept here but in a table that the
same transaction writes, and that no relay touches.
"""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import LiteralString, Self

import psycopg

from tests.integration.harness.checker import Committed
from tests.testbed.services.postgres import Database

RECONNECT_SECONDS = 0.1

# One writer: version, id and commit order are the same.
_INSERT: LiteralString = """
  with added as (
    insert into outbox (aggregatetype, aggregateid, type, payload)
    select 'order', %(key)s::text, 'Load', jsonb_build_object('key', %(key)s::text, 'version', version)
    from (select nextval('ledger_version') as version) next
    returning {row_id} as row_id, aggregateid, payload
  )
  insert into ledger
  select row_id, aggregateid, (payload ->> 'version')::bigint, payload::text from added"""


class Load:
    """Inserts rows over some keys until the `with` block ends; survives the loss of its connection.

    Args:
        row_id: SQL for the number by which a row is named in the ledger.
    """

    def __init__(
        self, database: Database, *, keys: int = 6, rows_per_second: float = 500, row_id: LiteralString = "id"
    ) -> None:
        self._database = database
        self._keys = keys
        self._pause = 1 / rows_per_second
        self._insert_sql = _INSERT.format(row_id=row_id)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._failure: Exception | None = None
        database.execute("create table if not exists ledger (id bigint, key text, version bigint, payload text)")
        if not database.execute("select 1 from pg_class where relname = 'ledger_version'"):
            database.execute("create sequence ledger_version")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(timeout=60)
        if self._failure is None:
            return
        if error is None:
            raise self._failure
        error.add_note(f"the load had ended before: {self._failure!r}")

    def count(self) -> int:
        """Rows committed so far."""
        return int(self._database.execute("select count(*) from ledger")[0][0])

    def committed(self) -> list[Committed]:
        """What committed; complete after the `with` block."""
        rows = self._database.execute("select id, key, version, payload from ledger")
        return [Committed(row_id=row[0], key=row[1], version=row[2], payload=row[3].encode()) for row in rows]

    def _run(self) -> None:
        numbers = itertools.count()
        try:
            while not self._ending.is_set():
                try:
                    with self._database.connect(connect_timeout=2) as connection:
                        while not self._ending.wait(self._pause):
                            connection.execute(self._insert_sql, {"key": f"key-{next(numbers) % self._keys}"})
                except psycopg.OperationalError:
                    self._ending.wait(RECONNECT_SECONDS)
        except Exception as failure:  # the thread's outermost boundary: told to the test at the end of the block
            self._failure = failure
