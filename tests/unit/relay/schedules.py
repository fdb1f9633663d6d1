"""What may happen to a fleet of relays, as data: steps that are drawn, printed, shrunk and run again."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.unit.relay.fleet import AWAY, LOST, Fleet, Relay, Setting

KEYS = (b"a", b"b", b"c", b"d", None)
MOST_RELAYS = 3


@dataclass(frozen=True)
class Step:
    """One thing that happens."""

    def happen(self, fleet: Fleet) -> None:
        """Do it; nothing, if it makes no sense now."""
        raise NotImplementedError


@dataclass(frozen=True)
class Insert(Step):
    """A row in a transaction that stays open."""

    slot: int
    key: bytes | None

    def happen(self, fleet: Fleet) -> None:
        fleet.insert(self.slot, self.key)


@dataclass(frozen=True)
class End(Step):
    """The end of such a transaction, however late; then others go on that waited for its locks."""

    slot: int
    commits: bool
    waiting: int

    def happen(self, fleet: Fleet) -> None:
        fleet.end(self.slot, commits=self.commits, waiting=self.waiting)


@dataclass(frozen=True)
class Burst(Step):
    """Rows of a transaction that commits at once."""

    rows: int

    def happen(self, fleet: Fleet) -> None:
        for number in range(self.rows):
            fleet.insert(-1, KEYS[number % len(KEYS)])
        fleet.end(-1, commits=True)


@dataclass(frozen=True)
class _OfRelay(Step):
    who: int

    def happen(self, fleet: Fleet) -> None:
        running = fleet.running()
        if running:
            self.befall(fleet, running[self.who % len(running)])

    def befall(self, fleet: Fleet, relay: Relay, /) -> None:
        """Do it to this relay."""
        raise NotImplementedError


@dataclass(frozen=True)
class Run(_OfRelay):
    """A relay makes so many calls, while the others stand still; fewer if it gets to a certain moment."""

    calls: int
    until: str = ""

    def befall(self, _: Fleet, relay: Relay) -> None:
        relay.advance(self.calls, until=self.until)


@dataclass(frozen=True)
class Start(Step):
    """One more relay."""

    def happen(self, fleet: Fleet) -> None:
        if len(fleet.running()) < MOST_RELAYS:
            fleet.start()


@dataclass(frozen=True)
class Kill(_OfRelay):
    """kill -9, with part of its batch on the way; the server may notice later."""

    arriving: int
    noticed: bool

    def befall(self, fleet: Fleet, relay: Relay) -> None:
        fleet.kill(relay, arriving=self.arriving, noticed=self.noticed)


@dataclass(frozen=True)
class Terminate(_OfRelay):
    """SIGTERM."""

    def befall(self, _: Fleet, relay: Relay) -> None:
        relay.terminate()


@dataclass(frozen=True)
class EndSession(_OfRelay):
    """The server ends a relay's session, which the relay learns at its next call."""

    def befall(self, fleet: Fleet, relay: Relay) -> None:
        fleet.table.terminate(relay.store)


@dataclass(frozen=True)
class Fail(_OfRelay):
    """The next call of one side fails, before it has taken effect or after."""

    side: str

    def befall(self, _: Fleet, relay: Relay) -> None:
        relay.next_error[self.side] = LOST if self.side == "store" else AWAY


@dataclass(frozen=True)
class Outage(Step):
    """The database, the brokers or the dead-letter topic cannot be reached."""

    side: str

    def happen(self, fleet: Fleet) -> None:
        if self.side == "store":
            fleet.table.down = LOST
        elif self.side == "broker":
            fleet.topic.down = AWAY
        else:
            fleet.letters.down = AWAY


@dataclass(frozen=True)
class Hang(Step):
    """The broker takes what it is sent, and answers nobody."""

    def happen(self, fleet: Fleet) -> None:
        fleet.topic.paused = True


@dataclass(frozen=True)
class Trickle(Step):
    """So many messages of a client arrive at once."""

    at_once: int

    def happen(self, fleet: Fleet) -> None:
        fleet.topic.at_once = self.at_once


@dataclass(frozen=True)
class Vanish(Step):
    """The broker goes away after so many more messages, which it has."""

    after: int

    def happen(self, fleet: Fleet) -> None:
        fleet.topic.breaks_after = self.after


@dataclass(frozen=True)
class Lock(Step):
    """Somebody locks the rows, so that none can be settled."""

    def happen(self, fleet: Fleet) -> None:
        fleet.locked = True


@dataclass(frozen=True)
class Calm(Step):
    """All of that is over, and the server has noticed which relays are dead."""

    def happen(self, fleet: Fleet) -> None:
        fleet.calm()


@dataclass(frozen=True)
class Refuse(Step):
    """Some rows are at fault, until other rows are."""

    modulus: int
    rest: int

    def happen(self, fleet: Fleet) -> None:
        fleet.topic.refuses = lambda row: row.id % self.modulus == self.rest


_who = st.integers(0, MOST_RELAYS - 1)
_slot = st.integers(0, 2)
_moments = st.sampled_from(
    [
        *("after open", "after rebalance", "after read", "before ask", "after ask"),
        *("before publish", "after publish", "after wait", "before settle", "after settle"),
    ]
)
_step = st.one_of(
    *[st.builds(Run, who=_who, calls=st.integers(1, 60))] * 5,
    *[st.builds(Run, who=_who, calls=st.just(200), until=_moments)] * 4,
    *[st.builds(Burst, rows=st.integers(1, 20))] * 4,
    *[st.builds(Insert, slot=_slot, key=st.sampled_from(KEYS))] * 4,
    *[st.builds(End, slot=_slot, commits=st.booleans(), waiting=st.integers(0, 2))] * 3,
    *[st.builds(Refuse, modulus=st.integers(2, 5), rest=st.integers(0, 5))] * 2,
    st.builds(Start),
    st.builds(Kill, who=_who, arriving=st.integers(0, 6), noticed=st.booleans()),
    st.builds(Terminate, who=_who),
    st.builds(EndSession, who=_who),
    st.builds(Fail, who=_who, side=st.sampled_from(["store", "broker", "letters"])),
    st.builds(Outage, side=st.sampled_from(["store", "broker", "letters"])),
    st.builds(Hang),
    st.builds(Trickle, at_once=st.integers(1, 2)),
    st.builds(Vanish, after=st.integers(0, 8)),
    st.builds(Lock),
    *[st.builds(Calm)] * 3,
)
# Drawn long, since short ones find little; a failure shrinks to a short one, as None is the simplest step.
steps: st.SearchStrategy[list[Step]] = st.lists(st.none() | _step, min_size=30, max_size=60).map(
    lambda drawn: [step for step in drawn if step is not None]
)
settings_of_fleets: st.SearchStrategy[Setting] = st.builds(
    Setting,
    lanes=st.integers(1, 8),
    batch_rows=st.integers(1, 8),
    policy=st.sampled_from(["Park", "DeadLetter", "Halt"]),
    attempts=st.integers(1, 2),
    max_parked_keys=st.sampled_from([1000, 2, 1]),
    rebalance_seconds=st.sampled_from([0.1, 0.001, 1.0]),
    announced=st.booleans(),
)
