"""Whether a live object still says what we want: defaults and other people's additions are no difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outboxrelay_operator.desired.difference import difference
from tests.unit.operator.builders import live
from tests.unit.operator.test_deployment import render

Change = Callable[[dict[str, Any]], Any]


def container(body: dict[str, Any]) -> Any:
    return body["spec"]["template"]["spec"]["containers"][0]


def test_an_object_as_the_api_server_returns_it_does_not_differ() -> None:
    assert difference(render(), live(render())) is None


FOREIGN: dict[str, Change] = {
    "another label": lambda body: body["metadata"]["labels"].update(team="a"),
    "another annotation": lambda body: body["metadata"]["annotations"].update(note="b"),
    "another environment variable": lambda body: container(body)["env"].insert(0, {"name": "X", "value": "1"}),
    "an injected container": lambda body: body["spec"]["template"]["spec"]["containers"].insert(0, {"name": "proxy"}),
    "a quantity in canonical form": lambda body: container(body)["resources"]["limits"].update(memory="262144Ki"),
    "a list item without apiVersion": lambda body: body.pop("apiVersion"),
    "a false value that is left out": lambda body: body["spec"].pop("paused"),
    "an empty list that is left out": lambda body: container(body).pop("command"),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_others_add_is_theirs(change: Change) -> None:
    body = live(render())
    change(body)
    assert difference(render(), body) is None


DRIFT: dict[str, Change] = {
    "spec.replicas": lambda body: body["spec"].update(replicas=3),
    "spec.paused": lambda body: body["spec"].update(paused=True),
    "metadata.labels.outboxrelay.io/pair": lambda body: body["metadata"]["labels"].pop("outboxrelay.io/pair"),
    "metadata.ownerReferences[uid-shop]": lambda body: body["metadata"].update(ownerReferences=[]),
    "spec.template.spec.containers[relay].image": lambda body: container(body).update(image="other"),
    "spec.template.spec.containers[relay].env[POD_NAME]": lambda body: container(body)["env"].pop(0),
    "spec.template.spec.hostNetwork": lambda body: body["spec"]["template"]["spec"].update(hostNetwork=True),
    "spec.template.spec.containers[relay].command": lambda body: container(body).update(command=["sleep", "9"]),
    "spec.template.spec.containers[relay].args": lambda body: container(body)["args"].append("--x"),
    "spec.template.spec.containers[relay].args[0]": lambda body: container(body)["args"].__setitem__(0, "check"),
    "spec.template.spec.containers[relay].resources.limits.memory": lambda body: container(body)["resources"][
        "limits"
    ].update(memory="1Gi"),
    "spec.template.spec.containers[relay].securityContext.readOnlyRootFilesystem": lambda body: container(body)[
        "securityContext"
    ].update(readOnlyRootFilesystem=False),
    "spec.template.spec.automountServiceAccountToken": lambda body: body["spec"]["template"]["spec"].update(
        automountServiceAccountToken=True
    ),
}


def test_a_false_value_whose_absence_means_true_is_missed() -> None:
    body = live(render())
    del body["spec"]["template"]["spec"]["automountServiceAccountToken"]
    assert difference(render(), body) == "spec.template.spec.automountServiceAccountToken"


@pytest.mark.parametrize("path", DRIFT)
def test_drift_is_found_and_named(path: str) -> None:
    body = live(render())
    DRIFT[path](body)
    assert difference(render(), body) == path
