"""One session's place among the relays of its pair: who is alive, and which lanes are whose.

All of it is advisory locks of the session that reads and removes rows, so whoever loses the session loses its lanes at
the same moment, and nothing here can outlive it. No lock is waited for: a lane that another holds is left there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from outboxrelay import lanes
from outboxrelay.config import RelayConfig
from outboxrelay.ports import StoreError
from outboxrelay.stores.errors import place
from outboxrelay.stores.session import Connection
from outboxrelay.stores.statement import array


class Membership:
    """The locks of one session. Every method raises `psycopg.Error` when the session is lost."""

    def __init__(self, connection: Connection, config: RelayConfig) -> None:
        self._connection = connection
        self._config = config
        self.owned: frozenset[int] = frozenset()
        """Lanes that are locked here."""

        self.members = 0
        """Live relays of the pair as of the last `share`, this one included; 0 outside."""

        table = f"{config.table.schema_}.{config.table.name}"
        self._lane_class: Final = _lock_number("lanes", table, config.kafka.topic)
        self._guard_class: Final = _lock_number("guard", table, config.kafka.topic)
        self._owner: Final = _lock_number("owner", config.pair.namespace, config.pair.name, str(config.lanes))

    def share(self) -> frozenset[int]:
        """Take or give lanes towards a fair share; returns those that were taken.

        Raises:
            StoreError: `Conflict`, another pair's relays work here.
        """
        if not self.members:
            self._enter()
        members, held_by_others = self._survey()
        step = lanes.plan(lanes=self._config.lanes, members=members, owned=self.owned, held_by_others=held_by_others)
        self.members = members
        if step.give:
            self._unlock(step.give)
            self.owned -= frozenset(step.give)
        taken = self._lock(step.take) if step.take else frozenset()
        self.owned |= taken
        return taken

    def leave(self) -> None:
        """Give up every lane and the membership."""
        self._connection.execute("SELECT pg_advisory_unlock_all()")
        self.owned = frozenset()
        self.members = 0

    def _enter(self) -> None:
        """Join the relays of this pair, unless those of another one work on the table and topic.

        Another pair may be one of the same resource that reaches the table by another name. It picks rows in its own
        way, so the two must never take each other for members and share the lanes.

        The shared lock is taken before looking, so of two newcomers at least one sees the other; relays that are in
        do not look again, so a newcomer's short stay does not disturb them.
        """
        self._connection.execute("SELECT pg_advisory_lock_shared(%s::int4, %s::int4)", (self._guard_class, self._owner))
        others = self._connection.execute(
            _LOCKS + " AND classid = %s::int8::oid AND objid <> %s::int8::oid",
            (_unsigned(self._guard_class), _unsigned(self._owner)),
        ).fetchall()
        if others:
            pids = ", ".join(str(pid) for _, pid in others)
            raise StoreError(
                "Conflict",
                f"taking the lanes failed ({place(self._config)}, topic {self._config.kafka.topic}): a relay of"
                f" another OutboxRelay, of another pair of this one, or with another number of lanes, works on this"
                f" table and topic (server processes {pids}); delete one of the two",
            )

    def _survey(self) -> tuple[int, frozenset[int]]:
        """Live members, and the lanes held by other sessions."""
        me = self._connection.info.backend_pid
        guard = self._connection.execute(
            _LOCKS + " AND classid = %s::int8::oid AND objid = %s::int8::oid",
            (_unsigned(self._guard_class), _unsigned(self._owner)),
        ).fetchall()
        held = self._connection.execute(
            _LOCKS + " AND classid = %s::int8::oid", (_unsigned(self._lane_class),)
        ).fetchall()
        return len({pid for _, pid in guard}), frozenset(lane for lane, pid in held if pid != me)

    def _lock(self, wanted: Sequence[int]) -> frozenset[int]:
        taken = self._connection.execute(
            "SELECT lane FROM unnest(%s::int4[]) AS lane WHERE pg_try_advisory_lock(%s::int4, lane)",
            (array(wanted).decode(), self._lane_class),
        ).fetchall()
        return frozenset(lane for (lane,) in taken)

    def _unlock(self, given: Sequence[int]) -> None:
        self._connection.execute(
            "SELECT pg_advisory_unlock(%s::int4, lane) FROM unnest(%s::int4[]) AS lane",
            (self._lane_class, array(given).decode()),
        )


def _lock_number(*parts: str) -> int:
    """A number for an advisory lock: a signed 32-bit hash of `parts`, the same in every process and release."""
    data = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big", signed=True)


def _unsigned(number: int) -> int:
    """pg_locks shows the two halves of an advisory lock as unsigned numbers."""
    return number & 0xFFFFFFFF


_LOCKS: Final = (
    "SELECT objid::int8, pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
