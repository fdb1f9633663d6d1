"""What is remembered of resources: events keep it true, and a survey finds what no event told of."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from outboxrelay_operator.fleet import Fleet, Novelty
from outboxrelay_operator.gather import complete, gather, survey
from outboxrelay_operator.kube import Kind, Object, lean
from outboxrelay_operator.names import labels, shared_name
from outboxrelay_operator.observed import Observed, parse
from outboxrelay_operator.pairs import Key
from tests.unit.operator.builders import KEY, OWNER, raw_spec, relay
from tests.unit.operator.fake_kube import FakeKube

_OWNED = ("OutboxRelay", "ConfigMap", "ServiceAccount", "NetworkPolicy", "Deployment", "PodDisruptionBudget")


def deployment(name: str = "pair", *, version: int = 5, ready: int = 0, **meta: Any) -> Object:
    metadata = {"namespace": KEY.namespace, "name": name, "uid": "u", "labels": labels(KEY.name)}
    metadata |= {"resourceVersion": str(version)} | meta
    return {"metadata": metadata, "spec": {}, "status": {"readyReplicas": ready}}


async def remembering(kube: FakeKube) -> Fleet:
    """A fleet that has read the resource."""
    fleet = Fleet(clock=lambda: 0.0)
    fleet.reading(KEY)
    observed = await gather(kube, KEY)
    assert observed is not None
    fleet.saw(observed)
    return fleet


@pytest.fixture
def kube() -> FakeKube:
    """An OutboxRelay with one object of each kind that the operator makes."""
    kube = FakeKube()
    kube.put(Kind.OUTBOX_RELAY, relay())
    for kind in (Kind.CONFIG_MAP, Kind.SERVICE_ACCOUNT, Kind.NETWORK_POLICY):
        meta = {"namespace": KEY.namespace, "name": shared_name(KEY.name), "labels": labels(KEY.name)}
        kube.put(kind, {"kind": kind.word, "metadata": meta})
    for kind in (Kind.DEPLOYMENT, Kind.DISRUPTION_BUDGET):
        # An item of a list does not say of which kind it is.
        meta = {"namespace": KEY.namespace, "name": "pair", "labels": labels(KEY.name)}
        kube.put(kind, {"metadata": meta, "spec": {}})
    return kube


def ready(fleet: Fleet) -> int | None:
    """Ready pods of the Deployment as remembered; None: it must be read again."""
    seen = fleet.seen(KEY)
    return None if seen is None else seen.deployments["pair"].get("status", {}).get("readyReplicas")


class TestEvents:
    """An event has the whole object: to ask for it again would cost six requests for every pod that gets ready."""

    async def test_a_deployment_is_taken_as_it_is(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, deployment(version=100, ready=1))
        assert ready(fleet) == 1

    async def test_an_event_that_is_late_changes_nothing(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, deployment(version=100, ready=1))
        fleet.told_of_deployment(KEY, deployment(version=99, ready=0))
        assert ready(fleet) == 1

    async def test_of_the_same_spec_only_one_is_kept(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, deployment(version=100, generation=1) | {"spec": {"replicas": 1}})
        seen = fleet.seen(KEY)
        assert seen is not None
        held = seen.deployments["pair"]["spec"]
        fleet.told_of_deployment(KEY, deployment(version=101, generation=1, ready=1) | {"spec": {"replicas": 1}})
        assert (seen.deployments["pair"]["spec"] is held, ready(fleet)) == (True, 1)
        fleet.told_of_deployment(KEY, deployment(version=102, generation=2) | {"spec": {"replicas": 2}})
        assert seen.deployments["pair"]["spec"] == {"replicas": 2}

    async def test_a_spec_that_was_told_of_before_need_not_be_told_of_again(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, deployment(version=100, generation=1) | {"spec": {"replicas": 1}})
        later = deployment(version=101, generation=1, ready=1)
        del later["spec"]
        assert fleet.told_of_deployment(KEY, later) is Novelty.STATE
        seen = fleet.seen(KEY)
        assert seen is not None
        assert (seen.deployments["pair"]["spec"], ready(fleet)) == ({"replicas": 1}, 1)

    async def test_a_spec_that_was_told_of_before_and_is_not_remembered_is_read(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        later = deployment(version=101, generation=2)
        del later["spec"]
        assert fleet.told_of_deployment(KEY, later) is Novelty.CHANGE
        assert fleet.seen(KEY) is None

    async def test_an_answer_that_an_event_has_overtaken_changes_nothing(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, deployment(version=100, ready=1))
        seen = fleet.seen(KEY)
        assert seen is not None
        seen.took(deployment(version=98))
        assert ready(fleet) == 1

    async def test_one_that_was_made_anew_is_not_compared_with_its_predecessor(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, deployment(version=100, ready=1))
        fleet.told_of_deployment(KEY, deployment(version=7, ready=2, uid="another"))
        assert ready(fleet) == 2

    @pytest.mark.parametrize(
        "live", [None, deployment(version=100, labels={})], ids=["it is gone", "it lost its labels"]
    )
    async def test_what_is_unclear_is_read(self, kube: FakeKube, live: Object | None) -> None:
        fleet = await remembering(kube)
        fleet.told_of_deployment(KEY, live)
        assert fleet.seen(KEY) is None

    async def test_what_is_told_during_a_read_and_is_newer_needs_another_one(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.reading(KEY)
        observed = await gather(kube, KEY)
        assert observed is not None
        assert fleet.told_of_deployment(KEY, deployment(version=100, ready=1)) is Novelty.CHANGE
        fleet.saw(observed)
        assert fleet.seen(KEY) is None
        fleet.reading(KEY)
        fleet.saw(observed)
        assert fleet.seen(KEY) is not None

    async def test_what_is_told_during_a_read_and_was_found_needs_none(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        fleet.reading(KEY)
        fleet.told_of_relay(KEY, deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name]))
        fleet.told_of_deployment(KEY, deepcopy(kube.objects[Kind.DEPLOYMENT, KEY.namespace, "pair"]))
        observed = await gather(kube, KEY)
        assert observed is not None
        fleet.saw(observed)
        assert fleet.seen(KEY) is not None

    async def test_only_what_is_new_is_news(self, kube: FakeKube) -> None:
        """What the operator itself applied comes back as an event, and wakes nobody."""
        fleet = await remembering(kube)
        seen = fleet.seen(KEY)
        assert seen is not None
        spec = {"spec": {"replicas": 1}}
        seen.took(deployment(version=100, generation=1) | spec)
        same = deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name])
        assert [
            fleet.told_of_relay(KEY, same),
            fleet.told_of_deployment(KEY, deployment(version=100, generation=1) | spec),
            fleet.told_of_deployment(KEY, deployment(version=101, generation=1, ready=1) | spec),
            fleet.told_of_deployment(KEY, deployment(version=102, generation=2, ready=1) | spec),
            fleet.told_of_deployment(KEY, None),
        ] == [Novelty.NOTHING, Novelty.NOTHING, Novelty.STATE, Novelty.CHANGE, Novelty.CHANGE]

    async def test_a_resource_is_read_if_its_spec_is_another(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        same = deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name])
        fleet.told_of_relay(KEY, same)
        assert fleet.seen(KEY) is not None
        same["metadata"]["generation"] += 1
        fleet.told_of_relay(KEY, same)
        assert fleet.seen(KEY) is None

    async def test_a_resource_that_is_going_is_read(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        going = deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name])
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        fleet.told_of_relay(KEY, going)
        assert fleet.seen(KEY) is None


class TestMemory:
    """What the claims, the measuring and the passes keep of one spec is one thing, however often it is read."""

    @staticmethod
    async def read(fleet: Fleet, kube: FakeKube) -> Observed:
        observed = await gather(kube, KEY)
        assert observed is not None
        fleet.saw(observed)
        return observed

    async def test_the_same_spec_is_kept_once(self, kube: FakeKube) -> None:
        fleet = Fleet(clock=lambda: 0.0)
        first, second = await self.read(fleet, kube), await self.read(fleet, kube)
        assert (second.spec is first.spec, second.pairs is first.pairs) == (True, True)

    async def test_another_spec_or_another_resource_is_not_taken_for_it(self, kube: FakeKube) -> None:
        fleet = Fleet(clock=lambda: 0.0)
        first = await self.read(fleet, kube)
        kube.put(Kind.OUTBOX_RELAY, relay(raw_spec(replicas=2)))
        second = await self.read(fleet, kube)
        assert second.spec is not None
        assert (second.spec.replicas, second.configs is first.configs) == (2, False)
        again = relay(raw_spec(replicas=2))
        again["metadata"]["uid"] = "another"
        kube.drop(Kind.OUTBOX_RELAY, KEY.namespace, KEY.name)
        kube.put(Kind.OUTBOX_RELAY, again)
        assert (await self.read(fleet, kube)).owner.uid == "another"

    def test_words_that_two_objects_share_are_kept_once(self) -> None:
        text = json.dumps(deployment(managedFields=[{"manager": "m"}]) | {"spec": {"list": [{"image": "i:1"}]}})
        first, second = lean(json.loads(text)), lean(json.loads(text))
        assert first == deployment() | {"spec": {"list": [{"image": "i:1"}]}}
        assert first["spec"]["list"][0]["image"] is second["spec"]["list"][0]["image"]


class TestStart:
    """A fleet is known from a few lists, however large it is."""

    @pytest.mark.parametrize("namespace", [None, KEY.namespace])
    async def test_a_resource_is_known_as_if_it_had_been_read(self, kube: FakeKube, namespace: str | None) -> None:
        other = relay()
        other["metadata"] |= {"name": "another"}
        kube.put(Kind.OUTBOX_RELAY, other)
        kube.put(Kind.DEPLOYMENT, deployment("of-another", labels=labels("another")))
        kube.put(Kind.DEPLOYMENT, deployment("of-nobody-there", labels=labels("gone")))
        listed = [parse(body) for body in await kube.list(Kind.OUTBOX_RELAY, namespace)]
        lists = len(kube.lists)
        await complete(kube, namespace, listed)
        assert listed == [await gather(kube, KEY), await gather(kube, Key(KEY.namespace, "another"))]
        assert len(kube.lists) == lists + len(_OWNED) - 1 + 2 * 2

    async def test_a_config_map_with_another_name_is_not_the_resources_own(self, kube: FakeKube) -> None:
        meta = {"namespace": KEY.namespace, "name": "copy", "labels": labels(KEY.name)}
        kube.put(Kind.CONFIG_MAP, {"kind": "ConfigMap", "metadata": meta})
        [found] = [parse(body) for body in await kube.list(Kind.OUTBOX_RELAY, None)]
        await complete(kube, None, [found])
        assert found.shared["ConfigMap"]["metadata"]["name"] == shared_name(KEY.name)

    @staticmethod
    async def listed(kube: FakeKube) -> Observed:
        [observed] = [parse(deepcopy(body)) for body in await kube.list(Kind.OUTBOX_RELAY, None)]
        await complete(kube, None, [observed])
        return observed

    async def test_what_watches_list_meanwhile_needs_no_read(self, kube: FakeKube) -> None:
        """They begin at the same time, and tell of everything once: of a thousand resources, not one is read."""
        fleet = Fleet(clock=lambda: 0.0)
        fleet.listing()
        observed = await self.listed(kube)
        fleet.told_of_relay(KEY, deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name]))
        fleet.told_of_deployment(KEY, deepcopy(kube.objects[Kind.DEPLOYMENT, KEY.namespace, "pair"]))
        fleet.saw(observed)
        fleet.listed()
        assert fleet.seen(KEY) is observed

    @pytest.mark.parametrize(
        "live",
        [
            deployment(version=100, ready=1),
            deployment(version=1, uid="another"),
            deployment("another", version=1),
            deployment(version=1, labels={}),
            None,
        ],
        ids=["newer", "made anew", "not found", "it lost its labels", "it is gone"],
    )
    async def test_a_deployment_that_changes_meanwhile_needs_a_read(self, kube: FakeKube, live: Object | None) -> None:
        fleet = Fleet(clock=lambda: 0.0)
        fleet.listing()
        observed = await self.listed(kube)
        fleet.told_of_deployment(KEY, live)
        fleet.saw(observed)
        fleet.listed()
        assert fleet.seen(KEY) is None

    @pytest.mark.parametrize(("newer", "read"), [(True, True), (False, False)])
    async def test_a_resource_with_another_spec_needs_a_read_if_it_is_newer(
        self, kube: FakeKube, newer: bool, read: bool
    ) -> None:
        fleet = Fleet(clock=lambda: 0.0)
        fleet.listing()
        observed = await self.listed(kube)
        other = deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name])
        other["metadata"]["generation"] += 1
        other["metadata"]["resourceVersion"] = str(int(observed.version) + (1 if newer else -1))
        fleet.told_of_relay(KEY, other)
        fleet.saw(observed)
        fleet.listed()
        assert (fleet.seen(KEY) is None) == read

    async def test_what_no_list_found_is_read(self, kube: FakeKube) -> None:
        fleet = Fleet(clock=lambda: 0.0)
        fleet.listing()
        told = fleet.told_of_relay(KEY, deepcopy(kube.objects[Kind.OUTBOX_RELAY, KEY.namespace, KEY.name]))
        fleet.listed()
        assert (told, fleet.seen(KEY)) == (Novelty.CHANGE, None)

    async def test_what_was_told_before_needs_none(self, kube: FakeKube) -> None:
        fleet = Fleet(clock=lambda: 0.0)
        fleet.invalidate(KEY)
        fleet.listing()
        [body] = await kube.list(Kind.OUTBOX_RELAY, None)
        fleet.saw(parse(body))
        assert fleet.seen(KEY) is not None


class TestSurvey:
    """It costs a few lists, and finds every difference."""

    async def test_nothing_differs_while_nothing_changed(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        for scope in (None, KEY.namespace):
            assert fleet.differing(scope, await survey(kube, scope)) == []

    @pytest.mark.parametrize("kind", [kind for kind in Kind if kind.word in _OWNED])
    @pytest.mark.parametrize("gone", [False, True])
    async def test_an_object_that_changed_or_went_is_found(self, kube: FakeKube, kind: Kind, gone: bool) -> None:
        fleet = await remembering(kube)
        [where] = [where for where in kube.objects if where[0] is kind]
        if gone:
            kube.drop(*where)
        else:
            kube.put(kind, deepcopy(kube.objects[where]))
        assert fleet.differing(None, await survey(kube, None)) == [KEY]

    async def test_an_object_that_somebody_added_is_found(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        kube.put(Kind.DEPLOYMENT, deployment("another"))
        assert fleet.differing(None, await survey(kube, None)) == [KEY]

    async def test_a_resource_that_nobody_told_of_is_found(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        other = relay()
        other["metadata"] |= {"namespace": "other"}
        kube.put(Kind.OUTBOX_RELAY, other)
        assert fleet.differing(None, await survey(kube, None)) == [Key("other", OWNER.key.name)]
        assert fleet.differing(KEY.namespace, await survey(kube, KEY.namespace)) == []

    async def test_a_namespace_that_cannot_be_asked_differs_in_all_that_is_known(self, kube: FakeKube) -> None:
        fleet = await remembering(kube)
        assert fleet.differing(KEY.namespace, {}) == [KEY]
        assert fleet.differing("other", {}) == []
