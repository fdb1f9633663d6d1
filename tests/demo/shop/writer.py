"""The shop: several writers per database, each transaction a business row and an outbox row together.

The log of what was committed is the `history` table itself, so a writer that dies between its commit and the
answer of the database leaves nothing unclear.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from .databases import ShopDatabase
from .orders import ACCOUNTS, INVOICE_SHARE, ORDERS, Plan, money_payload, next_step, order_payload, plan

WRITERS = {"orders": 8, "payments": 4}
TRANSACTIONS_PER_SECOND = 27.0
"""Of each writer, at most; with invoices this makes about 380 rows a second."""

Connection = psycopg.Connection[tuple[Any, ...]]
Transaction = Callable[[Connection, Plan, random.Random], None]

_log = logging.getLogger("shop.writer")
_INSERT = {
    "jsonb": "insert into outbox (aggregatetype, aggregateid, type, payload) values (%s, %s, %s, %s::jsonb)"
    " returning sha256(convert_to(payload::text, 'UTF8'))",
    "bytea": "insert into outbox (aggregatetype, aggregateid, type, payload)"
    " values (%s, %s, %s, convert_to(%s, 'UTF8')) returning sha256(payload)",
}


def main() -> None:
    """Entry point of the writer's pod; ends on SIGTERM, after the transactions at hand."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    counts: Counter[str] = Counter()
    threads = [
        threading.Thread(target=_Writer(ShopDatabase.from_environment(name), counts, stop).run, name=f"{name}-{number}")
        for name, writers in WRITERS.items()
        for number in range(writers)
    ]
    for thread in threads:
        thread.start()
    while not stop.wait(10.0):
        _log.info("transactions so far: %s", dict(counts))
        dead = [thread.name for thread in threads if not thread.is_alive()]
        if dead:
            stop.set()
            raise SystemExit(f"writers ended unexpectedly: {', '.join(dead)}; the error is in the log above")
    for thread in threads:
        thread.join()
    _log.info("stopped; transactions: %s", dict(counts))


class _Writer:
    def __init__(self, database: ShopDatabase, counts: Counter[str], stop: threading.Event) -> None:
        self._database = database
        self._transaction: Transaction = order_transaction if database.name == "orders" else payment_transaction
        self._counts = counts
        self._stop = stop
        self._rng = random.Random()

    def run(self) -> None:
        """Write until told to stop; a lost connection is opened again."""
        while not self._stop.is_set():
            try:
                with self._database.connect() as connection:
                    self._write(connection)
            except psycopg.OperationalError as error:
                _log.warning("database %s: %s; trying again", self._database.name, str(error).strip())
                self._stop.wait(1.0)

    def _write(self, connection: Connection) -> None:
        while not self._stop.is_set():
            chosen = plan(self._rng)
            with connection.transaction(force_rollback=chosen.rollback):
                self._transaction(connection, chosen, self._rng)
            self._counts["rolled back" if chosen.rollback else "committed"] += 1
            self._stop.wait(self._rng.expovariate(TRANSACTIONS_PER_SECOND))


def order_transaction(connection: Connection, plan: Plan, rng: random.Random) -> None:
    """One step of one order, and sometimes its invoice, with their outbox rows."""
    _visit(connection, plan)
    number = rng.randint(1, ORDERS)
    found = connection.execute("select version, state, slot from orders where id = %s for update", (number,)).fetchone()
    if found is None:
        raise LookupError(f"order {number} is not in the table orders, which sql/orders.sql fills")
    version, state, slot = found[0] + 1, found[1], found[2]
    step = next_step(state, slot, rng=rng)
    connection.execute(
        "update orders set version = %s, state = %s, slot = %s where id = %s", (version, step.state, step.slot, number)
    )
    key = f"order-{number}"
    payload = order_payload(key, version, step, rng=rng)
    written = [_outbox(connection, "jsonb", route="order", key=key, event=step.event, version=version, payload=payload)]
    if rng.random() < INVOICE_SHARE:
        written.append(_money(connection, "jsonb", table="invoices", route="invoice", number=number, rng=rng))
    _finish(connection, plan, written)


def payment_transaction(connection: Connection, plan: Plan, rng: random.Random) -> None:
    """One payment with its outbox row."""
    _visit(connection, plan)
    number = rng.randint(1, ACCOUNTS)
    _finish(connection, plan, [_money(connection, "bytea", table="payments", route="payment", number=number, rng=rng)])


_Written = tuple[str, int, bytes]


def _visit(connection: Connection, plan: Plan) -> None:
    if plan.other_table_first:
        connection.execute("insert into visits default values")


def _money(
    connection: Connection, payload_type: str, *, table: str, route: str, number: int, rng: random.Random
) -> _Written:
    update = sql.SQL("update {} set version = version + 1 where id = %s returning version")
    found = connection.execute(update.format(sql.Identifier(table)), (number,)).fetchone()
    if found is None:
        raise LookupError(f"{route} {number} is not in the table {table}, which the files in sql/ fill")
    key = f"{route}-{number}"
    return _outbox(
        connection,
        payload_type,
        route=route,
        key=key,
        event="InvoiceIssued" if route == "invoice" else "PaymentReceived",
        version=found[0],
        payload=money_payload(key, found[0], rng=rng),
    )


def _outbox(
    connection: Connection, payload_type: str, *, route: str, key: str, event: str, version: int, payload: object
) -> _Written:
    text = json.dumps(payload, ensure_ascii=False)
    returned = connection.execute(_INSERT[payload_type].encode(), (route, key, event, text)).fetchone()
    if returned is None:
        raise RuntimeError("insert into outbox returned no row: does a trigger or a rule stand in its way?")
    return key, version, returned[0]


def _finish(connection: Connection, plan: Plan, written: list[_Written]) -> None:
    if plan.open_seconds:
        connection.execute("select pg_sleep(%s)", (plan.open_seconds,))
    for row in written:
        # Last before the commit, so that committed_at is as late as can be known inside the transaction.
        connection.execute(
            "insert into history (key, version, digest, committed_at) values (%s, %s, %s, clock_timestamp())", row
        )


if __name__ == "__main__":
    main()
