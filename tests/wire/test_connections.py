"""A server with connections for fewer relays than the OutboxRelays on it ask for."""

from __future__ import annotations

from outboxrelay_operator.names import pair_name
from tests.wire.fake_apiserver import Object
from tests.wire.world import NAMESPACE, World, operator, outbox_relay, secret

AUTOSCALING = {
    "minReplicas": 0,
    "maxReplicas": 4,
    "catchUpSeconds": 60,
    "scaleDownAfterSeconds": 120,
    "idleAfterSeconds": 600,
}


def resource(name: str) -> Object:
    """A pair under autoscaling in a database of its own, all on one server."""
    return outbox_relay(name, dbname=name, autoscaling=AUTOSCALING)


def replicas(world: World, *names: str) -> list[int | None]:
    """Of the Deployments of these resources."""
    found = [
        world.stored("deployments", pair_name(relay=name, database="orders", topic="orders")) or {} for name in names
    ]
    return [body.get("spec", {}).get("replicas") for body in found]


async def test_the_oldest_have_a_relay_and_the_next_gets_what_one_leaves(world: World) -> None:
    world.server.put("secrets", secret())
    for name in ("first", "second", "third"):
        world.server.put("outboxrelays", resource(name))
    async with operator(world, max_relay_connections_per_server=2):
        await world.until_ready("True", "Flowing", "first")
        await world.until_ready("True", "Flowing", "second")
        await world.until_ready("False", "ConnectionBudget", "third")
        assert replicas(world, "first", "second", "third") == [1, 1, 0]
        world.server.drop("outboxrelays", NAMESPACE, "first")
        # The garbage collector's part.
        world.server.drop("deployments", NAMESPACE, pair_name(relay="first", database="orders", topic="orders"))
        await world.until_ready("True", "Flowing", "third")
        assert replicas(world, "second", "third") == [1, 1]
