"""The whole operator against an API server over HTTP: events in, objects and status out.

What failed elsewhere has its case in the test's name; beside that: Secrets that come late, orphans and removal.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy

import pytest

from outboxrelay.report import SideState
from outboxrelay_operator import logs
from outboxrelay_operator.api.crd import definition
from outboxrelay_operator.names import pair_name
from tests.wire.fake_apiserver import Object
from tests.wire.world import NAMESPACE, PATIENCE_SECONDS, World, operator, outbox_relay, secret

PAIR = pair_name(relay="shop", database="orders", topic="orders")


def side(reason: str) -> SideState:
    return SideState(ok=False, reason=reason, message="what happened", since=0.0)


async def test_a_resource_becomes_a_deployment_and_a_status(world: World) -> None:
    world.server.put("secrets", secret())
    async with operator(world):
        world.server.put("outboxrelays", outbox_relay())
        await world.until_ready("True", "Flowing")
        assert world.stored("deployments", PAIR)
        assert world.stored("configmaps", "shop-relays")
        stored = world.stored("outboxrelays", "shop")
        assert stored is not None
        assert stored["status"]["pairsReady"] == "1/1"
        # The operator itself cannot measure here, and says so.
        await world.until(lambda: "DatabaseUnreachable" in json.dumps(world.stored("outboxrelays", "shop")), "Measured")
        assert "backlog" not in stored["status"]


async def test_ol_01_no_finalizer_and_no_annotation_is_left_anywhere(world: World) -> None:
    """cases.md OL-01, and OL-11: what does not exist cannot outlive the operator, nor grow beyond what fits."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
    written = [(change.plural, change.after["metadata"]) for change in world.server.history if change.after is not None]
    assert not [plural for plural, metadata in written if "finalizers" in metadata]
    assert not [plural for plural, metadata in written if plural == "outboxrelays" and "annotations" in metadata]


async def test_ol_08_without_news_nothing_is_written(world: World) -> None:
    """cases.md OL-08."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        await world.until(lambda: world.server.count("GET", "/pods") > 20, "some rounds of measuring")
        writes = world.server.count("PATCH", "")
        await world.until(lambda: world.server.count("GET", "/pods") > 60, "more rounds of measuring")
        # One more is allowed for what was still on its way: numbers are written once in ten seconds.
        assert world.server.count("PATCH", "") <= writes + 1


async def test_what_a_relay_says_is_in_the_status_and_goes_away_again(world: World) -> None:
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        world.relays.report["broker"] = side("TopicMissing")
        await world.until_ready("False", "TopicMissing")
        world.relays.report["broker"] = SideState(ok=True, reason="Connected", since=0.0)
        await world.until_ready("True", "Flowing")
    reasons = [body["reason"] for (plural, _, _), body in world.server.objects.items() if plural == "events"]
    assert "TopicMissing" in reasons
    assert reasons.count("Flowing") >= 1


async def test_lanes_that_no_relay_gets_are_told_and_come_back(world: World) -> None:
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        world.relays.report["lanes_owned"] = tuple(range(15))
        await world.until_ready("False", "LanesUnowned")
        world.relays.report["lanes_owned"] = tuple(range(16))
        await world.until_ready("True", "Flowing")


async def test_drift_is_repaired(world: World) -> None:
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        edited = world.stored("deployments", PAIR)
        assert edited is not None
        world.server.put("deployments", edited | {"spec": edited["spec"] | {"replicas": 5}})
        await world.until(lambda: (world.stored("deployments", PAIR) or edited)["spec"]["replicas"] == 1, "1 replica")
        world.server.drop("deployments", NAMESPACE, PAIR)
        await world.until(lambda: world.stored("deployments", PAIR), "the Deployment is back")


async def test_a_secret_that_comes_late_lets_the_pair_start(world: World) -> None:
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("False", "SecretMissing")
        assert world.stored("deployments", PAIR) is None
        world.server.put("secrets", secret(username="relay"))
        await world.until_ready("False", "SecretKeyMissing")
        world.server.put("secrets", secret())
        await world.until_ready("True", "Flowing")


async def test_ol_06_a_relay_whose_login_is_refused_gets_the_new_secret_at_once(world: World) -> None:
    """cases.md OL-06."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        world.relays.report["database"] = side("AuthenticationFailed")
        await world.until_ready("False", "AuthenticationFailed")

        def told() -> set[str]:
            return {
                body["metadata"].get("annotations", {}).get("outboxrelay.io/secrets-changed", "")
                for (plural, _, _), body in world.server.objects.items()
                if plural == "pods"
            }

        changed = world.server.put("secrets", secret(username="relay", password="new"))
        await world.until(lambda: told() == {changed["metadata"]["resourceVersion"]}, "the kubelet is told")


async def test_a_pair_that_leaves_the_spec_is_removed(world: World) -> None:
    world.server.put("secrets", secret())
    topics = [
        {"name": "orders", "topic": "shop.orders", "match": ["order"]},
        {"name": "rest", "topic": "shop.rest"},
    ]
    world.server.put("outboxrelays", outbox_relay(topics=topics))
    async with operator(world):
        await world.until(lambda: len(world.relays.deployments()) == 2, "two Deployments")
        world.server.put("outboxrelays", outbox_relay(topics=topics[:1]))
        await world.until(lambda: len(world.relays.deployments()) == 1, "one Deployment")
        assert world.stored("deployments", PAIR)


async def test_a_spec_that_breaks_a_rule_changes_nothing(world: World) -> None:
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        before = world.stored("deployments", PAIR)
        world.server.put("outboxrelays", outbox_relay(replicas=99))
        await world.until_ready("False", "InvalidSpec")
        assert world.stored("deployments", PAIR) == before


async def test_ol_05_the_oldest_of_two_over_one_table_wins(world: World) -> None:
    """cases.md OL-05."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay("old"))
    world.server.put("outboxrelays", outbox_relay("young"))
    async with operator(world):
        await world.until_ready("True", "Flowing", "old")
        await world.until_ready("False", "Conflict", "young")
        [only] = world.relays.deployments()
        assert only["metadata"]["ownerReferences"][0]["name"] == "old"
        world.server.drop("outboxrelays", NAMESPACE, "old")
        # The garbage collector's part.
        world.server.drop("deployments", NAMESPACE, only["metadata"]["name"])
        await world.until_ready("True", "Flowing", "young")


async def test_os_01_a_watch_that_ends_with_410_goes_on(world: World) -> None:
    """cases.md OS-01 (a)."""
    world.server.put("secrets", secret())
    async with operator(world):
        await world.until(lambda: world.server.count("GET", "outboxrelays?watch"), "a watch")
        world.server.expire()
        world.server.put("outboxrelays", outbox_relay())
        await world.until_ready("True", "Flowing")


async def test_os_01_what_was_deleted_unseen_is_not_brought_back(world: World) -> None:
    """cases.md OS-01: a re-list reports what is there, never what is gone; only a real read finds out."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world, resync_seconds=2.0):
        await world.until_ready("True", "Flowing")
        world.server.delivering = False
        reads = world.server.count("GET", f"/namespaces/{NAMESPACE}/outboxrelays/shop")
        world.server.drop("outboxrelays", NAMESPACE, "shop")
        world.server.drop("deployments", NAMESPACE, PAIR)
        lists = world.server.lists.count("outboxrelays")
        world.server.expire()
        world.server.delivering = True
        await world.until(lambda: world.server.lists.count("outboxrelays") > lists, "a new list")
        await world.until(
            lambda: world.server.count("GET", f"/namespaces/{NAMESPACE}/outboxrelays/shop") > reads, "a real read"
        )
        # What was read just before the deletion may still have been applied; the garbage collector takes that.
        applied = world.server.count("PATCH", "/deployments/")
        rounds = world.server.lists.count("pods")
        await world.until(lambda: world.server.lists.count("pods") > rounds + 20, "time for another pass")
        assert world.server.count("PATCH", "/deployments/") == applied


async def test_os_01_what_changed_while_no_operator_ran_is_caught_up_with(world: World) -> None:
    """cases.md OS-01: edited, created and deleted while the operator had no pod."""

    def relay(name: str, **spec: object) -> Object:
        return outbox_relay(name, dbname=name, **spec)

    def deployment(name: str) -> Object | None:
        return world.stored("deployments", pair_name(relay=name, database="orders", topic="orders"))

    world.server.put("secrets", secret())
    for name in ("edited", "deleted"):
        world.server.put("outboxrelays", relay(name))
    async with operator(world):
        await world.until(lambda: deployment("edited") and deployment("deleted"), "two Deployments")
    world.server.put("outboxrelays", relay("edited", replicas=2))
    world.server.put("outboxrelays", relay("created"))
    world.server.drop("outboxrelays", NAMESPACE, "deleted")
    # The garbage collector's part.
    world.server.drop("deployments", NAMESPACE, pair_name(relay="deleted", database="orders", topic="orders"))
    async with operator(world):
        await world.until(lambda: deployment("created"), "what was created is served")
        await world.until(lambda: (deployment("edited") or {})["spec"]["replicas"] == 2, "the edit is carried out")
        await world.until_ready("True", "Flowing", "created")
    assert deployment("deleted") is None


async def test_a_restart_asks_for_lists_and_for_no_resource_of_its_own(world: World) -> None:
    """The watches tell of everything while it is being listed: that is no reason to read a thousand one by one."""
    names = [f"r{number}" for number in range(40)]
    world.server.put("secrets", secret())
    for name in names:
        world.server.put("outboxrelays", outbox_relay(name, dbname=name))
    async with operator(world):
        await world.until(lambda: all(world.ready(name) == ("True", "Flowing") for name in names), "all are ready")
        await world.until_calm(rounds=10)
    begin, written = len(world.server.requests), world.server.count("PATCH", "")
    watches = [world.server.count("GET", f"{plural}?watch") for plural in ("outboxrelays", "deployments")]

    def watching() -> bool:
        now = [world.server.count("GET", f"{plural}?watch") for plural in ("outboxrelays", "deployments")]
        return all(after > before for before, after in zip(watches, now, strict=True))

    # What is listed last, so that all the others are.
    world.server.mute.add("poddisruptionbudgets")
    async with operator(world):
        await world.until(watching, "both watches")
        world.server.mute.clear()
        rounds = world.server.lists.count("pods")
        await world.until(lambda: world.server.lists.count("pods") > rounds + 20, "some rounds of measuring")
        await world.until_calm(rounds=3)
    others = ("pods", "leases")
    asked = [path for _, path in world.server.requests[begin:] if not any(word in path for word in others)]
    assert len(asked) < len(names), Counter(path.partition("?")[0] for path in asked)
    # What the leader before has said still holds, and is not taken back until it can be said again.
    assert world.server.count("PATCH", "") == written


async def test_os_01_drift_that_no_watch_reported_is_found_by_the_resync(world: World) -> None:
    """cases.md OS-01."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world, resync_seconds=2.0):
        await world.until_ready("True", "Flowing")
        world.server.drop("configmaps", NAMESPACE, "shop-relays")
        await world.until(lambda: world.stored("configmaps", "shop-relays"), "the config map is back")


async def test_where_objects_may_not_be_listed_each_resource_is_read(world: World) -> None:
    """As with a Role of an older release: at a start, and by the resync."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    world.server.forbidden.add("networkpolicies")
    async with operator(world, resync_seconds=2.0):
        await world.until_ready("True", "Flowing")
        world.server.drop("configmaps", NAMESPACE, "shop-relays")
        await world.until(lambda: world.stored("configmaps", "shop-relays"), "the config map is back")


async def test_os_05_the_second_operator_waits_and_takes_over(world: World) -> None:
    """cases.md OS-05: as with two replicas, and as in a rolling update."""
    world.server.put("secrets", secret())
    async with operator(world, pod_name="first"):
        await world.until(lambda: ("leases", "system", "outboxrelay-operator") in world.server.objects, "a Lease")
        async with operator(world, pod_name="second") as second:
            world.server.put("outboxrelays", outbox_relay())
            await world.until_ready("True", "Flowing")
            lease = world.server.objects["leases", "system", "outboxrelay-operator"]
            assert lease["spec"]["holderIdentity"].startswith("first_")
            assert not second.done()
    assert lease != world.server.objects["leases", "system", "outboxrelay-operator"]


async def test_os_05_a_lost_lease_ends_the_process_with_an_error(world: World) -> None:
    """cases.md OS-05."""
    async with operator(world, exit_code=1) as running:
        where = ("leases", "system", "outboxrelay-operator")
        await world.until(lambda: where in world.server.objects, "a Lease")
        taken = world.server.objects[where]
        world.server.put("leases", taken | {"spec": taken["spec"] | {"holderIdentity": "somebody else"}})
        await world.until(running.done, "the process ends")


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged at the level of debug."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    levels, handlers, stream = [logger.level for logger in loggers], logging.root.handlers[:], io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure(form="json", level="debug")
    yield stream
    logging.root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


async def test_se_04_no_secret_gets_into_any_object_request_or_log_line(world: World, talkative: io.StringIO) -> None:
    """cases.md SE-04: neither as it is, nor as the API server has it."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
        await world.until(lambda: "DatabaseUnreachable" in json.dumps(world.stored("outboxrelays", "shop")), "Measured")
    others = {where: body for where, body in world.server.objects.items() if where[0] != "secrets"}
    assert '"level": "info"' in talkative.getvalue()
    places = json.dumps([*others.values(), world.server.requests]) + talkative.getvalue()
    assert [canary for canary in ("S3CR3T-CANARY", "UzNDUjNULUNBTkFSWQ") if canary in places] == []


async def test_se_01_only_named_secrets_of_the_resources_own_namespace_are_read(world: World) -> None:
    """cases.md SE-01: a Secret of that name exists in a namespace whose author may read it, and in the victim's."""
    elsewhere = outbox_relay()
    elsewhere["metadata"]["namespace"] = "evil"
    world.server.put("outboxrelays", elsewhere)
    world.server.put("secrets", secret())
    world.server.put("secrets", secret("another"))
    async with operator(world, namespaces=(NAMESPACE, "evil")):
        await world.until_ready("False", "SecretMissing", namespace="evil")
        assert world.server.count("GET", "/secrets") == world.server.count("GET", "/namespaces/evil/secrets/db") > 0
        assert world.relays.deployments() == []


async def test_hp_05_only_the_given_namespaces_are_asked_for(world: World) -> None:
    """cases.md HP-05: with Roles alone, one request at cluster scope would be one too many."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    async with operator(world):
        await world.until_ready("True", "Flowing")
    discovery = {"/api", "/apis", "/version", "/openapi/v3/apis/outboxrelay.io/v1alpha1"}
    beyond = {
        path
        for _, path in world.server.requests
        if f"/namespaces/{NAMESPACE}/" not in path
        and "/namespaces/system/leases" not in path
        and path not in discovery
        and path.count("/") > 3
    }
    assert beyond == set()


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [("forbidden", "install the CRD and the RBAC rules of the chart"), ("paged", "it is tried again")],
)
async def test_hp_05_what_cannot_be_listed_is_named_once_and_waited_for(
    cause: str, remedy: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """cases.md HP-05."""
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())
    troubled: set[str] = getattr(world.server, cause)
    troubled.add("deployments")
    async with operator(world):
        await world.until(lambda: world.server.lists.count("pods") > 1, "a second try")
        assert world.ready() == ("", "")
        troubled.clear()
        await world.until_ready("True", "Flowing")
    (named,) = [text for text in caplog.messages if "trying to list deployments" in text]
    assert named.endswith(f"; {remedy}")


async def test_ol_08_two_hundred_steady_resources_are_not_written(world: World) -> None:
    """cases.md OL-08: the work of a steady fleet does not grow with every measurement."""
    world.server.put("secrets", secret())
    for number in range(200):
        world.server.put("outboxrelays", outbox_relay(f"r{number}", dbname=f"d{number}", replicas=0))
    async with operator(world):
        await world.until(
            lambda: all(world.ready(f"r{number}") == ("False", "ScaledToZero") for number in range(200)),
            "all reported",
            seconds=2 * PATIENCE_SECONDS,
        )
        await world.until(
            lambda: all(
                "DatabaseUnreachable" in json.dumps(world.stored("outboxrelays", f"r{number}")) for number in range(200)
            ),
            "all measured",
            seconds=2 * PATIENCE_SECONDS,
        )
        await world.until_calm(rounds=3)


async def test_a_namespace_that_goes_and_comes_back_concerns_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleting a namespace takes the operator's RoleBinding with it: there everything is forbidden from then on."""

    def elsewhere(body: Object) -> Object:
        return body | {"metadata": body["metadata"] | {"namespace": "other"}}

    def relay_elsewhere() -> Object:
        return elsewhere(outbox_relay(dbname="elsewhere"))

    def deployed_elsewhere() -> list[str]:
        return [
            name for plural, namespace, name in world.server.objects if (plural, namespace) == ("deployments", "other")
        ]

    world.server.put("secrets", secret())
    world.server.put("secrets", elsewhere(secret()))
    world.server.put("outboxrelays", relay_elsewhere())
    async with operator(world, namespaces=(NAMESPACE, "other")) as running:
        await world.until(deployed_elsewhere, "a Deployment in the other namespace")
        world.server.forbidden.add("other")
        for where in [where for where in world.server.objects if where[1] == "other"]:
            world.server.drop(*where)
        world.server.expire()
        world.server.put("outboxrelays", outbox_relay())
        await world.until_ready("True", "Flowing")
        await world.until(lambda: "Watching namespace other failed" in caplog.text, "the informer gave up")
        world.server.forbidden.clear()
        world.server.put("secrets", elsewhere(secret()))
        world.server.put("outboxrelays", relay_elsewhere())
        await world.until(deployed_elsewhere, "the other namespace is served again")
        assert not running.done()


async def test_a_right_that_is_missing_for_a_while_ends_nothing(world: World) -> None:
    """An API server that has just started, or a RoleBinding that is made anew: the claims hold, and work goes on."""
    other = outbox_relay()
    world.server.put("outboxrelays", other | {"metadata": other["metadata"] | {"namespace": "other"}})
    world.server.put("outboxrelays", outbox_relay())
    world.server.put("secrets", secret())
    async with operator(world, namespaces=(NAMESPACE, "other"), resync_seconds=2.0):
        await world.until_ready("False", "Conflict")
        world.server.forbidden.add("other")
        reads = world.server.count("GET", "/namespaces/other/outboxrelays/shop")
        await world.until(
            lambda: world.server.count("GET", "/namespaces/other/outboxrelays/shop") > reads + 2, "refused reads"
        )
        assert world.ready() == ("False", "Conflict")
        world.server.forbidden.clear()
        login = secret()
        world.server.put("secrets", login | {"metadata": login["metadata"] | {"namespace": "other"}})
        # Nobody told the operator: it came back by itself.
        await world.until(
            lambda: ("deployments", "other", PAIR) in world.server.objects, "the older one is served again"
        )


async def test_ol_11_an_older_crd_gets_what_it_can_hold_and_nothing_twice(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """cases.md OL-11, HP-02: the rest is named once, and is told as soon as the CRD was upgraded."""
    whole = deepcopy(definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    older = deepcopy(whole)
    del older["properties"]["status"]["properties"]["display"]
    del older["properties"]["status"]["properties"]["pairs"]["items"]["properties"]["replicas"]
    world.server.schema = older
    world.server.put("secrets", secret())
    world.server.put("outboxrelays", outbox_relay())

    def status() -> Object:
        found: Object = (world.stored("outboxrelays", "shop") or {})["status"]
        return found

    async with operator(world, resync_seconds=2.0):
        await world.until_ready("True", "Flowing")
        assert "display" not in status()
        await world.until(lambda: "DatabaseUnreachable" in json.dumps(status()), "Measured")
        writes, rounds = world.server.count("PATCH", "/status"), world.server.lists.count("pods")
        await world.until(lambda: world.server.lists.count("pods") > rounds + 40, "more rounds of measuring")
        assert world.server.count("PATCH", "/status") <= writes + 1
        world.server.schema = whole
        await world.until(lambda: "display" in status() and "replicas" in status()["pairs"][0], "all to be told")
    named = [text for text in caplog.messages if "older than this operator" in text]
    assert len(named) == 1
    assert "status.display" in named[0]
    assert "status.pairs[].replicas" in named[0]
