"""The chart's alerts against Prometheus' own evaluation of them: what fires, and what must not.

`promtool test rules` evaluates the file that users install over series as operator and relays would serve them.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from outboxrelay_operator.conditions import CALM
from tests.testbed.charts import CHART
from tests.testbed.services.packages import program

RULES = CHART / "files" / "alerts.yaml"
MINUTES = 60

LEADER = 'outboxrelay_operator_leader{pod="operator-1"}'
SHOP = 'namespace="shop",name="shop"'
PAIR = f'{SHOP},pair="shop-orders",database="orders",topic="orders"'
WELL = {LEADER: "1", f'outboxrelay_ready{{{SHOP},reason="Flowing"}}': "1"}
"""A fleet that nothing is wrong with; `_` is a sample that is missing."""


@dataclass(frozen=True)
class Case:
    """What is served, sample by sample or as one value for the whole hour, and what then fires at its end."""

    name: str
    series: dict[str, str]
    firing: frozenset[str] = frozenset()


def ready(reason: str, values: str) -> dict[str, str]:
    return {LEADER: "1", f'outboxrelay_ready{{{SHOP},reason="{reason}"}}': values}


def pair(**gauges: int) -> dict[str, str]:
    return {f"outboxrelay_pair_{name}{{{PAIR}}}": str(value) for name, value in gauges.items()}


CASES = (
    Case("all is well", WELL),
    Case("not ready", ready("BrokerUnreachable", "0"), frozenset({"OutboxRelayNotReady"})),
    Case(
        "not ready for one reason after another",
        ready("BrokerUnreachable", "0x54") | {f'outboxrelay_ready{{{SHOP},reason="TopicMissing"}}': "_x54 0x6"},
        frozenset({"OutboxRelayNotReady"}),
    ),
    Case("not ready for a moment", ready("BrokerUnreachable", "1x54 0x6")),
    *(Case(f"calm: {reason}", ready(reason, "0")) for reason in sorted(CALM)),
    Case("slo missed", WELL | {f"outboxrelay_slo_met{{{SHOP}}}": "0"}, frozenset({"OutboxRelaySloMissed"})),
    Case("slo met", WELL | {f"outboxrelay_slo_met{{{SHOP}}}": "1"}),
    Case("parked", WELL | {f"outboxrelay_parked_rows{{{PAIR}}}": "2"}, frozenset({"OutboxRelayRowsParked"})),
    Case("parked, as the relay tells it", WELL | {'outboxrelay_parked_rows{namespace="shop",pod="shop-1"}': "2"}),
    Case("unrouted", WELL | {f"outboxrelay_unrouted_rows{{{SHOP}}}": "7"}, frozenset({"OutboxRelayRowsUnrouted"})),
    Case("all routed", WELL | {f"outboxrelay_unrouted_rows{{{SHOP}}}": "0"}),
    Case("not measured", WELL | pair(ready=1, desired_replicas=2), frozenset({"OutboxRelayNotMeasured"})),
    Case("measured", WELL | pair(ready=1, desired_replicas=2) | {f"outboxrelay_backlog_rows{{{PAIR}}}": "0"}),
    Case("suspended, and only pods could measure", WELL | pair(ready=0, desired_replicas=0)),
    Case("nobody leads", {LEADER: "0"}, frozenset({"OutboxRelayOperatorDown"})),
    Case("no operator", {}, frozenset({"OutboxRelayOperatorDown"})),
    Case("one of two leads", {LEADER: "0", 'outboxrelay_operator_leader{pod="operator-2"}': "1"}),
    Case(
        "an older CRD",
        WELL | {'outboxrelay_operator_crd_fields_missing{pod="operator-1"}': "3"},
        frozenset({"OutboxRelayCrdOutdated"}),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_fires(case: Case, tmp_path: Path) -> None:
    samples = [
        {"series": series, "values": values if " " in values or "x" in values else f"{values}x{2 * MINUTES}"}
        for series, values in case.series.items()
    ]
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(case.firing)]
    question = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{MINUTES + 1}m",
        "exp_samples": expected,
    }
    test = {"interval": "1m", "input_series": samples, "promql_expr_test": [question]}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))


def test_each_alert_has_a_case_and_a_row_in_the_docs() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]}
    assert frozenset().union(*(case.firing for case in CASES)) == alerts
    page = (CHART.parents[1] / "docs" / "operating.md").read_text("utf-8")
    assert set(re.findall(r"\bOutboxRelay[A-Z]\w+", page)) == alerts


def test_the_texts_are_templates_that_prometheus_takes() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


def promtool(*arguments: str) -> str:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
