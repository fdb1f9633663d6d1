"""When a killed pod counts as replaced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.demo.pods import ready, replaced, restarts


def _pod(uid: str, *, is_ready: bool = True, restarted: int = 0, leaving: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"uid": uid} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}),
        "status": {
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [{"restartCount": restarted}],
        },
    }


VICTIM, PEER = _pod("victim", restarted=1), _pod("peer")


@pytest.mark.parametrize(
    ("pods", "done"),
    [
        pytest.param([VICTIM, PEER], False, id="the kubelet has not noticed"),
        pytest.param([_pod("victim", restarted=1, is_ready=False), PEER], False, id="dead"),
        pytest.param([_pod("victim", restarted=2, is_ready=False), PEER], False, id="started, not ready"),
        pytest.param([_pod("victim", restarted=2), PEER], True, id="a new container"),
        pytest.param([PEER], False, id="deleted, nothing new"),
        pytest.param([_pod("new"), PEER], True, id="a new pod"),
        pytest.param([_pod("new"), _pod("peer", is_ready=False)], False, id="the peer suffered"),
        pytest.param([_pod("new"), PEER, _pod("victim", restarted=2, leaving=True)], False, id="one too many"),
    ],
)
def test_replaced(pods: list[dict[str, Any]], done: bool) -> None:
    assert replaced(VICTIM, pods, count=2) is done


def test_a_pod_without_status_is_neither_ready_nor_restarted() -> None:
    assert not ready({"metadata": {}})
    assert restarts({"metadata": {}}) == 0


def test_a_pod_on_its_way_out_is_not_ready() -> None:
    assert not ready(_pod("a", leaving=True))
