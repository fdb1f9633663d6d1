"""The demo's manifests: valid for the restricted Pod Security level, and consistent with the resource."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from tests.demo import install, manifests
from tests.demo.shop.consumer import TOPICS


def _of(kind: str, made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {manifest["metadata"]["name"]: manifest for manifest in made if manifest["kind"] == kind}


def _resource() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(install.RESOURCE.read_text())
    return loaded


def test_the_resource_names_three_pairs_over_two_topics() -> None:
    spec = _resource()["spec"]
    databases = [database["name"] for database in spec["databases"]]
    pairs = [(database, topic["topic"]) for topic in spec["topics"] for database in topic.get("databases", databases)]
    assert pairs == [("orders", "shop.orders"), ("orders", "shop.billing"), ("payments", "shop.billing")]
    assert {topic["topic"] for topic in spec["topics"]} == set(TOPICS)


def test_every_secret_that_the_resource_names_is_there_with_its_keys() -> None:
    secrets = _of("Secret", manifests.services())
    for database in _resource()["spec"]["databases"]:
        assert database["host"] in _of("Service", manifests.services())
        assert {"username", "password"} <= secrets[database["credentialsSecretRef"]["name"]]["data"].keys()
        ca = secrets[database["tls"]["caSecretRef"]["name"]]["data"]["ca.crt"]
        assert base64.b64decode(ca).startswith(b"-----BEGIN CERTIFICATE")


def test_passwords_are_new_each_time() -> None:
    first, second = (_of("Secret", manifests.services())["orders-db-relay"]["data"]["password"] for _ in range(2))
    assert first != second


def test_the_relay_may_read_and_delete_outbox_rows_and_nothing_else() -> None:
    for database in manifests.DATABASES:
        text = manifests.setup_sql(database, relay="relay")
        assert [line for line in text.splitlines() if line.startswith("grant")] == [
            "grant select, delete on outbox to relay;"
        ]


def test_pods_satisfy_the_restricted_level() -> None:
    assert manifests.namespace()["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for deployment in _of("Deployment", [*manifests.services(), *manifests.shop()]).values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_shop_s_pods_find_what_they_mount() -> None:
    secrets = _of("Secret", manifests.services())
    for deployment in _of("Deployment", manifests.shop()).values():
        pod = deployment["spec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert set(mounts.values()) == volumes.keys()
        assert {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume} <= secrets.keys()
        for variable in pod["containers"][0]["env"]:
            if variable["name"].endswith("_LOGIN"):
                assert variable["value"] in mounts


def test_the_writer_waits_for_the_demo_to_start_it() -> None:
    assert _of("Deployment", manifests.shop())["shop-writer"]["spec"]["replicas"] == 0


def test_the_shop_s_code_is_complete_and_small_enough_for_a_config_map() -> None:
    code = _of("ConfigMap", manifests.shop())["shop-code"]["data"]
    assert {"__init__.py", "writer.py", "consumer.py", "checker.py"} <= code.keys()
    assert sum(map(len, code.values())) < 500_000
