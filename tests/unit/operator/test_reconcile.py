"""Whole passes over one OutboxRelay, against an API server in memory that fails in the ways of the real one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.connections import Connections
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.fleet import Fleet
from outboxrelay_operator.kube import Kind, Kube, KubeError
from outboxrelay_operator.measure.loop import DatabaseMeasurer, Measurer
from outboxrelay_operator.measure.relays import RelayMeasurer
from outboxrelay_operator.measure.server import LoginId
from outboxrelay_operator.measure.session import MeasureError, Session
from outboxrelay_operator.measurements import PairId
from outboxrelay_operator.memory import Memory
from outboxrelay_operator.metrics import Metrics
from outboxrelay_operator.observed import Observed
from outboxrelay_operator.pairs import Key, Owner, pairs_of
from outboxrelay_operator.reconcile import (
    FORBIDDEN_SECONDS,
    HELD_BACK_SECONDS,
    START_SECONDS,
    STEADY_SECONDS,
    TAKEN_SECONDS,
    UNSAID_SECONDS,
    WAITING_SECONDS,
    Reconciler,
)
from outboxrelay_operator.rollouts import Rollouts
from outboxrelay_operator.secret_reader import SecretReader
from outboxrelay_operator.writer import Writer
from tests.unit.operator.builders import (
    IMAGE,
    KEY,
    NOW,
    OWNER,
    backlog,
    pod,
    raw_database,
    raw_spec,
    raw_topic,
    relay,
    report,
    side,
)
from tests.unit.operator.fake_kube import FakeKube

TWO = raw_spec(databases=[raw_database(), raw_database("payments")])


def forbidden(step: str = "reading") -> KubeError:
    return KubeError(step, status=403, reason="Forbidden", message="no right")


class World:
    """A reconciler, what it talks to, and the time."""

    def __init__(self, *, secret_access: bool = True, relays_per_server: int | None = None) -> None:
        self.now = NOW
        self.kube = FakeKube()
        self.wakes: list[tuple[Key, float]] = []
        self.pressed = False
        self.fleet = Fleet(clock=self.clock)
        self.memory = memory = Memory(changed=lambda _: None)
        self.measurer: Measurer = RelayMeasurer(report=memory.measured)
        if secret_access:
            self.measurer = DatabaseMeasurer(
                connect=self._connect,
                report=memory.measured,
                interval=5,
                clock=self.clock,
                wall=self.clock,
                chance=lambda: 0.5,
            )
        self.reconciler = Reconciler(
            kube=self.kube,
            fleet=self.fleet,
            secrets=SecretReader(self.kube, clock=self.clock) if secret_access else None,
            memory=memory,
            measurer=self.measurer,
            writer=Writer(kube=self.kube, pod="operator-0"),
            metrics=Metrics(
                statuses=lambda: self.fleet.statuses,
                queue_depth=lambda: 0,
                rollouts_queued=lambda: 0,
                fields_missing=lambda: 0,
            ),
            image=IMAGE,
            rollouts=Rollouts(limit=1),
            connections=Connections(per_server=relays_per_server),
            network=None,
            pressed=lambda: self.pressed,
            wake=lambda key, seconds: self.wakes.append((key, seconds)),
            wall=self.clock,
        )
        for name in ("orders", "payments"):
            data = {"username": "dQ==", "password": "cA=="}
            self.kube.put(Kind.SECRET, {"metadata": {"namespace": "shop", "name": f"{name}-db"}, "data": data})

    def clock(self) -> float:
        return self.now

    async def _connect(self, login: LoginId) -> Session:
        raise MeasureError("DatabaseUnreachable", f"nothing listens at {login.database.host}", session_lost=True)

    async def passed(self, key: Key = KEY, *, seconds: float = 1.0) -> KubeError | None:
        """One pass, after some time; what it raised."""
        self.now += seconds
        try:
            await self.reconciler.reconcile(key)
        except KubeError as error:
            return error
        return None

    def kube_names(self, kind: Kind) -> list[str]:
        """Names of the objects of a kind that there are."""
        return [name for its_kind, _, name in self.kube.objects if its_kind is kind]

    def applied(self, kind: str) -> list[str]:
        """Names of the objects of a kind that were sent, in order."""
        return [name for verb, its_kind, name in self.kube.writes if (verb, its_kind) == ("apply", kind)]

    def status(self, key: Key = KEY) -> Any:
        """The status that is stored."""
        stored = self.kube.objects[Kind.OUTBOX_RELAY, key.namespace, key.name]
        return stored.get("status")

    def reasons(self) -> dict[str, str]:
        """Reason by the pair's database."""
        return {pair["database"]: pair["reason"] for pair in self.status()["pairs"]}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.measurer.close()


class TestStart:
    """A new leader knows nothing yet, which is no reason to say so over what still holds."""

    async def test_a_status_that_holds_stays_until_there_is_something_to_say(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        written = deepcopy(world.status())
        written["conditions"][0]["message"] = "as the leader before saw it"
        world.kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name]["status"] = deepcopy(written)
        after = World()
        after.kube.objects = world.kube.objects
        await after.passed()
        assert after.status() == written
        assert after.wakes[-1] == (KEY, STEADY_SECONDS)
        await after.passed(seconds=START_SECONDS)
        assert after.status() != written
        await after.measurer.close()

    async def test_a_clock_that_is_set_back_keeps_nobody_waiting(self) -> None:
        world = World(secret_access=False)
        stored = world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        before = deepcopy(world.status())
        world.kube.put(Kind.OUTBOX_RELAY, stored | {"status": before | {"pairsReady": "7/7"}})
        world.fleet.invalidate(KEY)
        await world.passed(seconds=-3600)
        assert world.status()["pairsReady"] == before["pairsReady"]

    async def test_a_status_of_another_generation_does_not_hold(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        after = World()
        after.kube.objects = world.kube.objects
        after.kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name]["metadata"]["generation"] = 2
        await after.passed()
        assert after.status()["observedGeneration"] == 2
        await after.measurer.close()


class TestExchange:
    """Two pairs of one table get each other's topic."""

    def _routed(self, one: str, two: str) -> dict[str, Any]:
        return raw_spec(topics=[raw_topic("a", topic=one, match=["a"]), raw_topic("b", topic=two, match=["b"])])

    async def _edited(self, world: World) -> list[str]:
        """The names of the Deployments that run at the moment of the edit."""
        world.kube.put(Kind.OUTBOX_RELAY, relay(self._routed("one", "two")))
        await world.passed()
        names = sorted(world.applied("Deployment"))
        world.kube.put(Kind.OUTBOX_RELAY, relay(self._routed("two", "one"), generation=2))
        world.fleet.invalidate(KEY)
        world.kube.writes.clear()
        world.wakes.clear()
        return names

    async def _edited_and_refused(self, world: World) -> None:
        names = await self._edited(world)
        error = KubeError("deleting", status=403, reason="Forbidden", message="no")
        world.kube.refuse |= dict.fromkeys(names, error)

    async def test_a_deletion_that_fails_is_not_tried_in_a_hurry(self, world: World) -> None:
        """Whoever starts the next pass at once starts the one after that, too, and nobody else gets his turn."""
        await self._edited_and_refused(world)
        for _ in range(4):
            with contextlib.suppress(KubeError):
                await world.passed()
        assert world.wakes
        assert min(seconds for _, seconds in world.wakes) > 0.5

    async def test_a_deletion_that_is_refused_is_told_of(self, world: World) -> None:
        """Until it is made, also of the pair that waits for its own next attempt."""
        await self._edited_and_refused(world)
        for _ in range(2):
            with contextlib.suppress(KubeError):
                await world.passed()
            status = world.status() or {}
            assert [pair["reason"] for pair in status["pairs"]] == ["ApplyRefused", "ApplyRefused"]
        world.kube.refuse.clear()
        world.now += START_SECONDS
        for _ in range(2):
            await world.passed()
        status = world.status() or {}
        assert "ApplyRefused" not in [pair["reason"] for pair in status["pairs"]]

    async def test_both_are_made_anew_at_once(self, world: World) -> None:
        """Replaced pod by pod they would wait for each other for ever."""
        names = await self._edited(world)
        await world.passed()
        assert (KEY, 0.0) in world.wakes
        assert (sorted(world.kube_names(Kind.DEPLOYMENT)), world.applied("Deployment")) == ([], [])
        await world.passed()
        assert sorted(world.kube_names(Kind.DEPLOYMENT)) == names
        assert (
            sorted(name for verb, kind, name in world.kube.writes if (verb, kind) == ("delete", "Deployment")) == names
        )
        world.kube.writes.clear()
        await world.passed()
        assert [write for write in world.kube.writes if write[1] == "Deployment"] == []


class TestBurst:
    """A thousand resources are created at once: what they want comes before what there is to report."""

    async def test_that_relays_start_is_told_when_the_others_are_served(self, world: World) -> None:
        world.pressed = True
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        assert (len(world.applied("Deployment")), world.status()) == (1, None)
        assert world.wakes[-1] == (KEY, HELD_BACK_SECONDS)
        world.pressed = False
        await world.passed(seconds=HELD_BACK_SECONDS)
        assert set(world.reasons().values()) == {"Starting"}

    async def test_it_is_told_after_a_while_in_any_case(self, world: World) -> None:
        world.pressed = True
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        await world.passed(seconds=UNSAID_SECONDS - 1)
        assert world.status() is None
        await world.passed()
        assert world.status()["pairsTotal"] == 1

    async def test_what_is_wrong_is_told_at_once(self, world: World) -> None:
        world.pressed = True
        world.kube.drop(Kind.SECRET, KEY.namespace, "orders-db")
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        assert set(world.reasons().values()) == {"SecretMissing"}


class TestRollouts:
    """Who waits for a place because the operator is a new one (OS-06)."""

    async def test_an_edit_that_fails_at_first_is_carried_out_without_one(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        [name] = world.applied("Deployment")
        status = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
        world.kube.objects[Kind.DEPLOYMENT, "shop", name]["status"] = status
        world.fleet.invalidate(KEY)
        await world.passed()
        assert world.reconciler.rollouts.ask(Key("shop", "another"))
        world.reconciler.image = RelayImage(name="relay:new", pull_policy="IfNotPresent")
        world.fleet.invalidate(KEY)
        await world.passed()
        assert world.applied("Deployment") == [name]
        edited = world.kube.objects[Kind.OUTBOX_RELAY, "shop", KEY.name]
        world.kube.put(Kind.OUTBOX_RELAY, edited | {"spec": raw_spec(topics=[raw_topic(topic="elsewhere")])})
        world.kube.refuse[name] = KubeError("applying", status=500, reason="InternalError", message="a webhook is away")
        world.fleet.invalidate(KEY)
        assert await world.passed() is world.kube.refuse[name]
        assert world.status()["observedGeneration"] == 2
        world.kube.refuse.clear()
        assert await world.passed(seconds=120) is None
        assert world.applied("Deployment") == [name, name]


class TestEdits:
    """What is known of a pair is known of its rows, and not of those that an edit gives it."""

    async def test_a_backlog_is_not_told_of_another_table(self) -> None:
        world = World(secret_access=False)
        raw = raw_spec(databases=[raw_database(host="a")])
        stored = world.kube.put(Kind.OUTBOX_RELAY, relay(raw))
        await world.passed()
        world.memory.pods_listed({}, now=world.now)
        for _ in range(3):
            [before] = pairs_of(KEY, OutboxRelaySpec.model_validate(raw))
            world.memory.measured(PairId.of(before), backlog(7, at=world.now, believe_until=world.now + 20))
            await world.passed(seconds=5)
        assert world.status()["pairs"][0]["backlog"] == 7
        login = raw_database(host="a", credentialsSecretRef={"name": "payments-db"})
        world.kube.put(Kind.OUTBOX_RELAY, stored | {"spec": raw_spec(databases=[login])})
        world.fleet.invalidate(KEY)
        await world.passed()
        assert world.status()["pairs"][0]["backlog"] == 7, "the rows are the same, whoever looks at them"
        world.kube.put(Kind.OUTBOX_RELAY, stored | {"spec": raw_spec(databases=[raw_database(host="b")])})
        world.fleet.invalidate(KEY)
        await world.passed()
        world.memory.measured(PairId.of(before), backlog(8, at=world.now, believe_until=world.now + 20))
        await world.passed()
        status = world.status()
        assert status["observedGeneration"] == 3
        assert not {"backlog", "lagSeconds", "arrivalPerSecond", "measuredAt"} & status["pairs"][0].keys()
        [measured] = [one for one in status["conditions"] if one["type"] == "Measured"]
        assert (measured["status"], measured["reason"]) == ("Unknown", "NotMeasured")


async def test_what_changed_is_read_again_after_a_read_that_failed_unexpectedly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the passes that follow go by what was known before, and so does what events tell of meanwhile."""

    async def broken(_kube: Kube, _key: Key) -> Observed | None:
        raise RuntimeError("a fault of our own")

    world.kube.put(Kind.OUTBOX_RELAY, relay())
    await world.passed()
    known = world.kube.objects[Kind.OUTBOX_RELAY, "shop", KEY.name]
    edited = world.kube.put(Kind.OUTBOX_RELAY, known | {"spec": raw_spec(topics=[raw_topic(topic="elsewhere")])})
    world.fleet.told_of_relay(KEY, edited)
    with monkeypatch.context() as patched:
        patched.setattr("outboxrelay_operator.reconcile.gather", broken)
        with pytest.raises(RuntimeError):
            await world.passed()
    await world.passed()
    assert world.status()["observedGeneration"] == 2


class TestForbidden:
    """A right that is missing for a while says nothing about the resource."""

    async def test_one_refusal_changes_nothing_and_is_tried_again(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        status = world.fleet.statuses[KEY]
        world.fleet.invalidate(KEY)
        world.kube.fail_with = forbidden()
        assert await world.passed() is world.kube.fail_with
        assert world.fleet.size == 1
        assert world.fleet.statuses[KEY] == status
        world.kube.fail_with = None
        world.kube.drop(Kind.DEPLOYMENT, "shop", world.applied("Deployment")[0])
        assert await world.passed() is None
        assert len(world.applied("Deployment")) == 2

    async def test_the_claims_of_one_that_cannot_be_read_hold_for_long_and_then_end(self, world: World) -> None:
        """Its namespace was deleted, and nobody may be told: the younger one must not wait for it for ever."""
        young = Owner(key=Key("shop", "young"), uid="uid-young", created="2026-02-01T00:00:00Z")
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        world.kube.put(Kind.OUTBOX_RELAY, relay(owner=young))
        await world.passed()
        await world.passed(young.key)
        assert world.fleet.lost(young.key)
        world.fleet.invalidate(KEY)
        world.kube.fail_with = forbidden()
        await world.passed()
        await world.passed(seconds=FORBIDDEN_SECONDS - 1)
        assert world.fleet.lost(young.key)
        world.wakes.clear()
        assert await world.passed() is world.kube.fail_with
        assert not world.fleet.lost(young.key)
        assert (young.key, 0.0) in world.wakes
        world.kube.fail_with = None
        await world.passed()
        assert world.fleet.lost(young.key)

    async def test_a_right_that_comes_and_goes_is_no_long_absence(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        for _ in range(3):
            world.kube.fail_with = None
            assert await world.passed() is None
            world.kube.fail_with = forbidden()
            world.fleet.invalidate(KEY)
            assert await world.passed(seconds=FORBIDDEN_SECONDS - 1) is not None
        assert world.fleet.size == 1


class TestUnreadableSecret:
    """One Secret that cannot be read concerns the pairs that need it, and no other."""

    @pytest.mark.parametrize("status", [403, 500])
    async def test_the_other_pairs_are_served_and_it_is_said(self, world: World, status: int) -> None:
        error = KubeError("trying to get secrets shop/payments-db", status=status, reason="R", message="no right")
        world.kube.put(Kind.OUTBOX_RELAY, relay(TWO))
        world.kube.unreadable["payments-db"] = error
        assert await world.passed() is None
        assert len(world.applied("Deployment")) == 1
        assert world.reasons() == {"orders": "Starting", "payments": "SecretUnreadable"}
        [message] = [pair["message"] for pair in world.status()["pairs"] if pair["database"] == "payments"]
        assert "shop/payments-db" in message
        assert "no right" in message
        del world.kube.unreadable["payments-db"]
        assert await world.passed(seconds=WAITING_SECONDS) is None
        assert len(world.applied("Deployment")) == 2

    async def test_it_is_looked_at_often_until_it_can_be_read(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        world.kube.unreadable["orders-db"] = forbidden()
        await world.passed()
        assert world.wakes[-1] == (KEY, WAITING_SECONDS)

    async def test_what_was_known_of_it_counts_for_a_while(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        world.kube.unreadable["orders-db"] = forbidden()
        await world.passed(seconds=30)
        assert world.reasons() == {"orders": "Starting"}
        await world.passed(seconds=31)
        assert world.reasons() == {"orders": "SecretUnreadable"}

    @pytest.mark.parametrize("status", [0, 429])
    async def test_an_api_server_that_answers_nobody_is_no_finding(self, world: World, status: int) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        error = KubeError("reading", status=status, reason="R", message="busy")
        world.kube.unreadable["orders-db"] = error
        assert await world.passed() is error
        assert world.status() is None


class TestConfigMap:
    """It may hold what others wrote, and pods may still start with what it held before."""

    def data(self, world: World) -> dict[str, str]:
        data: dict[str, str] = world.kube.objects[Kind.CONFIG_MAP, "shop", "shop-relays"]["data"]
        return data

    def rolled_out(self, world: World) -> None:
        for (kind, _, _), body in world.kube.objects.items():
            if kind is Kind.DEPLOYMENT:
                number = {"observedGeneration": body["metadata"]["generation"]}
                body["status"] = number | {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
        world.fleet.invalidate(KEY)

    async def test_the_configuration_of_running_pods_stays_until_the_next_one_is_rolled_out(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        self.rolled_out(world)
        await world.passed()
        [old] = self.data(world)
        world.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(topics=[raw_topic(topic="v2")])))
        world.fleet.invalidate(KEY)
        for _ in range(3):
            await world.passed()
            assert len(self.data(world)) == 2
            assert old in self.data(world)
            world.fleet.invalidate(KEY)
        self.rolled_out(world)
        await world.passed()
        assert len(self.data(world)) == 1
        assert old not in self.data(world)

    async def test_what_somebody_adds_is_left_and_costs_nothing(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        self.data(world)["note"] = "mine"
        self.data(world)[f"{world.applied('Deployment')[0]}.0000.json"] = "mine, too"
        world.kube.writes.clear()
        self.rolled_out(world)
        for _ in range(3):
            await world.passed()
            world.fleet.invalidate(KEY)
        assert world.applied("ConfigMap") == []
        assert len(self.data(world)) == 3

    async def test_what_somebody_changes_or_removes_is_repaired(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        [(key, text)] = self.data(world).items()
        for edit in ({key: "changed"}, {}):
            world.kube.objects[Kind.CONFIG_MAP, "shop", "shop-relays"]["data"] = edit
            world.fleet.invalidate(KEY)
            await world.passed()
            assert self.data(world) == {key: text}

    async def test_one_of_somebody_else_is_left_alone(self, world: World) -> None:
        theirs = {"metadata": {"namespace": "shop", "name": "shop-relays"}, "data": {"users": "own"}}
        world.kube.put(Kind.CONFIG_MAP, deepcopy(theirs))
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        assert await world.passed() is None
        assert world.reasons() == {"orders": "NameTaken"}
        assert "ownerReferences" not in world.kube.objects[Kind.CONFIG_MAP, "shop", "shop-relays"]["metadata"]
        assert self.data(world) == theirs["data"]
        reads = world.kube.asked.count("shop-relays")
        assert world.wakes[-1] == (KEY, TAKEN_SECONDS)
        for _ in range(5):
            await world.passed()
        assert world.kube.asked.count("shop-relays") == reads
        # Nobody tells the operator.
        world.kube.drop(Kind.CONFIG_MAP, "shop", "shop-relays")
        await world.passed(seconds=max(START_SECONDS, TAKEN_SECONDS))
        assert world.reasons() == {"orders": "Starting"}

    async def test_one_of_a_resource_that_had_the_name_before_is_taken_over(self, world: World) -> None:
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        await world.passed()
        [name] = world.applied("Deployment")
        world.kube.drop(Kind.OUTBOX_RELAY, "shop", "shop")
        world.kube.drop(Kind.DEPLOYMENT, "shop", name)
        world.fleet.invalidate(KEY)
        await world.passed()
        world.kube.put(Kind.OUTBOX_RELAY, relay(owner=replace(OWNER, uid="uid-again")))
        await world.passed()
        [reference] = world.kube.objects[Kind.CONFIG_MAP, "shop", "shop-relays"]["metadata"]["ownerReferences"]
        assert reference["uid"] == "uid-again"
        assert world.applied("Deployment") == [name, name]


async def test_a_refused_object_wakes_its_resource_when_it_may_be_sent_again(world: World) -> None:
    world.kube.put(Kind.OUTBOX_RELAY, relay())
    await world.passed()
    [name] = world.applied("Deployment")
    world.kube.drop(Kind.DEPLOYMENT, "shop", name)
    world.fleet.invalidate(KEY)
    world.kube.refuse[name] = forbidden("applying")
    for seconds in (1, 1, 2, 4):
        assert await world.passed(seconds=seconds) is not None
    world.wakes.clear()
    assert await world.passed() is None
    assert world.reasons() == {"orders": "ApplyRefused"}
    assert world.wakes[-1] == (KEY, 7.0)


class TestWithoutSecrets:
    """`secretAccess: false`: the operator never reads a Secret, nor a pod for the sake of one."""

    async def test_no_secret_is_read_and_the_relays_are_deployed(self) -> None:
        world = World(secret_access=False)
        refused_login = report(database=side(False, "AuthenticationFailed"))
        world.kube.put(Kind.OUTBOX_RELAY, relay())
        world.kube.drop(Kind.SECRET, "shop", "orders-db")
        for _ in range(3):
            assert await world.passed() is None
            [name] = world.kube_names(Kind.DEPLOYMENT)
            pods = {("shop", name): (pod(report=refused_login, report_believe_until=world.now + 20),)}
            world.memory.pods_listed(pods, now=world.now)
        assert "orders-db" not in world.kube.asked
        assert not [write for write in world.kube.writes if write[1] == "Pod"]

    async def test_no_pair_sleeps(self) -> None:
        world = World(secret_access=False)
        autoscaling = {"minReplicas": 0, "maxReplicas": 4, "idleAfterSeconds": 60}
        world.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(autoscaling=autoscaling)))
        await world.passed()
        [name] = world.kube_names(Kind.DEPLOYMENT)
        [pair] = pairs_of(KEY, OutboxRelaySpec.model_validate(raw_spec()))
        pair_id = PairId.of(pair)
        for _ in range(30):
            now = world.now
            world.memory.pods_listed({("shop", name): (pod(report_believe_until=now + 20),)}, now=now)
            world.memory.measured(pair_id, backlog(0, at=now, believe_until=now + 20))
            await world.passed(seconds=10)
        assert world.kube.objects[Kind.DEPLOYMENT, "shop", name]["spec"]["replicas"] == 1
        [told] = world.status()["pairs"]
        assert told["scaling"]["reason"] == "KeptToMeasure"


async def test_what_is_measured_is_known_before_a_relay_can_serve_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relays that run when the rows of a pair are edited serve those of before, and all later ones the new ones."""
    applied: list[int] = []
    monkeypatch.setattr(world.measurer, "measure", lambda *_: applied.append(len(world.applied("Deployment"))))
    for raw in (raw_spec(), raw_spec(databases=[raw_database(dbname="elsewhere")])):
        world.kube.put(Kind.OUTBOX_RELAY, relay(raw))
        world.fleet.invalidate(KEY)
        await world.passed()
    assert (applied, len(world.applied("Deployment"))) == ([0, 1], 2)
