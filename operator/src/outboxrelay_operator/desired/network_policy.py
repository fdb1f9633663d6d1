"""The NetworkPolicy of the relays of one OutboxRelay.

Databases and brokers are known by name, and a policy knows addresses and labels only: so what is allowed to go out is
limited by port. Policies add up, so whoever needs more for a namespace can allow it there by a policy of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outboxrelay_operator.api.spec import OutboxRelaySpec
from outboxrelay_operator.desired.applied import marked
from outboxrelay_operator.desired.metadata import Object, metadata
from outboxrelay_operator.desired.relay_config import STATUS_PORT
from outboxrelay_operator.names import MANAGED_BY, NAME_LABEL, labels, shared_name
from outboxrelay_operator.pairs import Owner

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Kubernetes itself gives it to every namespace, and nobody can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """What every policy allows beside the ports of a spec."""

    operator_namespace: str
    prometheus_namespaces: tuple[str, ...] = ()
    """All pods of these may read the relays' metrics."""

    dns_ports: tuple[int, ...] = (53, 5353)
    """Of the name servers' pods: a policy sees where a Service's traffic ends up. OpenShift's have 5353."""

    extra_egress_ports: tuple[int, ...] = ()
    """Of brokers that announce other ports than bootstrapServers, and of pods behind a Service of another port."""


def network_policy(owner: Owner, spec: OutboxRelaySpec, rules: NetworkRules) -> Object:
    """One for all pairs."""
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: rules.operator_namespace}},
        "podSelector": {"matchLabels": {NAME_LABEL: MANAGED_BY}},
    }
    others = [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: name}}} for name in sorted(rules.prometheus_namespaces)
    ]
    dns = [{"protocol": protocol, "port": port} for port in sorted(rules.dns_ports) for protocol in ("UDP", "TCP")]
    return marked(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(owner, shared_name(owner.key.name)),
            "spec": {
                "podSelector": {"matchLabels": labels(owner.key.name)},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [operator, *others], "ports": [{"protocol": "TCP", "port": STATUS_PORT}]}],
                "egress": [
                    {"ports": dns},
                    {"ports": [{"protocol": "TCP", "port": port} for port in _ports(spec, rules)]},
                ],
            },
        }
    )


def _ports(spec: OutboxRelaySpec, rules: NetworkRules) -> list[int]:
    """Of databases, brokers and the endpoint that gives tokens."""
    ports = {database.port for database in spec.databases}
    ports |= {int(server.rpartition(":")[2]) for server in spec.kafka.bootstrap_servers}
    oauth = None if spec.kafka.sasl is None else spec.kafka.sasl.oauth
    if oauth is not None:
        ports.add(_token_port(oauth.token_endpoint_url))
    return sorted(ports | set(rules.extra_egress_ports))


def _token_port(url: str) -> int:
    """The port in a URL. One that cannot be used is for the API server to refuse: a status can tell that."""
    found = re.match(r"https://(?:\[[^]/?#]*\]|[^/?#:\[]*):([0-9]{1,5})(?:[/?#]|$)", url)
    return 443 if found is None else int(found[1])
