"""Autoscaling from what was measured to the Deployment, the status and the Event, and over a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Set
from copy import deepcopy
from typing import Any

import pytest

from outboxrelay.report import RelayReport
from outboxrelay_operator.autoscaler import Autoscaler, load_of
from outboxrelay_operator.connections import Connections
from outboxrelay_operator.display import unix
from outboxrelay_operator.kube import Kind
from outboxrelay_operator.measurements import Backlog, ConnectionLimits, Measurement, PairId, PodState, Rates
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.observed import Object
from outboxrelay_operator.pairs import Key, Owner, pairs_of
from outboxrelay_operator.scale import Load
from tests.unit.operator.builders import (
    KEY,
    NOW,
    backlog,
    failure,
    observed,
    pod,
    raw_database,
    raw_spec,
    relay,
    report,
    side,
    spec,
)
from tests.unit.operator.test_reconcile import World

SCALING = {
    "minReplicas": 0,
    "maxReplicas": 4,
    "catchUpSeconds": 60,
    "scaleDownAfterSeconds": 60,
    "idleAfterSeconds": 120,
}
RAW = raw_spec(autoscaling=SCALING)
PAIR = pairs_of(KEY, spec())[0]


class TestLoad:
    """What may be believed."""

    RATES = Rates(arrival=5.0, sent=7.0)

    def load(self, measurement: Measurement | None = None, *pods: PodState, now: float = NOW) -> Load:
        return load_of(measurement, pods, self.RATES, failures=2, now=now)

    def test_a_fresh_measurement(self) -> None:
        assert self.load(backlog(3)) == Load(rows=3, arrival=5.0, sent=7.0)

    def test_an_old_one_is_none(self) -> None:
        old = self.load(backlog(3, believe_until=NOW - 1))
        assert (old.rows, old.arrival, old.failures) == (None, None, 0)

    def test_a_failure_is_counted(self) -> None:
        failed = self.load(failure("DatabaseUnreachable"))
        assert (failed.rows, failed.arrival, failed.failures) == (None, None, 2)

    def test_only_relays_that_are_warm_and_well_show_what_they_can(self) -> None:
        def relay(**changes: Any) -> PodState:
            return pod(report=report(**({"rate_per_second": 9.0} | changes)))

        load = self.load(
            backlog(),
            relay(partitions=6),
            relay(started_at=NOW - 5),
            relay(broker=side(False, "BrokerUnreachable"), parked_total=2),
            pod(ready=False, report=None),
            pod(terminating=True, report=report(rate_per_second=50.0)),
            pod(ready=False, report=report(rate_per_second=50.0), report_believe_until=NOW - 1),
        )
        assert load.pod_rates == (9.0,)
        assert (load.partitions, load.parked, load.blocked) == (6, 2, False)

    def test_what_a_ready_relay_does_not_say_is_not_0(self) -> None:
        assert self.load(backlog(), pod(), pod(report=None)).parked is None

    @pytest.mark.parametrize(
        ("reports", "blocked"),
        [
            ([], False),
            ([report(database=side(False, "Starting"))], False),
            ([report(broker=side(False, "BrokerUnreachable"))], True),
            ([report(broker=side(False, "BrokerUnreachable")), report()], False),
        ],
    )
    def test_when_no_relay_can_send_more_would_not_help(self, reports: list[RelayReport], blocked: bool) -> None:
        assert self.load(backlog(), *(pod(report=each) for each in reports)).blocked is blocked


def scaled_to(autoscaler: Autoscaler, raw: dict[str, Any], *, lost: Set[str] = frozenset()) -> Mapping[str, int]:
    """Decide for a resource of which nothing is known yet, with connections for everybody."""
    seen, memory, connections = observed(raw), Memory(changed=lambda _: None), Connections()
    autoscaler.decide(seen, memory, lost=lost, now=NOW)
    connections.ask(KEY, autoscaler.demands(seen, memory, lost=lost))
    return autoscaler.granted(connections.granted(KEY), now=NOW)


def test_a_pair_that_lost_a_conflict_is_not_scaled() -> None:
    assert scaled_to(Autoscaler(), RAW, lost={PAIR.name}) == {}


@pytest.mark.parametrize("raw", [raw_spec(), raw_spec(autoscaling=SCALING, suspend=True)], ids=["absent", "suspended"])
def test_without_autoscaling_nothing_is_decided(raw: dict[str, Any]) -> None:
    autoscaler = Autoscaler()
    assert scaled_to(autoscaler, RAW) == {PAIR.name: 1}
    assert scaled_to(autoscaler, raw) == {}
    assert autoscaler.next_look(now=NOW) is None


class Scaled(World):
    """One pair under autoscaling, whose measurements the test makes up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.memory = self.reconciler.memory
        self.kube.put(Kind.OUTBOX_RELAY, relay(RAW))
        self.pod_rate: float | None = None

    def see(self, rows: int, **changes: Any) -> None:
        """The next measurement, and one pod with a rate if there is one."""
        self.memory.watch(KEY, [PairId.of(PAIR)])
        seen: Backlog = backlog(rows, at=self.now, believe_until=self.now + 20, **changes)
        rate = self.pod_rate
        one = pod(report=report(rate_per_second=rate or 0.0, now=self.now), report_believe_until=self.now + 20)
        pods = () if rate is None else (one,)
        self.memory.pods_listed({("shop", PAIR.name): pods}, now=self.now)
        self.memory.measured(PairId.of(PAIR), seen)

    async def looks(self, rows: int, *, seconds: float) -> None:
        """Measure and pass every five seconds."""
        for _ in range(round(seconds / 5)):
            self.now += 5
            self.see(rows)
            assert await self.passed(seconds=0) is None

    @property
    def deployed(self) -> int:
        """Pods that the Deployment asks for."""
        body: Object = self.kube.objects[Kind.DEPLOYMENT, "shop", PAIR.name]
        count: int = body["spec"]["replicas"]
        return count

    @property
    def told(self) -> Any:
        """The pair's status."""
        return self.status()["pairs"][0]

    def events(self) -> list[str]:
        """Reasons of the Events about counts that were posted, in order."""
        posted = [body["reason"] for (kind, _, _), body in self.kube.objects.items() if kind is Kind.EVENT]
        return [reason for reason in posted if reason.startswith("Scaled")]


@pytest.fixture
async def scaled(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scaled]:
    world = Scaled()
    monkeypatch.setattr(world.measurer, "measure", lambda *_: None)
    yield world
    await world.measurer.close()


class TestPasses:
    """The Deployment follows, and the status says why."""

    async def test_up_with_the_backlog_down_to_zero_and_awake_again(self, scaled: Scaled) -> None:
        await scaled.passed()
        assert (scaled.deployed, scaled.told["scaling"]["reason"]) == (1, "Initial")
        scaled.pod_rate = 1000.0
        await scaled.looks(200_000, seconds=20)
        assert scaled.deployed == 4
        assert scaled.told["desiredReplicas"] == 4
        assert "200000 wait" in scaled.told["scaling"]["message"]
        assert scaled.told["scaling"]["ratePerPod"] == 1000.0
        scaled.pod_rate = 0.0
        await scaled.looks(0, seconds=70)
        assert scaled.deployed == 1
        scaled.pod_rate = None
        await scaled.looks(0, seconds=60)
        assert scaled.deployed == 0
        assert (scaled.told["scaling"]["reason"], scaled.told["ready"], scaled.told["reason"]) == ("Idle", True, "Idle")
        await scaled.looks(1, seconds=5)
        assert scaled.deployed == 1
        assert scaled.events() == ["ScaledUp", "ScaledDown", "ScaledDown", "ScaledUp"]

    async def test_a_restart_keeps_the_count_while_nothing_is_known(self, scaled: Scaled) -> None:
        scaled.pod_rate = 1000.0
        await scaled.looks(200_000, seconds=30)
        assert scaled.deployed == 4
        after = Scaled()
        after.kube.objects = deepcopy(scaled.kube.objects)
        after.now = scaled.now
        for _ in range(20):
            assert await after.passed() is None
        assert after.deployed == 4
        await after.measurer.close()

    async def test_calm_that_nobody_watched_scales_nothing_down(self, scaled: Scaled) -> None:
        """The operator is away for longer than the window, and what it saw before is less than the window."""
        scaled.pod_rate = 1000.0
        await scaled.looks(200_000, seconds=30)
        scaled.pod_rate = 100.0
        await scaled.looks(5, seconds=45)
        assert scaled.deployed == 4
        after = Scaled()
        after.kube.objects, after.pod_rate = deepcopy(scaled.kube.objects), 100.0
        after.now = scaled.now + 7200
        counts = [after.deployed]
        await after.looks(5, seconds=10)
        counts.append(after.deployed)
        assert counts == [4, 4]
        [calm, *_] = after.told["scaling"]["calm"]
        assert after.now - unix(calm["since"]) < 60
        await after.measurer.close()

    async def test_at_rest_nothing_is_written(self, scaled: Scaled) -> None:
        scaled.pod_rate = 1000.0
        await scaled.looks(200_000, seconds=30)
        scaled.pod_rate = 300.0
        await scaled.looks(5, seconds=240)
        assert scaled.deployed == 1
        scaled.kube.writes.clear()
        await scaled.looks(5, seconds=120)
        assert scaled.kube.writes == []

    async def test_it_is_looked_at_when_a_window_ends(self, scaled: Scaled) -> None:
        await scaled.looks(0, seconds=5)
        scaled.pod_rate = 0.0
        await scaled.looks(0, seconds=110)
        scaled.wakes.clear()
        scaled.now += 4
        assert await scaled.passed(seconds=0) is None
        assert scaled.wakes[-1][1] < 10

    async def test_suspending_stops_all_and_resuming_starts_one(self, scaled: Scaled) -> None:
        await scaled.looks(0, seconds=5)
        for suspend, count in ((True, 0), (False, 1)):
            scaled.kube.put(Kind.OUTBOX_RELAY, relay(RAW | {"suspend": suspend}))
            scaled.fleet.invalidate(KEY)
            await scaled.looks(0, seconds=5)
            assert scaled.deployed == count

    async def test_what_there_was_before_stays_until_the_load_is_known(self, scaled: Scaled) -> None:
        scaled.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(replicas=3)))
        await scaled.passed()
        assert scaled.deployed == 3
        scaled.kube.put(Kind.OUTBOX_RELAY, relay(RAW))
        scaled.fleet.invalidate(KEY)
        await scaled.passed()
        assert scaled.deployed == 3
        scaled.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(replicas=2)))
        scaled.fleet.invalidate(KEY)
        await scaled.passed()
        assert scaled.deployed == 2
        assert "scaling" not in scaled.told


class TestConnectionBudget:
    """There may be no connections for as many relays as the load asks for."""

    @pytest.fixture
    async def tight(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scaled]:
        world = Scaled(relays_per_server=3)
        monkeypatch.setattr(world.measurer, "measure", lambda *_: None)
        yield world
        await world.measurer.close()

    def other(self, world: Scaled, replicas: int, *, name: str = "fixed") -> Key:
        """Another OutboxRelay on the server, whose count somebody set."""
        key = Key("shop", name)
        raw = raw_spec(databases=[raw_database(dbname="another")], replicas=replicas)
        world.kube.put(
            Kind.OUTBOX_RELAY, relay(raw, owner=Owner(key=key, uid="uid-fixed", created="2026-01-02T00:00:00Z"))
        )
        world.fleet.invalidate(key)
        return key

    async def test_the_count_keeps_to_it_and_says_so_once(self, tight: Scaled) -> None:
        tight.pod_rate = 10.0
        await tight.looks(100_000, seconds=60)
        assert tight.deployed == 3
        assert tight.told["desiredReplicas"] == 3
        scaling = tight.told["scaling"]
        assert scaling["reason"] == "ConnectionBudget"
        assert scaling["message"] == "4 wanted; all relays together may hold 3 connections on orders-db.shop:5432"
        await tight.looks(90_000, seconds=60)
        assert tight.told["scaling"]["changedAt"] == scaling["changedAt"]
        assert tight.events() == ["ScaledUp"]

    async def test_what_others_take_and_give_back_is_followed(self, tight: Scaled) -> None:
        tight.pod_rate = 10.0
        await tight.looks(100_000, seconds=60)
        key = self.other(tight, 1)
        tight.wakes.clear()
        await tight.passed(key)
        assert (KEY, 0.0) in tight.wakes
        await tight.looks(100_000, seconds=5)
        assert tight.deployed == 2
        tight.kube.drop(Kind.OUTBOX_RELAY, "shop", "fixed")
        tight.fleet.invalidate(key)
        await tight.passed(key)
        await tight.looks(100_000, seconds=5)
        assert tight.deployed == 3

    async def test_a_pair_without_a_connection_is_not_called_idle(self, tight: Scaled) -> None:
        await tight.passed(self.other(tight, 3))
        tight.pod_rate = None
        await tight.looks(100, seconds=30)
        assert tight.deployed == 0
        assert (tight.told["ready"], tight.told["reason"]) == (False, "ConnectionBudget")
        assert "orders-db.shop:5432" in tight.told["message"]

    async def test_a_restart_goes_on_from_what_was_granted(self, tight: Scaled) -> None:
        tight.pod_rate = 10.0
        await tight.looks(100_000, seconds=60)
        after = Scaled(relays_per_server=3)
        after.kube.objects, after.now, after.pod_rate = tight.kube.objects, tight.now, 10.0
        applied = len(after.kube.writes)
        await after.looks(100_000, seconds=60)
        assert after.deployed == 3
        assert not [write for write in after.kube.writes[applied:] if write[1] == "Deployment"]
        await after.measurer.close()

    async def test_what_the_server_admits_is_the_budget_without_one(self, scaled: Scaled) -> None:
        admitted = ConnectionLimits(server=97, database=None, role=4, role_name="relay")
        scaled.pod_rate = 10.0
        for _ in range(12):
            scaled.now += 5
            scaled.see(100_000, connections=admitted)
            assert await scaled.passed(seconds=0) is None
        assert scaled.deployed == 2
        assert "as role relay" in scaled.told["scaling"]["message"]

    @pytest.mark.parametrize(("budget", "relays"), [(5, 2), (1, 1)])
    async def test_a_relay_that_looks_counts_with_both_its_sessions(
        self, budget: int, relays: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`secretAccess: false`: and one stays in any case, or nobody would see the next row."""
        world = Scaled(secret_access=False, relays_per_server=budget)
        monkeypatch.setattr(world.measurer, "measure", lambda *_: None)
        await world.passed(self.other(world, 1))
        world.pod_rate = 10.0
        await world.looks(100_000, seconds=60)
        assert world.deployed == relays
        assert world.told["scaling"]["reason"] == "ConnectionBudget"
        await world.measurer.close()
