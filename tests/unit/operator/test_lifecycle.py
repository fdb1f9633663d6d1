"""What becomes of an OutboxRelay's objects when a Secret, a count or the resource itself changes, over whole passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy

import pytest

from outboxrelay_operator.kube import Kind
from outboxrelay_operator.pairs import Key, Owner
from outboxrelay_operator.reconcile import SECRET_AGE_SECONDS
from tests.unit.operator.builders import KEY, OWNER, pod, raw_database, raw_spec, relay
from tests.unit.operator.test_reconcile import World

OTHER = Owner(key=Key("shop", "other"), uid="uid-other", created=OWNER.created)
SHARING = 50
"""OutboxRelays that use one Secret."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.measurer.close()


def replicas(world: World) -> list[int]:
    """Of every Deployment there is."""
    return [world.kube.objects[Kind.DEPLOYMENT, "shop", name]["spec"]["replicas"] for name in deployments(world)]


def deployments(world: World) -> list[str]:
    return world.kube_names(Kind.DEPLOYMENT)


def edit(world: World, key: Key = KEY, **spec: object) -> None:
    """Change fields of a resource's spec, as `kubectl edit` and the scale subresource do."""
    stored = world.kube.objects[Kind.OUTBOX_RELAY, key.namespace, key.name]
    world.kube.put(Kind.OUTBOX_RELAY, stored | {"spec": stored["spec"] | spec})
    world.fleet.invalidate(key)


@pytest.mark.parametrize("first", [Kind.SECRET, Kind.DEPLOYMENT, Kind.CONFIG_MAP])
async def test_ol_02_what_is_going_gets_nothing_new(world: World, first: Kind) -> None:
    """cases.md OL-02: as `kubectl delete --cascade=foreground` leaves it; another resource does not notice."""
    world.kube.put(Kind.OUTBOX_RELAY, relay())
    world.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(databases=[raw_database("payments")]), owner=OTHER))
    await world.passed()
    await world.passed(OTHER.key)
    gone = {Kind.SECRET: "orders-db", Kind.CONFIG_MAP: "shop-relays", Kind.DEPLOYMENT: deployments(world)[0]}
    going = world.kube.objects[Kind.OUTBOX_RELAY, "shop", "shop"]
    going["metadata"] |= {"deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    world.kube.drop(first, "shop", gone[first])
    world.fleet.invalidate(KEY)
    before = len(world.kube.writes)
    for _ in range(3):
        assert await world.passed(seconds=60) is None
    assert world.kube.writes[before:] == []
    edit(world, OTHER.key, replicas=2)
    assert await world.passed(OTHER.key) is None
    assert 2 in replicas(world)


async def test_ol_06_a_secret_of_fifty_is_rotated_without_a_restart(world: World) -> None:
    """cases.md OL-06: changed, deleted and made again, labelled; each pod is told of what is new, and none replaced."""
    keys = [Key("shop", f"r{number}") for number in range(SHARING)]
    for key in keys:
        databases = [raw_database(dbname=key.name)]
        owner = Owner(key=key, uid=f"uid-{key.name}", created=OWNER.created)
        world.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(databases=databases), owner=owner))

    async def passes() -> list[tuple[str, str, str]]:
        """Look at all of them when Secrets are read again; returns what was written to pods and Deployments."""
        began = len(world.kube.writes)
        world.now += SECRET_AGE_SECONDS
        for key in keys:
            assert await world.passed(key, seconds=0) is None
        return [write for write in world.kube.writes[began:] if write[1] in ("Pod", "Deployment")]

    await passes()
    pods = {("shop", name): (pod(name=f"{name}-0", report=None),) for name in deployments(world)}
    assert len(pods) == SHARING
    world.memory.pods_listed(pods, now=world.now)
    told = [("patch", "Pod", f"{name}-0") for name in deployments(world)]
    stored = world.kube.objects[Kind.SECRET, "shop", "orders-db"]
    assert await passes() == []

    world.kube.put(Kind.SECRET, deepcopy(stored) | {"data": {"username": "dQ==", "password": "bmV3"}})
    assert sorted(await passes()) == sorted(told)
    assert await passes() == []

    world.kube.drop(Kind.SECRET, "shop", "orders-db")
    assert not [write for write in await passes() if write[1] == "Deployment"]
    world.kube.put(Kind.SECRET, deepcopy(stored))
    assert sorted(await passes()) == sorted(told)

    stored["metadata"]["labels"] = {"team": "shop"}
    world.kube.put(Kind.SECRET, stored)
    assert not [write for write in await passes() if write[1] == "Deployment"]


async def test_ol_06_a_secret_under_a_new_name_reaches_the_pods_that_name_it(world: World) -> None:
    """cases.md OL-06: an immutable Secret can only be replaced by another; that is an edit of the resource."""
    world.kube.put(Kind.OUTBOX_RELAY, relay())
    world.kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(databases=[raw_database("payments")]), owner=OTHER))
    await world.passed()
    await world.passed(OTHER.key)
    [mine, others] = deployments(world)
    stored = world.kube.objects[Kind.SECRET, "shop", "orders-db"]
    newer = {"metadata": {"namespace": "shop", "name": "orders-db-2"}, "data": stored["data"], "immutable": True}
    world.kube.put(Kind.SECRET, newer)
    edit(world, databases=[raw_database(credentialsSecretRef={"name": "orders-db-2"})])
    for key in (KEY, OTHER.key):
        assert await world.passed(key) is None
    assert world.applied("Deployment") == [mine, others, mine]
    volumes = world.kube.objects[Kind.DEPLOYMENT, "shop", mine]["spec"]["template"]["spec"]["volumes"]
    assert "orders-db-2" in [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]


async def test_ol_09_a_count_that_a_scaler_set_stays(world: World) -> None:
    """cases.md OL-09: through other edits and a restart; whoever scales the Deployment itself is overruled."""
    world.kube.put(Kind.OUTBOX_RELAY, relay())
    await world.passed()
    assert replicas(world) == [1]
    edit(world, replicas=3)
    await world.passed()
    assert replicas(world) == [3]
    edit(world, kafka={"bootstrapServers": ["elsewhere:9092"]})
    await world.passed()
    assert replicas(world) == [3]

    after = World()
    after.kube.objects = world.kube.objects
    await after.passed()
    assert replicas(after) == [3]
    assert after.applied("Deployment") == []
    [name] = deployments(after)
    after.kube.objects[Kind.DEPLOYMENT, "shop", name]["spec"]["replicas"] = 5
    after.fleet.invalidate(KEY)
    await after.passed()
    assert replicas(after) == [3]
    await after.measurer.close()
