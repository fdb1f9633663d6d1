"""Ports with one well-known mistake each, to prove that the property test sees it. They lose and reorder on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

from outboxrelay.ports import Batch, Outcome, Row, RowFault
from tests.contract.relay.fakes import FakeStore, FakeTable
from tests.unit.relay.slow_topic import Client


class Cursor(FakeStore):
    """Asks for ids above the last one it has settled: hard rule 1, cases.md RC-01."""

    last = 0

    def read(self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int]) -> Batch:
        batch = super().read(limit=limit, held_keys=held_keys, held_ids=held_ids)
        return batch._replace(rows=[row for row in batch.rows if row.id > self.last])

    def settle(self, ids: Sequence[int]) -> None:
        super().settle(ids)
        self.last = max(self.last, *ids)


class RangeOfIds(FakeStore):
    """Settles everything from the first id of a batch to the last: hard rule 3."""

    def settle(self, ids: Sequence[int]) -> None:
        super().settle(range(min(ids), max(ids) + 1))


class SkipLocked(FakeStore):
    """Works on all lanes, and passes over the rows that another one has claimed: hard rule 4, cases.md RC-04."""

    _claims: ClassVar[WeakKeyDictionary[FakeTable, dict[int, FakeStore]]] = WeakKeyDictionary()

    def rebalance(self) -> frozenset[int]:
        super().rebalance()
        self._owned = frozenset(range(self._table.lanes))
        return self._owned

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        claims = self._claims.setdefault(self._table, {})
        others = {row_id for row_id, store in claims.items() if store is not self and store.session}
        super().ask(limit=limit, held_keys=held_keys, held_ids=[*held_ids, *others], in_flight=in_flight)
        assert self._answer is not None
        claims.update((row.id, self) for row in self._answer.rows)


class LanesWithoutLocks(FakeStore):
    """Takes its share of the lanes whether or not another relay holds them still."""

    def rebalance(self) -> frozenset[int]:
        self._table.holders.clear()
        return super().rebalance()


class KeepsItsAnswer(FakeStore):
    """Does not forget what it has read ahead, though a row of the batch before was at fault."""

    def drop(self) -> None:
        """Nothing."""


class NeverGoesBack(FakeStore):
    """Hands out no row again."""

    def rewind(self, row_id: int) -> None:
        """Nothing."""


class HeedsNoHeldKeys(FakeStore):
    """Reads on behind a row that is parked."""

    def ask(
        self, *, limit: int, held_keys: Collection[bytes], held_ids: Collection[int], in_flight: Sequence[int]
    ) -> None:
        super().ask(limit=limit, held_keys=held_keys and (), held_ids=held_ids, in_flight=in_flight)


class AcknowledgesAtOnce(Client):
    """Takes a row that was handed over for one that the broker has: hard rule 7, cases.md RC-05."""

    def publish(self, rows: Sequence[Row], *, halfway: Callable[[], None] | None = None) -> None:
        self.deliver()
        super().publish(rows, halfway=halfway)

    def wait(self, timeout_seconds: float) -> bool:
        self._check()
        return timeout_seconds > 0

    def outcome(self) -> Outcome:
        ids = [row.id for row in self._queue]
        self._busy = False
        return Outcome(acknowledged=ids, faults=[])


class SendsBehindAFault(Client):
    """Does not keep back the later rows of a key whose earlier row is at fault."""

    def _fault(self, fault: RowFault) -> None:
        self._faults.append(fault)
