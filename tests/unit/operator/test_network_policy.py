"""The NetworkPolicy of relays: by port where names are all there is, and closed to everybody who has no business."""

from __future__ import annotations

from typing import Any

import pytest

from outboxrelay_operator.desired.network_policy import NetworkRules, network_policy
from outboxrelay_operator.names import MANAGED_BY, NAME_LABEL, labels
from outboxrelay_operator.settings import SettingsError, read
from tests.unit.operator.builders import KEY, OWNER, raw_database, spec

RULES = NetworkRules(operator_namespace="outboxrelay")


def policy(rules: NetworkRules = RULES, **changes: Any) -> Any:
    return network_policy(OWNER, spec(**changes), rules)["spec"]


def egress(rules: NetworkRules = RULES, **changes: Any) -> list[list[tuple[str, int]]]:
    rendered = policy(rules, **changes)["egress"]
    assert all(rule.keys() == {"ports"} for rule in rendered)
    return [[(port["protocol"], port["port"]) for port in rule["ports"]] for rule in rendered]


def test_it_selects_the_relays_of_its_resource_in_both_directions() -> None:
    rendered = policy()
    assert rendered["podSelector"] == {"matchLabels": labels(KEY.name)}
    assert rendered["policyTypes"] == ["Ingress", "Egress"]


def test_databases_brokers_and_dns_may_be_reached() -> None:
    databases = [raw_database(), raw_database("payments", port=6432)]
    kafka = {"bootstrapServers": ["kafka:9093", "[::1]:9094"]}
    assert egress(databases=databases, kafka=kafka) == [
        [("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)],
        [("TCP", 5432), ("TCP", 6432), ("TCP", 9093), ("TCP", 9094)],
    ]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("https://idp.example/token", 443),
        ("https://idp.example:8443/token?x=1", 8443),
        ("https://[::1]:8443", 8443),
        ("https://idp.example/a:81/", 443),
        # What the schema lets through and no client takes must not keep the rest from being told.
        ("https://idp.example:99999/token", 99999),
        ("https://idp.example:port/token", 443),
        ("https://[::1/token", 443),
    ],
)
def test_so_may_the_endpoint_of_tokens(url: str, port: int) -> None:
    sasl = {"mechanism": "OAUTHBEARER", "credentialsSecretRef": {"name": "x"}, "oauth": {"tokenEndpointUrl": url}}
    assert ("TCP", port) in egress(kafka={"bootstrapServers": ["kafka:9093"], "tls": {}, "sasl": sasl})[1]


def test_further_ports_are_the_installers_choice() -> None:
    rules = NetworkRules(operator_namespace="outboxrelay", dns_ports=(1053,), extra_egress_ports=(19092, 5432))
    assert egress(rules) == [
        [("UDP", 1053), ("TCP", 1053)],
        [("TCP", 5432), ("TCP", 9092), ("TCP", 19092)],
    ]


def test_only_the_operator_and_prometheus_come_in() -> None:
    rules = NetworkRules(operator_namespace="outboxrelay", prometheus_namespaces=("monitoring",))
    [rule] = policy(rules)["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert rule["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "outboxrelay"}},
            "podSelector": {"matchLabels": {NAME_LABEL: MANAGED_BY}},
        },
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]


class TestSetting:
    """How the chart tells the operator."""

    def test_it_is_off_by_default(self) -> None:
        assert read({}).network is None

    def test_what_is_given(self) -> None:
        text = '{"prometheusNamespaces": ["monitoring"], "dnsPorts": [53], "extraEgressPorts": [9094]}'
        assert read({"OUTBOXRELAY_NETWORK_POLICY": text, "POD_NAMESPACE": "sys"}).network == NetworkRules(
            operator_namespace="sys",
            prometheus_namespaces=("monitoring",),
            dns_ports=(53,),
            extra_egress_ports=(9094,),
        )

    @pytest.mark.parametrize("text", ["yes", '{"prometheus": []}', '{"dnsPorts": [0]}', '{"dnsPorts": "53"}'])
    def test_what_is_wrong_is_named(self, text: str) -> None:
        with pytest.raises(SettingsError, match="OUTBOXRELAY_NETWORK_POLICY"):
            read({"OUTBOXRELAY_NETWORK_POLICY": text})
