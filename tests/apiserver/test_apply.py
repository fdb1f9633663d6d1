"""The operator's own objects on the real API server: accepted, stable when applied again, repaired after drift.

The API server fills in dozens of defaults. What the operator compares must not mistake them for a difference,
or it would write without end (OL-08), nor overlook one, or drift would stay.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from outboxrelay_operator.credentials import secret_names
from outboxrelay_operator.desired.deployment import RelayImage
from outboxrelay_operator.desired.difference import difference
from outboxrelay_operator.desired.network_policy import NetworkRules
from outboxrelay_operator.names import MANAGED_BY
from outboxrelay_operator.observed import SecretState, parse
from outboxrelay_operator.plan import make_plan
from tests.apiserver.test_fields import LONGEST_NAME
from tests.testbed.api import Api, Object
from tests.testbed.relays import database, relay, topic

NewNamespace = Callable[..., str]

IMAGE = RelayImage(name="outboxrelay/relay:dev", pull_policy="IfNotPresent")
NETWORK = NetworkRules(operator_namespace="outboxrelay", prometheus_namespaces=("monitoring",))

FULL: Object = {
    "databases": [
        database(
            port=6432,
            tls={"caSecretRef": {"name": "orders-ca"}},
            table={"schema": "shop", "columns": {"type": "", "headers": "headers", "createdAt": "created_at"}},
        )
    ],
    "topics": [topic(match=["order", "refund"])],
    "replicas": 3,
    "pod": {
        "image": "registry.example/relay:1",
        "imagePullSecrets": [{"name": "registry"}, {"name": "mirror"}],
        "resources": {
            "requests": {"cpu": "0.5", "memory": "100Mi"},
            "limits": {"cpu": 1, "memory": "1e9", "ephemeral-storage": "1Gi"},
        },
    },
}
LONGEST: Object = {
    "databases": [database("d" * 63, credentialsSecretRef={"name": LONGEST_NAME})],
    "topics": [topic("t" * 63)],
}
SPECS = {"short": {}, "full": FULL, "longest names": LONGEST}


class Rendered:
    """An OutboxRelay in the cluster, without an operator, and what the operator would make of it."""

    def __init__(self, stored: Object) -> None:
        observed = parse(stored)
        assert observed.problem == ""
        known = SecretState(version="1", keys=frozenset({"username", "password", "ca.crt"}))
        secrets: dict[str, SecretState | None] = {name: known for pair in observed.pairs for name in secret_names(pair)}
        self.plan = make_plan(observed, lost={}, secrets=secrets, image=IMAGE, network=NETWORK)

    @property
    def deployment(self) -> Object:
        """The only Deployment."""
        (wanted,) = self.plan.deployments.values()
        return wanted

    @property
    def others(self) -> list[Object]:
        """Everything but the Deployment."""
        return [*self.plan.shared, *self.plan.budgets.values()]

    @property
    def config_map(self) -> Object:
        assert self.plan.config_map is not None
        return self.plan.config_map


@pytest.fixture(params=list(SPECS.values()), ids=list(SPECS))
def rendered(request: pytest.FixtureRequest, crd: Object, api: Api, namespace: str) -> Rendered:
    """One for each spec; the owner exists, or the garbage collector would take what it owns."""
    name = LONGEST_NAME if request.param is LONGEST else "shop"
    return Rendered(api.create(relay(name, namespace=namespace, **request.param)))


def test_deployment_is_accepted_and_stable(rendered: Rendered, api: Api) -> None:
    wanted = rendered.deployment
    first = api.apply(wanted, manager=MANAGED_BY)
    assert difference(wanted, first) is None
    second = api.apply(wanted, manager=MANAGED_BY)
    assert second["metadata"]["generation"] == first["metadata"]["generation"] == 1
    assert second["spec"] == first["spec"]
    assert difference(wanted, second) is None


def test_every_other_object_is_accepted_and_stable(rendered: Rendered, api: Api) -> None:
    kinds = {body["kind"] for body in rendered.others}
    assert kinds >= {"ConfigMap", "ServiceAccount", "NetworkPolicy"}
    for wanted in rendered.others:
        first = api.apply(wanted, manager=MANAGED_BY)
        assert difference(wanted, first) is None
        again = api.apply(wanted, manager=MANAGED_BY)
        assert difference(wanted, again) is None
        # Not the resourceVersion: controllers write a status meanwhile.
        assert again["metadata"].get("generation") == first["metadata"].get("generation")
        assert _applied(again) == _applied(first)


def _applied(body: Object) -> list[Object]:
    """What the operator's applies left in the managed fields, with the time of the last one that changed anything."""
    return [entry for entry in body["metadata"]["managedFields"] if entry["operation"] == "Apply"]


OPENED: dict[str, tuple[str, Object]] = {
    "token": ("ServiceAccount", {"automountServiceAccountToken": True}),
    "all at once": ("PodDisruptionBudget", {"spec": {"maxUnavailable": "100%"}}),
    "everybody comes in": ("NetworkPolicy", {"spec": {"ingress": [{}]}}),
    "every port goes out": ("NetworkPolicy", {"spec": {"egress": [{}]}}),
    "one direction only": ("NetworkPolicy", {"spec": {"policyTypes": ["Ingress"]}}),
}


@pytest.mark.parametrize(("kind", "patch"), OPENED.values(), ids=OPENED.keys())
def test_what_is_opened_by_hand_is_seen_and_closed(
    kind: str, patch: Object, crd: Object, api: Api, namespace: str
) -> None:
    rendered = Rendered(api.create(relay(namespace=namespace, **FULL)))
    [wanted] = [body for body in rendered.others if body["kind"] == kind]
    original = api.apply(wanted, manager=MANAGED_BY)
    opened = api.merge(kind, wanted["metadata"]["name"], patch, namespace=namespace)
    assert difference(wanted, opened) is not None
    closed = api.apply(wanted, manager=MANAGED_BY)
    assert difference(wanted, closed) is None
    assert closed.get("spec") == original.get("spec")


DRIFT: dict[str, Object] = {
    "scaled by hand": {"spec": {"replicas": 9}},
    "rollout paused": {"spec": {"paused": True}},
    "other strategy": {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}},
    "token mounted": {"spec": {"template": {"spec": {"automountServiceAccountToken": True}}}},
    "host's processes": {"spec": {"template": {"spec": {"hostPID": True, "hostIPC": True}}}},
    "host's network": {"spec": {"template": {"spec": {"hostNetwork": True}}}},
    "may run as root": {"spec": {"template": {"spec": {"securityContext": {"runAsNonRoot": False}}}}},
    "digest removed": {"spec": {"template": {"metadata": {"annotations": None}}}},
    "label removed": {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
    "no owner": {"metadata": {"ownerReferences": None}},
    "volume of another Secret": {
        "spec": {
            "template": {
                "spec": {
                    "volumes": [
                        {"name": "config", "configMap": {"name": "other"}},
                        {"name": "database", "secret": {"secretName": "other"}},
                    ]
                }
            }
        }
    },
}


@pytest.mark.parametrize("patch", DRIFT.values(), ids=DRIFT.keys())
def test_drift_is_seen_and_repaired(patch: Object, crd: Object, api: Api, namespace: str) -> None:
    rendered = Rendered(api.create(relay(namespace=namespace)))
    wanted = rendered.deployment
    original = api.apply(wanted, manager=MANAGED_BY)
    drifted = api.merge("Deployment", wanted["metadata"]["name"], patch, namespace=namespace)
    assert difference(wanted, drifted) is not None
    repaired = api.apply(wanted, manager=MANAGED_BY)
    assert difference(wanted, repaired) is None
    assert repaired["spec"] == original["spec"]


def test_another_command_for_the_relay_does_not_stay(crd: Object, api: Api, namespace: str) -> None:
    """It would run instead of the relay; what the operator leaves out of an apply, the API server leaves alone."""
    rendered = Rendered(api.create(relay(namespace=namespace)))
    wanted = rendered.deployment
    original = api.apply(wanted, manager=MANAGED_BY)
    containers = deepcopy(original["spec"]["template"]["spec"]["containers"])
    containers[0]["command"] = ["sleep", "9999"]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    drifted = api.merge("Deployment", wanted["metadata"]["name"], patch, namespace=namespace)
    assert difference(wanted, drifted) == "spec.template.spec.containers[relay].command"
    assert api.apply(wanted, manager=MANAGED_BY)["spec"] == original["spec"]


def test_what_others_add_stays(crd: Object, api: Api, namespace: str) -> None:
    """An annotation or a sidecar that somebody else manages is no drift, and costs no write."""
    rendered = Rendered(api.create(relay(namespace=namespace)))
    wanted = rendered.deployment
    api.apply(wanted, manager=MANAGED_BY)
    addition = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": wanted["metadata"]["name"],
            "namespace": namespace,
            "annotations": {"example.com/owner": "us"},
        },
        "spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "sidecar:1"}]}}},
    }
    live = api.apply(addition, manager="somebody")
    assert [container["name"] for container in live["spec"]["template"]["spec"]["containers"]] == ["relay", "sidecar"]
    assert difference(wanted, live) is None


def test_a_field_no_longer_wanted_goes(crd: Object, api: Api, namespace: str) -> None:
    """The CA's volume leaves with the CA: server-side apply removes what its manager no longer names."""
    with_ca = Rendered(
        api.create(relay(namespace=namespace, databases=[database(tls={"caSecretRef": {"name": "ca"}})]))
    )
    live = api.apply(with_ca.deployment, manager=MANAGED_BY)
    assert [volume["name"] for volume in live["spec"]["template"]["spec"]["volumes"]] == ["config", "database", "ca"]

    without = Rendered(api.merge("OutboxRelay", "shop", {"spec": {"databases": [database()]}}, namespace=namespace))
    assert difference(without.deployment, live) is not None
    live = api.apply(without.deployment, manager=MANAGED_BY)
    assert [volume["name"] for volume in live["spec"]["template"]["spec"]["volumes"]] == ["config", "database"]


def test_ol_11_256_pairs_fit(crd: Object, api: Api, namespace: str) -> None:
    """cases.md OL-11: one config map, of 1 MiB at most, holds the configuration of every pair."""
    databases = [
        database(f"shop-database-{number}", host=f"db-{number}.shop.svc.cluster.local") for number in range(64)
    ]
    topics = [topic(f"t{number}", match=[f"route-{number}-{value}" for value in range(4)]) for number in range(3)]
    rendered = Rendered(api.create(relay(namespace=namespace, databases=databases, topics=[*topics, topic("rest")])))
    assert len(rendered.plan.deployments) == 256
    stored = api.apply(rendered.config_map, manager=MANAGED_BY)
    assert len(stored["data"]) == 256


def test_ol_11_what_does_not_fit_is_told(crd: Object, api: Api, namespace: str) -> None:
    """cases.md OL-11: with every text at its limit 256 configurations are too much; each pair says why."""
    databases = [database(f"{number:02}" + "d" * 61, host="h" * 253) for number in range(64)]
    topics = [
        topic(f"t{number}", topic=f"{number}" * 249, match=[f"{number}{value:03}" + "x" * 124 for value in range(32)])
        for number in range(3)
    ]
    brokers = [f"{number:02}" + "b" * 200 + ":9092" for number in range(16)]
    body = relay(
        LONGEST_NAME,
        namespace=namespace,
        databases=databases,
        topics=[*topics, topic("rest")],
        kafka={"bootstrapServers": brokers},
    )
    rendered = Rendered(api.create(body))
    assert rendered.plan.config_map is None
    assert rendered.plan.deployments == {}
    assert len(rendered.plan.blocked) == 256
    assert {finding.reason for finding in rendered.plan.blocked.values()} == {"InvalidSpec"}
    assert all("shorten the match lists" in finding.message for finding in rendered.plan.blocked.values())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_hp_06_relay_pods_satisfy_the_restricted_level(
    spec: Object, crd: Object, api: Api, new_namespace: NewNamespace
) -> None:
    """cases.md HP-06: judged by the server's own admission; a Deployment would only be warned about."""
    namespace = new_namespace(pod_security="restricted")
    rendered = Rendered(api.create(relay(namespace=namespace, **spec)))
    template = rendered.deployment["spec"]["template"]
    template["metadata"] |= {"name": "x", "namespace": namespace}
    for shared in rendered.plan.shared:
        api.apply(shared, manager=MANAGED_BY)
    pod = api.create({"apiVersion": "v1", "kind": "Pod", **template}, dry_run=True)
    assert pod["spec"]["serviceAccountName"] == rendered.config_map["metadata"]["name"]
    # Nothing but what is listed: the API server would have added the token here.
    assert {kind for volume in pod["spec"]["volumes"] for kind in volume} <= {"name", "configMap", "secret"}
