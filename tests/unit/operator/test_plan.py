"""What should be changed: gates, conflicts, removals, and configurations that pods may still start with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.conflicts import Claim
from outboxrelay_operator.credentials import secret_names
from outboxrelay_operator.desired.network_policy import NetworkRules
from outboxrelay_operator.observed import Observed, SecretState
from outboxrelay_operator.pairs import Key, Owner, Pair, pairs_of
from outboxrelay_operator.plan import NOTHING, Plan, make_plan
from tests.unit.operator.builders import IMAGE, KEY, SECRETS, live, observed, raw_database, raw_spec, raw_topic

TWO = raw_spec(databases=[raw_database(), raw_database("payments")])


NETWORK = NetworkRules(operator_namespace="outboxrelay")


def plan_of(
    seen: Observed,
    *,
    lost: Mapping[str, Claim] | None = None,
    secrets: Mapping[str, SecretState | None] | None = SECRETS,
    network: NetworkRules | None = None,
    neighbours: Sequence[Pair] = (),
) -> Plan:
    return make_plan(seen, lost=lost or {}, secrets=secrets, image=IMAGE, network=network, neighbours=neighbours)


def deployed(seen: Observed) -> Observed:
    """As after the plan was carried out and everything is running."""
    plan = plan_of(seen)
    seen.shared = {body["kind"]: body for body in plan.shared}
    seen.budgets = dict(plan.budgets)
    seen.deployments = {name: live(body) for name, body in plan.deployments.items()}
    return seen


def names(raw: dict[str, object]) -> list[str]:
    return [pair.name for pair in pairs_of(KEY, OutboxRelaySpec.model_validate(raw))]


def test_one_deployment_for_each_pair_and_one_config_map() -> None:
    plan = plan_of(observed(TWO))
    assert list(plan.deployments) == names(TWO)
    assert plan.config_map is not None
    assert len(plan.config_map["data"]) == 2
    assert (plan.unwanted, plan.blocked) == ((), {})


def test_a_spec_that_cannot_be_used_changes_nothing() -> None:
    seen = deployed(observed(TWO))
    seen.spec = None
    assert plan_of(seen) == NOTHING


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (None, "SecretMissing", "Secret shop/payments-db does not exist"),
        (SecretState(version="1", keys=frozenset({"username"})), "SecretKeyMissing", "has no key password"),
    ],
)
def test_a_missing_secret_blocks_its_own_pair_only(state: SecretState | None, reason: str, words: str) -> None:
    plan = plan_of(observed(TWO), secrets=SECRETS | {"payments-db": state})
    orders, payments = names(TWO)
    assert list(plan.deployments) == [orders]
    assert plan.blocked[payments].reason == reason
    assert words in plan.blocked[payments].message


def test_a_deployment_whose_secret_went_is_left_alone() -> None:
    plan = plan_of(deployed(observed(TWO)), secrets=SECRETS | {"payments-db": None})
    assert plan.unwanted == ()
    assert names(TWO)[1] not in plan.deployments


def test_suspending_needs_no_secret() -> None:
    plan = plan_of(observed(TWO | {"suspend": True}), secrets={"orders-db": None, "payments-db": None})
    assert {body["spec"]["replicas"] for body in plan.deployments.values()} == {0}
    assert plan.blocked == {}


def test_a_missing_ca_blocks() -> None:
    raw = raw_spec(databases=[raw_database(tls={"caSecretRef": {"name": "ca"}})])
    plan = plan_of(observed(raw), secrets=SECRETS | {"ca": None})
    assert [finding.reason for finding in plan.blocked.values()] == ["SecretMissing"]


KAFKA = {
    "bootstrapServers": ["kafka:9093"],
    "tls": {"caSecretRef": {"name": "kafka-ca"}, "clientCertSecretRef": {"name": "kafka-cert"}},
    "sasl": {
        "mechanism": "OAUTHBEARER",
        "credentialsSecretRef": {"name": "kafka-login"},
        "oauth": {"tokenEndpointUrl": "https://i/t", "caSecretRef": {"name": "oidc-ca"}},
    },
}
PROVING = raw_spec(databases=[raw_database(tls={"clientCertSecretRef": {"name": "db-cert"}})], kafka=KAFKA)
PROVING_SECRETS = SECRETS | {
    name: SecretState(version="1", keys=frozenset(keys))
    for name, keys in {
        "db-cert": ("tls.crt", "tls.key"),
        "kafka-ca": ("ca.crt",),
        "kafka-cert": ("tls.crt", "tls.key"),
        "kafka-login": ("username", "password"),
        "oidc-ca": ("ca.crt",),
    }.items()
}


def test_every_secret_that_is_named_is_needed() -> None:
    """A missing Secret, and each missing key of one that is there, keeps the pod from waiting for ever."""
    assert plan_of(observed(PROVING), secrets=PROVING_SECRETS).blocked == {}
    for name in PROVING_SECRETS.keys() - {"payments-db"}:
        [finding] = plan_of(observed(PROVING), secrets=PROVING_SECRETS | {name: None}).blocked.values()
        assert (finding.reason, f"shop/{name}" in finding.message) == ("SecretMissing", True)
        state = PROVING_SECRETS[name]
        for key in state.keys:
            lacking = SecretState(version="2", keys=state.keys - {key})
            [finding] = plan_of(observed(PROVING), secrets=PROVING_SECRETS | {name: lacking}).blocked.values()
            assert (finding.reason, f"has no key {key}" in finding.message) == ("SecretKeyMissing", True)


def test_every_secret_that_is_named_is_watched_and_mounted() -> None:
    seen = observed(PROVING)
    assert set(secret_names(seen.pairs[0])) == PROVING_SECRETS.keys() - {"payments-db"}
    [body] = plan_of(seen, secrets=PROVING_SECRETS).deployments.values()
    pod = body["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert volumes == {
        "database": "orders-db",
        "database-certificate": "db-cert",
        "kafka": "kafka-login",
        "kafka-ca": "kafka-ca",
        "kafka-certificate": "kafka-cert",
        "oauth-ca": "oidc-ca",
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {name: path for name, path in mounts.items() if name != "config"} == {
        name: f"/etc/outboxrelay/{name}" for name in volumes
    }
    assert all(mount["readOnly"] for mount in pod["containers"][0]["volumeMounts"])


def test_a_pair_that_left_the_spec_is_removed() -> None:
    seen = deployed(observed(TWO))
    narrowed = observed()
    narrowed.deployments = seen.deployments
    assert plan_of(narrowed).unwanted == (("Deployment", names(TWO)[1]),)


def test_what_another_owner_has_is_neither_removed_nor_taken() -> None:
    seen = deployed(observed(TWO))
    for body in seen.deployments.values():
        body["metadata"]["ownerReferences"][0]["uid"] = "uid-before"
    narrowed = observed()
    narrowed.deployments = seen.deployments
    plan = plan_of(narrowed)
    assert plan.unwanted == ()
    assert plan.deployments == {}
    assert [finding.reason for finding in plan.blocked.values()] == ["NameTaken"]


def test_an_orphan_is_adopted() -> None:
    seen = deployed(observed())
    for body in seen.deployments.values():
        del body["metadata"]["ownerReferences"]
    assert list(plan_of(seen).deployments) == names(raw_spec())


def test_a_lost_pair_is_removed_and_names_the_winner() -> None:
    seen = deployed(observed(TWO))
    orders, payments = names(TWO)
    winner = Claim(owner=Owner(key=Key("other", "old"), uid="o", created=""), pair=seen.pairs[0])
    plan = plan_of(seen, lost={orders: winner})
    assert plan.unwanted == (("Deployment", orders),)
    assert list(plan.deployments) == [payments]
    assert "other/old" in plan.blocked[orders].message


def test_an_older_configuration_stays_while_the_new_one_rolls_out() -> None:
    seen = deployed(observed())
    assert seen.config_map is not None
    before = dict(seen.config_map["data"])
    edited = observed(raw_spec(topics=[raw_topic(topic="shop.orders.v2")]))
    edited.shared, edited.deployments = seen.shared, seen.deployments
    beginning = plan_of(edited).config_map
    assert beginning is not None
    assert before.items() < beginning["data"].items()
    assert beginning is not None
    edited.shared = {"ConfigMap": beginning}
    [name] = seen.deployments
    edited.deployments = {name: live(plan_of(edited).deployments[name], updatedReplicas=0)}
    rolling = plan_of(edited).config_map
    assert rolling is not None
    assert before.items() < rolling["data"].items()
    edited.deployments = {name: live(plan_of(edited).deployments[name])}
    done = plan_of(edited).config_map
    assert done is not None
    assert not before.keys() & done["data"].keys()


def taken_by_somebody(*, labels: dict[str, str], owners: list[dict[str, object]]) -> dict[str, object]:
    metadata = {"namespace": "shop", "name": "shop-relays", "labels": labels, "ownerReferences": owners}
    return {"metadata": metadata, "data": {"users": "own"}}


OURS = {"app.kubernetes.io/managed-by": "outboxrelay-operator"}


@pytest.mark.parametrize("kind", ["ConfigMap", "ServiceAccount", "NetworkPolicy"])
@pytest.mark.parametrize(
    ("labels", "owners"),
    [
        ({}, []),
        ({"app": "x"}, []),
        (OURS, [{"kind": "OutboxRelay", "name": "other", "uid": "uid-other", "controller": True}]),
        ({}, [{"kind": "App", "name": "shop", "uid": "uid-app", "controller": True}]),
        (OURS, [{"kind": "App", "name": "shop", "uid": "uid-app"}]),
    ],
    ids=["a person's", "another tool's", "of another OutboxRelay", "of another controller", "of both"],
)
def test_what_is_shared_and_somebody_elses_is_neither_changed_nor_used(
    kind: str, labels: dict[str, str], owners: list[dict[str, object]]
) -> None:
    """A service account of that name may have rights, which whoever creates an OutboxRelay must not get at."""
    seen = observed(TWO)
    seen.shared = {kind: taken_by_somebody(labels=labels, owners=owners)}
    plan = plan_of(seen, network=NETWORK)
    assert (plan.shared, plan.deployments) == ((), {})
    assert {finding.reason for finding in plan.blocked.values()} == {"NameTaken"}
    assert f"{kind} shop/shop-relays" in plan.blocked[names(TWO)[0]].message


@pytest.mark.parametrize("kind", ["ConfigMap", "ServiceAccount", "NetworkPolicy"])
@pytest.mark.parametrize(
    ("labels", "owners"),
    [
        (OURS, []),
        ({}, [{"kind": "OutboxRelay", "name": "shop", "uid": "uid-shop", "controller": True}]),
        (OURS, [{"kind": "OutboxRelay", "name": "shop", "uid": "uid-before", "controller": True}]),
    ],
    ids=["an orphan", "without labels", "of the OutboxRelay that had this name before"],
)
def test_what_is_ours_is_taken_back(kind: str, labels: dict[str, str], owners: list[dict[str, object]]) -> None:
    seen = observed(TWO)
    seen.shared = {kind: taken_by_somebody(labels=labels, owners=owners)}
    assert kind in {body["kind"] for body in plan_of(seen, network=NETWORK).shared}


def test_a_config_map_of_somebody_else_does_not_keep_relays_from_being_stopped() -> None:
    seen = deployed(observed(TWO))
    stopping = observed(TWO | {"suspend": True})
    stopping.deployments = seen.deployments
    stopping.shared = {"ConfigMap": taken_by_somebody(labels={}, owners=[])}
    plan = plan_of(stopping)
    assert plan.config_map is None
    assert {body["spec"]["replicas"] for body in plan.deployments.values()} == {0}


def test_match_lists_that_fit_into_no_config_map_are_an_invalid_spec() -> None:
    topics = [raw_topic(f"t{t}", match=[f"{t}-{n}-" + "x" * 118 for n in range(32)]) for t in range(15)]
    raw = raw_spec(databases=[raw_database(f"d{n}") for n in range(16)], topics=[*topics, raw_topic("rest")])
    plan = plan_of(observed(raw), secrets={f"d{n}-db": SECRETS["orders-db"] for n in range(16)})
    assert plan.config_map is None
    assert {finding.reason for finding in plan.blocked.values()} == {"InvalidSpec"}


def test_without_access_to_secrets_none_is_missed() -> None:
    assert list(plan_of(observed(TWO), secrets=None).deployments) == names(TWO)


class TestDisruptionBudgets:
    """One for each pair that may have several relays."""

    SEVERAL = TWO | {"replicas": 2}

    @pytest.mark.parametrize(
        ("changes", "count"),
        [
            ({"replicas": 1}, 0),
            ({"replicas": 2}, 2),
            ({"replicas": 2, "suspend": True}, 2),
            ({"replicas": 3, "autoscaling": {"maxReplicas": 1}}, 0),
            ({"replicas": 1, "autoscaling": {"minReplicas": 0, "maxReplicas": 2}}, 2),
        ],
    )
    def test_only_where_more_than_one_relay_may_run(self, changes: dict[str, object], count: int) -> None:
        """And not by what autoscaling wants just now: it would come and go with the load."""
        plan = plan_of(observed(TWO | changes))
        assert list(plan.budgets) == names(TWO)[:count]

    def test_it_goes_with_its_pair_or_with_the_second_relay(self) -> None:
        seen = deployed(observed(self.SEVERAL))
        first, second = names(TWO)
        narrowed = observed(raw_spec(replicas=2))
        narrowed.deployments, narrowed.budgets = seen.deployments, seen.budgets
        assert plan_of(narrowed).unwanted == (("Deployment", second), ("PodDisruptionBudget", second))
        single = observed(TWO)
        single.deployments, single.budgets = seen.deployments, seen.budgets
        assert plan_of(single).unwanted == tuple(("PodDisruptionBudget", name) for name in sorted((first, second)))

    def test_of_somebody_else_it_stays(self) -> None:
        seen = observed(TWO)
        seen.budgets = {"theirs": {"metadata": {"name": "theirs", "namespace": "shop"}}}
        assert plan_of(seen).unwanted == ()

    def test_a_blocked_pair_keeps_its_own(self) -> None:
        seen = deployed(observed(self.SEVERAL))
        plan = plan_of(seen, secrets={**SECRETS, "payments-db": None})
        assert (list(plan.budgets), plan.unwanted) == ([names(TWO)[0]], ())


class TestNetworkPolicy:
    """One for each OutboxRelay, if the operator is installed so."""

    def test_it_comes_before_the_pods_and_goes_with_the_option(self) -> None:
        seen = observed(TWO)
        assert [body["kind"] for body in plan_of(seen).shared] == ["ConfigMap", "ServiceAccount"]
        wanted = plan_of(seen, network=NETWORK).shared
        assert [body["kind"] for body in wanted] == ["ConfigMap", "ServiceAccount", "NetworkPolicy"]
        seen.shared = {body["kind"]: body for body in wanted}
        assert plan_of(seen, network=NETWORK).unwanted == ()
        assert plan_of(seen).unwanted == (("NetworkPolicy", "shop-relays"),)

    def test_of_somebody_else_it_stays(self) -> None:
        seen = observed(TWO)
        seen.shared = {"NetworkPolicy": taken_by_somebody(labels={}, owners=[])}
        plan = plan_of(seen)
        assert plan.unwanted == ()
        assert len(plan.deployments) == 2


def routed(**topics: str) -> dict[str, object]:
    """A spec of one database with a topic for each route."""
    return raw_spec(topics=[raw_topic(name, topic=topic, match=[name]) for name, topic in topics.items()])


def edited(before: dict[str, object], after: dict[str, object]) -> Observed:
    """What is seen at the first look after an edit of a resource that runs."""
    was, seen = deployed(observed(before)), observed(after)
    seen.shared, seen.deployments, seen.budgets = was.shared, was.deployments, was.budgets
    return seen


def test_pairs_that_exchange_their_topics_make_room_for_each_other() -> None:
    """Pods that are replaced one by one would wait for each other's locks for ever."""
    seen = edited(routed(a="one", b="two", c="three"), routed(a="two", b="one", c="three"))
    first, second, third = names(routed(a="two", b="one", c="three"))
    plan = plan_of(seen)
    assert plan.making_room == {first, second}
    assert plan.unwanted == (("Deployment", first), ("Deployment", second))
    assert list(plan.deployments) == [third]
    del seen.deployments[first], seen.deployments[second]
    plan = plan_of(seen)
    assert (plan.making_room, plan.unwanted) == (frozenset(), ())
    assert list(plan.deployments) == [first, second, third]


@pytest.mark.parametrize("ended", [True, False])
def test_pods_of_an_older_template_are_in_the_way_until_a_rollout_has_ended(ended: bool) -> None:
    """Of an edit that led nowhere both pairs have pods where they were before, and those would never make room."""
    status: dict[str, Any] = {} if ended else {"replicas": 2, "updatedReplicas": 1}
    after, both = observed(routed(a="two", b="one")), set(names(routed(a="two", b="one")))

    def planned(before: Plan) -> Plan:
        after.shared = {body["kind"]: body for body in before.shared}
        after.deployments = {name: live(body, **status) for name, body in before.deployments.items()}
        return plan_of(after)

    plan = planned(plan_of(edited(routed(a="one", b="two"), routed(a="no-such", b="nor-such"))))
    assert plan.making_room == (frozenset() if ended else both)
    plan = planned(plan)
    assert (plan.making_room, set(plan.deployments)) == (frozenset(), both)
    assert planned(plan).making_room == frozenset()


def test_a_pair_that_leaves_a_topic_to_nobody_is_rolled() -> None:
    plan = plan_of(edited(routed(a="one", b="two"), routed(a="three", b="two")))
    assert (plan.making_room, plan.unwanted) == (frozenset(), ())
    assert len(plan.deployments) == 2


def test_a_pair_that_stays_where_it_is_is_rolled() -> None:
    """Whoever else claims its topic is in conflict with it, which is another matter."""
    before, after = routed(a="one"), routed(a="one") | {"format": "Debezium"}
    other = pairs_of(Key("shop", "other"), OutboxRelaySpec.model_validate(routed(b="one")))
    plan = plan_of(edited(before, after), neighbours=other)
    assert (plan.making_room, plan.unwanted) == (frozenset(), ())


def test_a_pair_makes_room_for_one_of_another_resource() -> None:
    """Two resources may exchange topics too, by whatever name they know the server."""
    databases = [raw_database(host="orders-db.shop.svc")]
    other = pairs_of(Key("shop", "other"), OutboxRelaySpec.model_validate(routed(b="one") | {"databases": databases}))
    seen = edited(routed(a="one"), routed(a="two"))
    assert plan_of(seen, neighbours=other).making_room == set(names(routed(a="two")))
    assert plan_of(seen).making_room == frozenset()


def test_of_a_configuration_that_cannot_be_read_nothing_is_known() -> None:
    seen = edited(routed(a="one", b="two"), routed(a="two", b="one"))
    data = seen.shared["ConfigMap"]["data"]
    seen.shared["ConfigMap"]["data"] = dict.fromkeys(data, '{"version": 2}')
    assert plan_of(seen).making_room == frozenset()


def test_who_waits_for_a_secret_takes_no_place() -> None:
    """Its pods go on where they are, and nobody needs to make room for it yet."""
    before = raw_spec(
        databases=[raw_database()],
        topics=[raw_topic("a", topic="one", match=["a"]), raw_topic("b", topic="two", match=["b"])],
    )
    after = routed(a="two", b="one")
    seen = edited(before, after)
    plan = plan_of(seen, secrets=SECRETS | {"orders-db": None})
    assert (plan.making_room, plan.unwanted, dict(plan.deployments)) == (frozenset(), (), {})
