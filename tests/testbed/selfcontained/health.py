"""Whether the cluster does its work, asked of its own end points.

Each question is short and has a time-out; the answers are yes or no. Waiting
and repairing are decided elsewhere.
"""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from tests.testbed.selfcontained.instance import (
    API_PORT,
    CONTROLLER_MANAGER_PORT,
    DNS_READY_PORT,
    KUBELET_PORT,
    NODE_NAME,
    PROXY_HEALTH_PORT,
    SCHEDULER_PORT,
    Instance,
    Network,
)

TIMEOUT = 3.0


class Probe:
    """Asks the end points of one cluster, directly: no proxy of the environment stands between."""

    def __init__(self, instance: Instance, network: Network) -> None:
        """Read the cluster's certificate authority and the administrator's token."""
        self._node = str(network.node_address)
        self._tls = ssl.create_default_context(cafile=str(instance.pki / "ca.crt"))
        self._token = admin_token(instance.pki / "tokens.csv")

    def _get(self, port: int, path: str, *, tls: bool = True) -> bytes | None:
        connection: http.client.HTTPConnection
        if tls:
            connection = http.client.HTTPSConnection(self._node, port, timeout=TIMEOUT, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._node, port, timeout=TIMEOUT)
        headers = {"Authorization": f"Bearer {self._token}"} if tls else {}
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body if answer.status == http.client.OK else None

    def api_server(self) -> bool:
        """Whether the API server calls itself ready."""
        return self._get(API_PORT, "/readyz") is not None

    def controller_manager(self) -> bool:
        """Whether the controller manager answers and has made the default namespace's ServiceAccount."""
        if self._get(CONTROLLER_MANAGER_PORT, "/healthz") is None:
            return False
        return self._get(API_PORT, "/api/v1/namespaces/default/serviceaccounts/default") is not None

    def scheduler(self) -> bool:
        """Whether the scheduler answers."""
        return self._get(SCHEDULER_PORT, "/healthz") is not None

    def node(self) -> bool:
        """Whether the node has the condition Ready."""
        body = self._get(API_PORT, f"/api/v1/nodes/{NODE_NAME}")
        return body is not None and node_is_ready(json.loads(body))

    def kubelet(self) -> bool:
        """Whether the kubelet itself answers; the node's condition alone may be half a minute old."""
        return self._get(KUBELET_PORT, "/healthz") is not None

    def proxy(self) -> bool:
        """Whether kube-proxy has written its rules."""
        return self._get(PROXY_HEALTH_PORT, "/healthz", tls=False) is not None

    def dns(self) -> bool:
        """Whether CoreDNS has read the cluster's Services."""
        return self._get(DNS_READY_PORT, "/ready", tls=False) is not None

    def failing(self) -> list[str]:
        """Return the parts that do not work now; empty means healthy."""
        checks = {
            "kube-apiserver": self.api_server,
            "kube-controller-manager": self.controller_manager,
            "kube-scheduler": self.scheduler,
            "kubelet": self.kubelet,
            "node": self.node,
            "kube-proxy": self.proxy,
            "coredns": self.dns,
        }
        return [name for name, check in checks.items() if not check()]


def node_is_ready(node: dict[str, Any]) -> bool:
    """Return whether a Node object has the condition Ready with status True."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def admin_token(token_file: Path) -> str:
    """Return the administrator's token from the API server's token file.

    Raises ValueError if there is none.
    """
    for line in token_file.read_text(encoding="ascii").splitlines():
        token, user, _ = line.split(",", 2)
        if user == "admin":
            return token
    raise ValueError(f"{token_file} names no user admin")
