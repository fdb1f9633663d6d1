"""One statement that the server works on while the relay does something else.

psycopg's cursors wait for their answer, and its pipelines end a transaction only together with that wait. libpq itself
can send a statement and take the answer later; since each is sent with its own end of transaction, none stays open
meanwhile (hard rule 5). Only one question can be open on a connection, and nothing else may be executed while it is.

Each statement is prepared once per connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors, generators, pq
from psycopg.adapt import Transformer

from outboxrelay.stores.session import Connection
from outboxrelay.stores.statement import Statement


class Questions:
    """Asks over one connection, one question at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prepared: dict[bytes, bytes] = {}

    def ask(self, statement: Statement, parameters: Mapping[str, bytes]) -> None:
        """Send a statement without waiting for its answer; the first time it is prepared, which is waited for.

        Raises:
            psycopg.Error: it could not be sent or prepared.
        """
        pgconn = self._connection.pgconn
        name = self._prepared.get(statement.text)
        if name is None:
            name = b"outboxrelay_%d" % len(self._prepared)
            pgconn.send_prepare(name, statement.text)
            self._checked(self._connection.wait(generators.execute(pgconn)), pq.ExecStatus.COMMAND_OK)
            self._prepared[statement.text] = name
        pgconn.send_query_prepared(name, [parameters[each] for each in statement.names], result_format=pq.Format.BINARY)
        self._connection.wait(generators.send(pgconn))

    def answer(self) -> pq.abc.PGresult:
        """Wait for the rows of the open question.

        Raises:
            psycopg.Error: the statement failed, or the server does not answer.
        """
        return self._checked(
            self._connection.wait(generators.fetch_many(self._connection.pgconn)), pq.ExecStatus.TUPLES_OK
        )

    def only(self) -> tuple[Any, ...]:
        """Wait for the one row of a question that always has one.

        Raises:
            psycopg.Error: as `answer`.
        """
        (row,) = self.rows()
        return row

    def rows(self) -> list[tuple[Any, ...]]:
        """Wait for all rows of a question, as Python's values.

        Raises:
            psycopg.Error: as `answer`.
        """
        answer = self.answer()
        loader = Transformer(self._connection)
        loader.set_pgresult(answer, format=pq.Format.BINARY)
        return loader.load_rows(0, answer.ntuples, tuple)

    def affected(self) -> int:
        """Wait for the end of the open statement, which returns no rows; how many rows it changed.

        Raises:
            psycopg.Error: as `answer`.
        """
        results = self._connection.wait(generators.fetch_many(self._connection.pgconn))
        return self._checked(results, pq.ExecStatus.COMMAND_OK).command_tuples or 0

    def _checked(self, results: list[pq.abc.PGresult], wanted: pq.ExecStatus) -> pq.abc.PGresult:
        if not results:
            raise psycopg.OperationalError("the server ended the session")
        # The statement may be done and its transaction fail all the same, by a deferred constraint or trigger.
        for result in results:
            if result.status != wanted:
                raise errors.error_from_result(result, encoding="utf-8")
        return results[0]
