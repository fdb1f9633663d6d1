"""The rendered objects: byte-stable, least privilege, and free of secrets.

Covers OS-06 (a template that changes for no reason restarts a fleet), HP-06 and SE-01.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from outboxrelay_operator.api import OutboxRelaySpec
from outboxrelay_operator.desired.config_map import config_map
from outboxrelay_operator.desired.deployment import deployment
from outboxrelay_operator.desired.relay_config import relay_config
from outboxrelay_operator.pairs import pairs_of
from tests.unit.operator.builders import IMAGE, KEY, OWNER, raw_database, raw_spec, raw_topic

GOLDEN = Path(__file__).parent / "golden" / "deployment.json"

RAW = raw_spec(
    databases=[
        raw_database(
            tls={"caSecretRef": {"name": "orders-db-ca"}},
            credentialsSecretRef={"name": "orders-db", "usernameKey": "user"},
        )
    ],
    topics=[raw_topic(match=["order"])],
)


def render(raw: dict[str, Any] | None = None, *, replicas: int = 1) -> dict[str, Any]:
    spec = OutboxRelaySpec.model_validate(raw or RAW)
    pair = pairs_of(KEY, spec)[0]
    config = relay_config(pair, spec)
    return deployment(OWNER, pair, config=config, replicas=replicas, pod=spec.pod, image=IMAGE)


def changed(**changes: Any) -> dict[str, Any]:
    raw = deepcopy(RAW)
    raw.update(changes)
    return render(raw)


def template(body: dict[str, Any]) -> Any:
    return body["spec"]["template"]


def test_os_06_the_deployment_is_what_it_was() -> None:
    """cases.md OS-06. If this fails, every relay of every installation restarts on upgrade: is that wanted?"""
    assert json.dumps(render(), indent=1) + "\n" == GOLDEN.read_text()


def test_os_06_changes_beside_the_pair_do_not_roll_its_pods() -> None:
    """cases.md OS-06."""
    scaled = render(replicas=5)
    assert template(scaled) == template(render())
    assert scaled["spec"]["replicas"] == 5
    grown = changed(topics=[raw_topic(match=["order"]), raw_topic("refunds", match=["refund"])])
    assert template(grown) == template(render())


def test_a_changed_configuration_rolls_the_pods() -> None:
    moved = changed(kafka={"bootstrapServers": ["kafka-2:9092"]})
    assert template(moved) != template(render())
    assert moved["spec"]["selector"] == render()["spec"]["selector"]


def test_pods_of_another_template_can_be_told_apart() -> None:
    """Also where the configuration is the same: another image, other resources."""
    bodies = [render(), changed(pod={"image": "other"}), changed(pod={"resources": {"limits": {"memory": "1Gi"}}})]
    assert len({template(body)["metadata"]["annotations"]["outboxrelay.io/template-digest"] for body in bodies}) == 3
    assert len({template(body)["metadata"]["annotations"]["outboxrelay.io/config-digest"] for body in bodies}) == 1


def test_every_change_of_the_object_changes_the_applied_digest() -> None:
    digests = {
        body["metadata"]["annotations"]["outboxrelay.io/applied-digest"]
        for body in (render(), render(replicas=2), changed(pod={"image": "other"}), changed(lanes=32))
    }
    assert len(digests) == 4


def test_given_resources_replace_the_default_as_a_whole() -> None:
    given = changed(pod={"resources": {"limits": {"memory": "512Mi", "ephemeral-storage": "1Gi"}}})
    container = template(given)["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"memory": "512Mi", "ephemeral-storage": "1Gi"}}


def test_hp_06_pods_comply_with_the_restricted_level_and_get_no_token() -> None:
    """cases.md HP-06."""
    pod = template(render())["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {kind for volume in pod["volumes"] for kind in volume} == {"name", "configMap", "secret"}


def test_only_the_named_keys_of_a_secret_are_mounted() -> None:
    volumes = {volume["name"]: volume for volume in template(render())["spec"]["volumes"]}
    assert volumes["database"]["secret"] == {
        "secretName": "orders-db",
        "items": [{"key": "user", "path": "username"}, {"key": "password", "path": "password"}],
    }
    assert volumes["ca"]["secret"] == {"secretName": "orders-db-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_without_a_ca_none_is_mounted() -> None:
    pod = template(render(raw_spec()))["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["config", "database"]
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["config", "database"]


def test_the_mounted_key_is_in_the_config_map() -> None:
    spec = OutboxRelaySpec.model_validate(RAW)
    pair = pairs_of(KEY, spec)[0]
    config = relay_config(pair, spec)
    [volume] = [volume for volume in template(render())["spec"]["volumes"] if volume["name"] == "config"]
    from outboxrelay_operator.desired.config_map import config_key

    body = config_map(OWNER, {config_key(pair.name, config): config})
    assert body["metadata"]["name"] == volume["configMap"]["name"]
    assert body["data"][volume["configMap"]["items"][0]["key"]] == config
