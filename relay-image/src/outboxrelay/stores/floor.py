"""The floor: the id below which no read needs to look (hard rule 2).

Without it every read walks over the dead index entries that its own deletions leave at the head of the table; with a
long transaction open on the server, nothing can vacuum those away. But ids are handed out before their transactions
commit, so "the last id seen" is no floor: a row with a lower id may yet appear.

The rule. Let M be the highest id of the batches settled so far. Look, after M was read, at which transactions write
to the table (they hold its RowExclusiveLock from before the first id is drawn until they end), and let X be an xid
assigned then. Every id up to M was drawn before; its transaction has ended, or is one of those seen, or has an xid
lower than X. Once those seen have ended, a snapshot whose xmin is at least X therefore sees every row up to M that
will ever be there. If a read under that snapshot also returned all it could see up to M (it was complete, or went up
to M), every such row is in the caller's hands, and the next read may start above M.

The xid alone will not do: a transaction gets its xid with its first write, after the id was drawn. A trigger before the
insert, a slow default or a COPY that still collects rows makes that gap as long as it likes, and on a busy machine a
plain insert is held up in it once in some ten thousand rows.

The snapshot's xmax will not do: it is only the latest completed xid plus one, and running transactions lie above it.

What the caller was given but did not settle must be handed back (`rewind`). One gap remains: rows with ids that were
drawn without the table's lock, by calling nextval or by somebody's own making, and those of a sequence that begins
anew. A full sweep from the true start closes it within its interval; that is what `look_below` is for. What it finds
takes the floor down with it: of a sequence that has begun anew the next ids are those above.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

NONE = -(2**63) - 1
"""Below every id: the read starts at the true start of the table."""

_HIGHEST_ID = 2**63 - 1


@dataclass(slots=True)
class _Entry:
    """The highest id settled when the server was looked at, and what has to be over before the floor may pass it."""

    highest_id: int
    own_xid: int
    writers: set[str]


class Floor:
    """State of the rule above for one session and one set of lanes. Holds no more than a few hundred numbers."""

    def __init__(self, *, max_entries: int = 256) -> None:
        self._max_entries = max_entries
        self._history: deque[_Entry] = deque()
        self._stride = 1
        self._skipped = 0
        self._proven = NONE
        self._below = NONE
        self.value = NONE

    def reset(self) -> None:
        """Forget everything: a new session, or lanes whose rows were never looked at."""
        self._history.clear()
        self._stride = 1
        self._skipped = 0
        self._proven = NONE
        self._below = NONE
        self.value = NONE

    @property
    def start(self) -> int:
        """The lowest id that the next read must look at; always a valid one."""
        return min(self.value + 1, _HIGHEST_ID)

    def sweep(self) -> None:
        """Let the next read start at the true start; what is known about transactions stays known."""
        self._below = NONE
        self.value = NONE

    def look_below(self) -> None:
        """As `sweep`, although nobody expects anything up to where the floor is: see `found_below`."""
        self._below = max(self._below, self.value)
        self.value = NONE

    def looks_below(self) -> bool:
        """Whether the next read to be taken into account is one that nobody expects anything of."""
        return self._below != NONE

    def found_below(self, ids: Iterable[int]) -> None:
        """Go on from the highest of the ids that nobody expected, if there are any; what follows may lie there, too.

        `ids` are those that the read returned, of which `read` is to be told next.
        """
        below, self._below = self._below, NONE
        highest = max((each for each in ids if each <= below), default=None)
        if highest is not None:
            self._history.clear()
            self._stride = 1
            self._skipped = 0
            self._proven = highest

    def rewind(self, row_id: int) -> None:
        """Let the next read start no later than at `row_id`."""
        self.value = max(NONE, min(self.value, row_id - 1))

    def observed(self, *, highest_id: int, own_xid: int, writers: Collection[str]) -> None:
        """Take a look at the server into account, made after the rows up to `highest_id` were read.

        `own_xid` was assigned then; `writers` are the virtual transaction ids that held the table's lock then.
        """
        self.still_writing(writers)
        if self._history and highest_id <= self._history[-1].highest_id:
            # A batch of late rows: an entry with a higher id and fewer conditions says more.
            return
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        if len(self._history) >= self._max_entries:
            # A transaction stays open: remember batches further apart, evenly, so that the floor can follow it.
            self._history = deque(list(self._history)[::2])
            self._stride *= 2
        self._history.append(_Entry(highest_id=highest_id, own_xid=own_xid, writers=set(writers)))

    def still_writing(self, writers: Collection[str]) -> None:
        """The transactions that hold the table's lock now: all others that were seen have ended.

        A prepared transaction keeps its locks and its virtual id, so it is still waited for.
        """
        for entry in self._history:
            entry.writers.intersection_update(writers)

    def waits(self) -> bool:
        """Whether another look at the server may let the floor rise."""
        return any(entry.writers for entry in self._history)

    def read(self, *, xmin: int, last_id: int | None, complete: bool) -> None:
        """Take a read into account: its snapshot's xmin, the highest id it returned, and whether it saw the end.

        Its snapshot must be younger than the last call of `observed` or `still_writing`.
        """
        while self._history:
            entry = self._history[0]
            if entry.writers or xmin < entry.own_xid or not _reaches(last_id, entry.highest_id, complete=complete):
                break
            self._proven = max(self._proven, entry.highest_id)
            self._history.popleft()
            if not self._history:
                self._stride = 1
        # Also after a sweep or a rewind: once the caller has all rows up to there again, there it may go on. An idle
        # relay settles nothing, and would walk over the dead rows with each poll.
        if _reaches(last_id, self._proven, complete=complete):
            self.value = max(self.value, self._proven)


def _reaches(last_id: int | None, row_id: int, *, complete: bool) -> bool:
    """Whether a read returned every row up to `row_id` that its snapshot saw."""
    return complete or (last_id is not None and last_id >= row_id)
