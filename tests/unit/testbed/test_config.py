"""The components' configuration.

Aspects: what must stay as users have it; nothing listens beyond the cluster's own address; parsable files; no secret in
files or arguments; one API server address everywhere.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests.testbed.selfcontained import config, pki
from tests.testbed.selfcontained.instance import Instance, network

INSTANCE = Instance(Path("/state"))
NETWORK = network(0)


def test_the_kubelet_keeps_the_defaults_that_tests_depend_on() -> None:
    kubelet = json.loads(config.kubelet(INSTANCE, NETWORK))
    assert {"syncFrequency", "maxPods", "serializeImagePulls", "nodeStatusUpdateFrequency"}.isdisjoint(kubelet)
    assert kubelet["cgroupRoot"] == f"/{INSTANCE.cgroup}"
    assert kubelet["readOnlyPort"] == 0
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}


def test_no_component_listens_on_every_address() -> None:
    texts = [*config.files(INSTANCE, NETWORK, pause_image="pause:1").values()]
    texts += [word for words in config.arguments(INSTANCE, NETWORK).values() for word in words]
    assert not [text for text in texts if "0.0.0.0:" in text or '"0.0.0.0"' in text or text.endswith("=0.0.0.0")]
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        assert f"--bind-address={NETWORK.node_address}" in config.arguments(INSTANCE, NETWORK)[name]


def test_containerd_is_configured_in_toml_even_for_odd_paths() -> None:
    odd = Instance(Path('/sta"te \\ x'))
    parsed = tomllib.loads(config.containerd(odd, pause_image="outboxrelay/pause:1"))
    cri = parsed["plugins"]["io.containerd.grpc.v1.cri"]
    assert parsed["root"] == str(odd.state / "containerd")
    assert cri["sandbox_image"] == "outboxrelay/pause:1"
    assert cri["restrict_oom_score_adj"] is True


def test_pods_get_addresses_of_the_plan_and_are_not_masqueraded() -> None:
    plugin = json.loads(config.cni(NETWORK))["plugins"][0]
    assert plugin["ipMasq"] is False
    assert plugin["ipam"]["ranges"] == [[{"subnet": str(NETWORK.pods)}]]


def test_a_kubeconfig_has_one_context_and_the_api_servers_address() -> None:
    login = json.loads(config.kubeconfig(NETWORK, user="admin", token="t", authority_base64="Y2E="))
    assert [context["name"] for context in login["contexts"]] == [login["current-context"]]
    assert login["clusters"][0]["cluster"]["server"] == NETWORK.api_url


def test_tokens_are_neither_in_files_nor_in_arguments() -> None:
    tokens = pki.new_tokens()
    texts = [
        *config.files(INSTANCE, NETWORK, pause_image="p").values(),
        json.dumps(config.arguments(INSTANCE, NETWORK)),
    ]
    assert not [token for token in tokens.values() for text in texts if token in text]


def test_the_dns_user_of_the_binding_can_log_in() -> None:
    binding = json.loads(config.dns_access())["items"][1]
    assert binding["subjects"][0]["name"] in pki.USERS


def test_only_what_pods_ask_for_is_logged_and_no_content() -> None:
    policy = json.loads(config.audit_policy())
    assert [rule["level"] for rule in policy["rules"]] == ["None", "Metadata", "None"]


def test_kube_proxy_leaves_the_hosts_connection_tracking_alone() -> None:
    conntrack = json.loads(config.kube_proxy(INSTANCE, NETWORK))["conntrack"]
    assert conntrack == {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}


def test_the_arguments_name_only_files_that_are_written() -> None:
    written = {str(path) for path in config.files(INSTANCE, NETWORK, pause_image="p")}
    logins = {f"{INSTANCE.config}/{name}.kubeconfig" for name in config.arguments(INSTANCE, NETWORK)}
    words = [word for words in config.arguments(INSTANCE, NETWORK).values() for word in words]
    named = {word.partition("=")[2] for word in words if f"={INSTANCE.config}/" in word}
    assert named <= written | logins
