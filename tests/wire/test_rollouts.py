"""A new relay image reaches a fleet a few resources at a time (OS-06), through a restart of the operator, too."""

from __future__ import annotations

from outboxrelay_operator.names import TEMPLATE_DIGEST_ANNOTATION, pair_name
from tests.wire.fake_apiserver import Change, Object
from tests.wire.world import World, operator, outbox_relay, secret

COUNT = 30
LIMIT = 3
OLD, NEW = "outboxrelay/relay:old", "outboxrelay/relay:new"
NAMES = [f"r{number:02}" for number in range(COUNT)]


def resource(name: str, **spec: object) -> Object:
    """A resource that shares no table with the others."""
    return outbox_relay(name, dbname=name, **spec)


def wanted(world: World, name: str) -> Object:
    """The spec of a resource's only Deployment."""
    deployment = world.stored("deployments", pair_name(relay=name, database="orders", topic="orders"))
    assert deployment is not None
    spec: Object = deployment["spec"]
    return spec


def image(world: World, name: str) -> str:
    """What new pods of a resource run."""
    return str(wanted(world, name)["template"]["spec"]["containers"][0]["image"])


def replicas(world: World, name: str) -> object:
    """How many pods a resource should have."""
    return wanted(world, name)["replicas"]


def renewed(world: World) -> set[str]:
    """The resources that have the template of the new operator."""
    return {name for name in NAMES if image(world, name) == NEW}


def condition(world: World, name: str, type_: str) -> tuple[str, str] | None:
    """Status and reason."""
    conditions = ((world.stored("outboxrelays", name) or {}).get("status") or {}).get("conditions", ())
    found = {item["type"]: (item["status"], item["reason"]) for item in conditions}
    return found.get(type_)


def observed(world: World, name: str) -> bool:
    """Whether the status is about the spec as it is now."""
    body = world.stored("outboxrelays", name)
    assert body is not None
    return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])


def most_at_once(history: list[Change], *, without: set[str]) -> int:
    """Of how many resources pods were being replaced, at the worst moment; read from every write there was."""
    rolling: set[str] = set()
    most = 0
    for change in history:
        if change.plural != "deployments" or change.before is None or change.after is None:
            continue
        owner = change.after["metadata"]["ownerReferences"][0]["name"]
        if _template(change.before) != _template(change.after):
            rolling.add(owner)
        status, generation = change.after.get("status") or {}, change.after["metadata"]["generation"]
        if status.get("observedGeneration") == generation and status.get("updatedReplicas") == status.get("replicas"):
            rolling.discard(owner)
        most = max(most, len(rolling - without))
    return most


def _template(deployment: Object) -> object:
    return deployment["spec"]["template"]["metadata"]["annotations"][TEMPLATE_DIGEST_ANNOTATION]


async def test_os_06_a_new_image_rolls_a_few_at_a_time_and_edits_at_once(world: World) -> None:
    """cases.md OS-06."""
    world.server.put("secrets", secret())
    for name in NAMES:
        world.server.put("outboxrelays", resource(name))
    async with operator(world, relay_image=OLD):
        for name in NAMES:
            await world.until_ready("True", "Flowing", name)
    assert renewed(world) == set()
    began = len(world.server.history)
    world.relays.holding = True

    async with operator(world, relay_image=NEW, max_concurrent_rollouts=LIMIT):
        await world.until(
            lambda: sum(condition(world, name, "RolloutQueued") is not None for name in NAMES) == COUNT - LIMIT,
            "all but a few to be queued",
        )
        first = renewed(world)
        assert len(first) == LIMIT
        for name in set(NAMES) - first:
            assert condition(world, name, "RolloutQueued") == ("True", "RolloutQueued")
            assert condition(world, name, "Ready") == ("True", "Flowing")
        scaled, *_, edited = sorted(set(NAMES) - first)
        world.server.put("outboxrelays", resource(scaled, replicas=2))
        world.server.put("outboxrelays", resource(edited, topics=[{"name": "orders", "topic": "shop.elsewhere"}]))
        await world.until(lambda: renewed(world) == first | {edited}, "the edit to be carried out at once")
        await world.until(lambda: replicas(world, scaled) == 2, "more pods, of the template of before")
        assert renewed(world) == first | {edited}
        # Of an edit that no status has yet, the next operator could not tell what it was about.
        await world.until(lambda: observed(world, scaled), "the scaling to be noted")

    # The next operator finds pods that are being replaced, and does not begin anew.
    async with operator(world, relay_image=NEW, max_concurrent_rollouts=LIMIT):
        passes = world.server.lists.count("pods")
        await world.until(lambda: world.server.lists.count("pods") > passes + 10, "some rounds")
        assert renewed(world) == first | {edited}
        world.relays.holding = False
        await world.until(lambda: renewed(world) == set(NAMES), "all to be renewed")
        await world.until(
            lambda: all(condition(world, name, "RolloutQueued") is None for name in NAMES), "nothing to be queued"
        )
    assert most_at_once(world.server.history[began:], without={edited}) == LIMIT


async def test_os_06_an_operator_that_wants_no_other_template_rolls_nothing(world: World) -> None:
    """cases.md OS-06: however often it starts."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
    applied = world.server.count("PATCH", "/deployments/")
    async with operator(world, max_concurrent_rollouts=1, lease_seconds=30):
        lists = world.server.lists.count("configmaps")
        await world.until(lambda: world.server.lists.count("configmaps") > lists, "what there is to be known")
        rounds = world.server.lists.count("pods")
        await world.until(lambda: world.server.lists.count("pods") > rounds + 10, "some rounds")
    assert world.server.count("PATCH", "/deployments/") == applied
