"""The chart's Grafana dashboard against what is really served: each expression gives something.

Prometheus reckons; the series are those of the operator's and the relay's own registries, with the labels
that the chart's PodMonitors add.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import Metric

from outboxrelay import metrics as relay_metrics
from outboxrelay.ports import Wake
from outboxrelay.status import StatusBoard
from outboxrelay_operator.conditions import CALM
from outboxrelay_operator.metrics import Metrics
from outboxrelay_operator.observed import Object
from outboxrelay_operator.pairs import Key
from tests.contract.relay.settings import relay_config
from tests.integration.test_alerts import promtool
from tests.testbed.charts import CHART

DASHBOARD = CHART / "files" / "dashboard.json"
MODEL: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
PANELS: list[dict[str, Any]] = MODEL["panels"]
FALLBACK = " or vector(0)"
"""What a panel shows when nothing is wrong."""

CHOSEN = {"namespace": "shop", "name": "orders", "pair": "orders-orders-orders-1a2b3c"}
OPERATOR = {"pod": "operator-1", "instance": "10.0.0.1:8080"}
RELAY = {"namespace": "shop", "pod": "orders-1", "instance": "10.0.0.2:8080"}

Registries = tuple[Iterable[Metric], Iterable[Metric]]


class Query(NamedTuple):
    """One expression of a panel, and the labels that its legend names."""

    panel: str
    expression: str
    legend: tuple[str, ...]


QUERIES = [
    Query(panel["title"], target["expr"], tuple(re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))))
    for panel in PANELS
    for target in panel.get("targets", ())
]


def status(*, well: bool) -> Object:
    """Of an OutboxRelay with one pair."""
    pair: Object = {
        "name": CHOSEN["pair"],
        "database": "orders",
        "topic": "orders",
        "ready": well,
        "desiredReplicas": 2,
        "replicas": 2,
        "readyReplicas": 2,
        "parked": 1,
    }
    if well:
        pair |= {"backlog": 7, "lagSeconds": 3, "ratePerSecond": 9.0, "arrivalPerSecond": 8.0, "catchUpSeconds": 7}
    word = "Flowing" if well else "BrokerUnreachable"
    conditions = [
        {"type": "Ready", "status": str(well), "reason": word},
        {"type": "SloMet", "status": str(well), "reason": "any"},
    ]
    return {"pairs": [pair], "conditions": conditions, "unrouted": 3}


def registries(directory: Path, *, well: bool) -> Registries:
    """What operator and relay serve after they have done a little of everything."""
    statuses = {Key(CHOSEN["namespace"], CHOSEN["name"]): status(well=well)}
    operator = Metrics(
        statuses=lambda: statuses, queue_depth=lambda: 1, rollouts_queued=lambda: 1, fields_missing=lambda: 1
    )
    operator.leading(leads=True)
    operator.passed(0.1, failed=False)
    operator.passed(0.1, failed=True)
    operator.applied("Deployment")
    operator.requested("patch", "deployments", 200, 0.1)
    operator.requested("patch", "deployments", 0, 0.1)
    board = StatusBoard(relay_config(directory), pod=RELAY["pod"], config_digest="0")
    board.wake_is(Wake(ok=True, reason="Listening", message=""))
    board.dead_lettered_one("RowTooLarge")
    return operator.registry.collect(), relay_metrics.registry(board).collect()


def series(served: Registries) -> Iterator[tuple[str, float]]:
    """Each sample as Prometheus would store it, with its value."""
    targets = (OPERATOR, {**RELAY, **pod_labels()})
    for families, target in zip(served, targets, strict=True):
        for family in families:
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in (target | sample.labels).items())
                yield f"{sample.name}{{{labels}}}", sample.value


def pod_labels() -> Mapping[str, str]:
    """What the PodMonitor of the relays takes over from their labels, under the names that Prometheus gives it."""
    template = (CHART / "templates" / "podmonitors.yaml").read_text("utf-8")
    (names,) = re.findall(r"^  podTargetLabels: \[(.+)\]$", template, flags=re.MULTILINE)
    values = {"app.kubernetes.io/instance": CHOSEN["name"], "outboxrelay.io/pair": CHOSEN["pair"]}
    return {re.sub(r"\W", "_", name): values[name] for name in names.split(", ")}


def filled_in(expression: str) -> str:
    """With what Grafana puts in for its variables; the bare expression where a panel has something else to show."""
    for name, value in CHOSEN.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    filled = expression.replace("$__rate_interval", "5m").removesuffix(FALLBACK)
    assert "$" not in filled
    return filled


def questions(query: Query) -> Iterator[Object]:
    """That there is an answer, and that it has the labels of the legend."""
    expression = filled_in(query.expression)
    yield {"expr": f"count({expression}) > bool 0", "exp_samples": [{"labels": "{}", "value": 1}]}
    for label in query.legend:
        labelled = f'label_replace(group by ({label}) ({expression}), "has", "{label}", "{label}", ".+")'
        yield {"expr": f"group by (has) ({labelled})", "exp_samples": [{"labels": f'{{has="{label}"}}', "value": 1}]}


@pytest.mark.parametrize("well", [True, False], ids=["well", "in trouble"])
def test_each_expression_gives_something(well: bool, tmp_path: Path) -> None:
    asked = [query for query in QUERIES if query.expression.endswith(FALLBACK) is not well]
    test = {
        "interval": "1m",
        "input_series": [
            # A gauge that a panel compares with 0 stays as it is; counters grow.
            {"series": name, "values": "1+1x60" if re.match(r"\w+_(total|count|sum|bucket){", name) else f"{value}x60"}
            for name, value in series(registries(tmp_path, well=well))
        ],
        "promql_expr_test": [question | {"eval_time": "60m"} for query in asked for question in questions(query)],
    }
    assert test["promql_expr_test"]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}, width=10_000))
    promtool("test", "rules", str(file))


def test_each_metric_is_served(tmp_path: Path) -> None:
    served = {re.sub(r"{.*", "", name) for name, _ in series(registries(tmp_path, well=True))}
    named = {
        name
        for query in QUERIES
        for name in re.findall(r"\b(?:outboxrelay|process)_\w+", query.expression)
        if name not in pod_labels()
    }
    assert named <= served


def test_what_is_calm_here_is_calm_for_the_alerts() -> None:
    (expression,) = (query.expression for query in QUERIES if query.panel == "Not ready")
    (words,) = re.findall(r'reason!~"([\w|]+)"', expression)
    assert set(words.split("|")) == CALM


def test_the_model_is_one_that_grafana_can_lay_out() -> None:
    assert DASHBOARD.stat().st_size < 60_000
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
    named = {variable["name"] for variable in MODEL["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text("utf-8"))) - {"__rate_interval", "__all"}
    assert used == named
