"""What the running demo can be asked: the resource's status, the delivery service's report, the pods' memory."""

from __future__ import annotations

import time
from typing import Any

from tests.demo.install import OPERATOR_NAMESPACE
from tests.demo.kubectl import Tools
from tests.demo.manifests import NAMESPACE
from tests.demo.memory import working_sets
from tests.demo.watch import Sample, sample

RELAY_LABEL = "app.kubernetes.io/component=relay"
GET = ("get", "outboxrelays", "-n", NAMESPACE)
_SERVICE = f"/api/v1/namespaces/{NAMESPACE}/services/delivery:http/proxy"


class Probe:
    """Questions to one cluster; remembers the highest memory that it saw."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._nodes: list[str] = []
        self.operator_mib: list[float] = []
        self.relay_mib: list[float] = []

    def resource(self) -> dict[str, Any]:
        """The OutboxRelay."""
        return self._tools.get_json("outboxrelay", "shop", "-n", NAMESPACE)

    def sample(self) -> Sample:
        """The totals of the OutboxRelay's status."""
        return sample(self.resource(), at=time.monotonic())

    def table(self) -> tuple[str, list[str]]:
        """`kubectl get outboxrelays`: head and rows."""
        head, *rows = self._tools.kubectl(*GET).splitlines()
        return head, rows

    def report(self) -> dict[str, Any]:
        """The delivery service's counts."""
        return self._tools.raw_json(f"{_SERVICE}/report")

    def latencies(self) -> dict[int, int]:
        """The delivery service's histogram of latencies, see tests.demo.shop.latency."""
        return {int(bucket): count for bucket, count in self._tools.raw_json(f"{_SERVICE}/latencies").items()}

    def full_report(self) -> dict[str, Any]:
        """The delivery service's counts, compared with the databases."""
        return self._tools.raw_json(f"{_SERVICE}/report/full", timeout=120)

    def relay_pods(self, pair: str | None = None) -> list[dict[str, Any]]:
        """The relays' pods, of one pair or of all."""
        selector = RELAY_LABEL if pair is None else f"{RELAY_LABEL},outboxrelay.io/pair={pair}"
        found: list[dict[str, Any]] = self._tools.get_json("pods", "-n", NAMESPACE, "-l", selector)["items"]
        return found

    def measure_memory(self) -> None:
        """Take the memory of operator and relays into account, as the kubelets tell it."""
        if not self._nodes:
            self._nodes = [node["metadata"]["name"] for node in self._tools.get_json("nodes")["items"]]
        relays = {pod["metadata"]["name"] for pod in self.relay_pods()}
        for node in self._nodes:
            summary = self._tools.raw_json(f"/api/v1/nodes/{node}/proxy/stats/summary")
            self.operator_mib += working_sets(summary, namespace=OPERATOR_NAMESPACE).values()
            self.relay_mib += (
                used for name, used in working_sets(summary, namespace=NAMESPACE).items() if name in relays
            )
