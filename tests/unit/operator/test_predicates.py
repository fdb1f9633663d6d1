"""Which events wake a resource: what others change, never the operator's own status writes (trap of on.event)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outboxrelay_operator.predicates import News
from tests.unit.operator.builders import KEY, live, relay
from tests.unit.operator.test_deployment import render

Change = Callable[[dict[str, Any]], Any]


def test_a_new_resource_is_news_once() -> None:
    news = News()
    assert news.of_relay(None, relay()) == KEY
    assert news.of_relay("ADDED", relay()) is None
    assert news.of_relay("MODIFIED", relay(generation=2)) == KEY


def test_ol_08_status_labels_and_annotations_of_a_resource_are_no_news() -> None:
    """cases.md OL-08."""
    news = News()
    news.of_relay(None, relay())
    body = relay() | {"status": {"backlog": 5}}
    body["metadata"] |= {"resourceVersion": "99", "labels": {"a": "b"}, "annotations": {"c": "d"}, "managedFields": []}
    assert news.of_relay("MODIFIED", body) is None


def test_a_resource_that_goes_or_comes_back_is_news() -> None:
    news = News()
    news.of_relay(None, relay())
    going = relay()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert news.of_relay("MODIFIED", going) == KEY
    assert news.of_relay("DELETED", going) == KEY
    again = relay()
    again["metadata"]["uid"] = "another"
    assert news.of_relay("ADDED", again) == KEY


DEPLOYMENT_CHANGES: dict[str, Change] = {
    "spec": lambda body: body["metadata"].update(generation=2),
    "labels": lambda body: body["metadata"]["labels"].clear(),
    "owner": lambda body: body["metadata"]["ownerReferences"][0].update(uid="x"),
    "ready": lambda body: body["status"].update(readyReplicas=0),
    "condition": lambda body: body["status"].update(conditions=[{"type": "ReplicaFailure", "status": "True"}]),
    "uid": lambda body: body["metadata"].update(uid="recreated"),
}


@pytest.mark.parametrize("change", DEPLOYMENT_CHANGES.values(), ids=DEPLOYMENT_CHANGES.keys())
def test_a_deployment_that_changed_wakes_its_owner(change: Change) -> None:
    news = News()
    assert news.of_deployment(None, live(render())) == KEY
    body = live(render())
    assert news.of_deployment("MODIFIED", body) is None
    body = live(render())
    change(body)
    assert news.of_deployment("MODIFIED", body) == KEY


def test_what_moves_by_itself_in_a_deployment_is_no_news() -> None:
    news = News()
    condition = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "lastUpdateTime": "1"}
    news.of_deployment(None, live(render(), conditions=[condition]))
    later = live(render(), conditions=[condition | {"lastUpdateTime": "2", "message": "other"}])
    assert news.of_deployment("MODIFIED", later) is None


def test_another_reason_why_pods_cannot_be_created_is_news() -> None:
    news = News()
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: a"}
    news.of_deployment(None, live(render(), conditions=[failure]))
    other = live(render(), conditions=[failure | {"message": "exceeded quota: b"}])
    assert news.of_deployment("MODIFIED", other) == KEY


def test_a_deployment_that_lost_its_owner_still_wakes_it() -> None:
    news = News()
    news.of_deployment(None, live(render()))
    orphan = live(render())
    orphan["metadata"]["ownerReferences"] = []
    assert news.of_deployment("MODIFIED", orphan) == KEY
    assert news.of_deployment("DELETED", orphan) == KEY


def test_a_deployment_of_nobody_wakes_nobody() -> None:
    orphan = live(render())
    del orphan["metadata"]["ownerReferences"]
    assert News().of_deployment("ADDED", orphan) is None
