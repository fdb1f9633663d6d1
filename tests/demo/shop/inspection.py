"""Everything the delivery service knows, behind one lock: what arrived, and how it compares with the databases.

The consumer feeds it, the audit loop compares, and the HTTP server reads.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from .checker import Arrival, Audit, OrderChecker
from .delivery import Deduplicator, SlotBook, slot_differences
from .latency import Histogram, percentile
from .ledger import Ledger, database_of

AUDIT_BATCH = 5_000
LATENCIES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


class Inspection:
    """The state of the delivery service and of the checks; every method may be called from any thread."""

    def __init__(self, ledgers: Mapping[str, Ledger]) -> None:
        self._ledgers = dict(ledgers)
        self._state = threading.Lock()
        self._auditing = threading.Lock()
        self._checker = OrderChecker()
        self._ids = Deduplicator()
        self._slots = SlotBook()
        self._audit = Audit()
        self._latency = Histogram()
        self._pending: dict[str, list[Arrival]] = {name: [] for name in ledgers}
        self._received = 0
        self._last_at = 0.0
        self._caught_up = False

    def receive(self, *, topic: str, key: bytes, value: bytes, headers: Mapping[str, bytes], at: float) -> None:
        """One message: check it, and do what it orders unless its id was seen before.

        Args:
            at: Unix time of receipt, seconds.

        Raises:
            KeyError: if the message has no `outbox-id` or its payload lacks a field of the shop's events.
            ValueError: if key or event are not the shop's.
        """
        name = key.decode()
        event: dict[str, Any] = json.loads(value)
        arrival = Arrival(name, event["version"], hashlib.sha256(value).digest(), at)
        with self._state:
            self._received += 1
            self._last_at = at
            self._checker.observe(name, arrival.version)
            self._pending[database_of(name)].append(arrival)
            if self._ids.is_new(headers["outbox-id"]) and topic == "shop.orders":
                self._slots.apply(headers["outbox-type"].decode(), order=event["order"], slot=event["slot"])

    def mark_caught_up(self, caught_up: bool) -> None:
        """Whether the consumer has read every partition to its end."""
        with self._state:
            self._caught_up = caught_up

    def audit(self) -> None:
        """Compare what arrived since the last audit with what was committed.

        Raises:
            psycopg.OperationalError: if a database cannot be reached; nothing is lost, call again later.
        """
        with self._auditing:
            for name, ledger in self._ledgers.items():
                while True:
                    with self._state:
                        batch = self._pending[name][:AUDIT_BATCH]
                    if not batch:
                        break
                    self._compare(name, batch, ledger)

    def _compare(self, name: str, batch: list[Arrival], ledger: Ledger) -> None:
        committed = ledger.committed(batch)
        with self._state:
            del self._pending[name][: len(batch)]
            self._latency.add(self._audit.compare(batch, committed))

    def report(self) -> dict[str, Any]:
        """The counts so far; cheap."""
        with self._state:
            return {
                "received": self._received,
                "delivered": self._checker.first + self._checker.reordered,
                "repeated": self._checker.repeated,
                "reordered": self._checker.reordered,
                "dropped": self._ids.dropped,
                "keys": self._checker.keys,
                "compared": self._audit.compared,
                "altered": self._audit.altered,
                "phantom": self._audit.phantom,
                "examples": list(self._audit.examples),
                "last_at": self._last_at,
                "caught_up": self._caught_up,
                "latency_seconds": {name: percentile(self._latency.counts, share) for name, share in LATENCIES.items()},
            }

    def latencies(self) -> dict[str, int]:
        """The histogram of the time from commit to receipt, of every message compared so far."""
        with self._state:
            return {str(bucket): count for bucket, count in sorted(self._latency.counts.items())}

    def full_report(self) -> dict[str, Any]:
        """`report` after an audit, with what the databases hold; exact only while the shop does not write.

        Raises:
            psycopg.OperationalError: if a database cannot be reached.
        """
        self.audit()
        rows: dict[str, int] = {}
        in_outbox = drawn = 0
        with self._auditing:
            for ledger in self._ledgers.values():
                rows.update(ledger.rows_per_key())
                waiting, ids = ledger.outbox()
                in_outbox += waiting
                drawn += ids
            ordered = self._ledgers["orders"].slots()
        with self._state:
            lacking = self._checker.undelivered(rows)
            outdated = self._checker.outdated()
            differences = slot_differences(self._slots.taken(), ordered)
        committed = sum(rows.values())
        return self.report() | {
            "committed": committed,
            "rolled_back": drawn - committed,
            "in_outbox": in_outbox,
            "undelivered": sum(lacking.values()),
            "undelivered_keys": dict(sorted(lacking.items())[:5]),
            "outdated_keys": len(outdated),
            "orders_in_slots": sum(ordered.values()),
            "slot_differences": {str(slot): pair for slot, pair in _first(differences.items(), 5)},
            "slots_equal": not differences,
        }


def _first(items: Iterable[Any], count: int) -> list[Any]:
    return list(items)[:count]
