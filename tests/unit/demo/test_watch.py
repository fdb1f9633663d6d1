"""Reading the resource's status, and judging whether an outage was told: each way of not telling it must fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.demo.verdict import passed
from tests.demo.watch import Sample, judge_outage, sample


def _sample(
    at: float = 0.0, *, ready: str = "True", reason: str = "Ready", backlog: int | None = 0, lag: float | None = None
) -> Sample:
    return Sample(
        at=at, ready=ready, reason=reason, backlog=backlog, lag_seconds=lag, replicas=6, ready_replicas=6
    )  # fmt: skip


DOWN = _sample(10, ready="False", reason="BrokerUnreachable", backlog=9_000, lag=28.0)
BACK = [_sample(31), _sample(38, backlog=20, lag=0.2)]


def _failed(during: list[Sample], after: list[Sample]) -> list[str]:
    checks = judge_outage(during, after, seconds=30.0, rows_written=11_000)
    assert passed(checks) == (not any(check.ok is False for check in checks))
    return [check.name for check in checks if not check.ok]


def test_a_told_outage_passes() -> None:
    assert _failed([_sample(0), DOWN], BACK) == []


def test_the_outage_lasts_until_the_resource_is_ready_again() -> None:
    late = _sample(32, ready="False", reason="BrokerUnreachable", backlog=9_000, lag=28.0)
    early = _sample(8, ready="False", reason="BrokerUnreachable", backlog=2_000, lag=6.0)
    assert _failed([early], [late, *BACK]) == []
    assert _failed([early], [*BACK, late]) == ["outage: backlog in status", "outage: lag in status"]


@pytest.mark.parametrize(
    ("during", "after", "failed"),
    [
        pytest.param([_sample(1, ready="False", lag=28)], BACK, "outage: backlog in status", id="no backlog"),
        pytest.param(
            [_sample(1, ready="False", backlog=None, lag=28)], BACK, "outage: backlog in status", id="unknown backlog"
        ),
        pytest.param([_sample(1, ready="False", backlog=9_000)], BACK, "outage: lag in status", id="no lag"),
        pytest.param([_sample(1, backlog=9_000, lag=28)], BACK, "outage: reason in status", id="stayed Ready"),
        pytest.param([DOWN], [_sample(31, backlog=5_000)], "outage: drained", id="never drained"),
        pytest.param([DOWN], [], "outage: drained", id="never looked"),
    ],
)
def test_an_outage_that_is_not_told_fails(during: list[Sample], after: list[Sample], failed: str) -> None:
    assert _failed(during, after) == [failed]


def test_nothing_observed_fails() -> None:
    assert len(_failed([], [])) == 4


def test_nothing_written_proves_nothing() -> None:
    checks = judge_outage([DOWN], BACK, seconds=30.0, rows_written=0)
    assert checks[0].ok is False


def test_the_status_is_read() -> None:
    resource: dict[str, Any] = {
        "status": {
            "backlog": 12,
            "lagSeconds": 1.5,
            "replicas": 6,
            "readyReplicas": 5,
            "conditions": [
                {"type": "Progressing", "status": "True", "reason": "RollingOut"},
                {"type": "Ready", "status": "False", "reason": "PodsNotReady"},
            ],
        }
    }
    assert sample(resource, at=3.0) == Sample(
        at=3.0, ready="False", reason="PodsNotReady", backlog=12, lag_seconds=1.5, replicas=6, ready_replicas=5
    )


def test_what_the_status_does_not_tell_is_unknown() -> None:
    assert sample({}, at=0.0) == Sample(0.0, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("taken", "settled"),
    [
        (_sample(backlog=5), True),
        (_sample(backlog=5, lag=4.0), True),
        (_sample(backlog=5, lag=6.0), False),
        (_sample(backlog=1_000), False),
        (_sample(backlog=None), False),
        (_sample(ready="False", backlog=0), False),
        (_sample(ready="Unknown", backlog=0), False),
    ],
)
def test_settled(taken: Sample, settled: bool) -> None:
    assert taken.settled is settled
