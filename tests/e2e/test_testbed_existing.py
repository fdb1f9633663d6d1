"""A cluster that somebody else runs, here played by the shared one, is used only through the context that was named.

Aspects: the kubeconfig that is handed on holds that context alone; a context that does not exist; images go the way the
user says; `down` leaves the cluster alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.testbed import Cluster, ClusterError, backend, down, up
from tests.testbed.existing import ExistingCluster

CONTEXT = "named"


@pytest.fixture
def foreign(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's kubeconfig whose current context is not the one that they name."""
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
    kubeconfig = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("PATH", f"{cluster.tool('kubectl').parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OUTBOXRELAY_CLUSTER", "existing")
    monkeypatch.setenv("OUTBOXRELAY_CONTEXT", CONTEXT)
    monkeypatch.setenv("OUTBOXRELAY_CACHE", str(tmp_path / "cache"))
    config["contexts"].append({**config["contexts"][0], "name": CONTEXT})
    config["contexts"].append({"name": "production", "context": {"cluster": "absent", "user": "absent"}})
    config["current-context"] = "production"
    kubeconfig.write_text(json.dumps(config))
    return kubeconfig


def test_only_the_named_context_is_used(foreign: Path) -> None:
    found = up()
    contexts = found.kubectl("config", "get-contexts", "--output=name").split()
    assert contexts == [CONTEXT]
    assert found.kubectl("get", "--raw", "/readyz") == "ok"
    assert backend(quiet=True).status() == "answers"
    assert not down()
    assert backend(quiet=True).status() == "not in use"
    assert up().kubectl("get", "--raw", "/readyz") == "ok", "the cluster was left alone"


def test_a_context_that_does_not_exist_is_named(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOXRELAY_CONTEXT", "mistyped")
    with pytest.raises(ClusterError, match=f"reading context mistyped from {foreign}"):
        up()


def test_images_go_the_way_the_user_says(foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(backend(quiet=True), ExistingCluster)
    archive = tmp_path / "cache/images/outboxrelay-relay-dev/abc.tar"
    archive.parent.mkdir(parents=True)
    archive.write_text("content")
    with pytest.raises(ClusterError, match="how outboxrelay/relay:dev gets to this cluster is not known"):
        up().load_image("outboxrelay/relay:dev")
    monkeypatch.setenv("OUTBOXRELAY_LOAD_COMMAND", f"cp {{archive}} {tmp_path}/arrived")
    up().load_image("outboxrelay/relay:dev")
    assert (tmp_path / "arrived").read_text() == "content"
    with pytest.raises(ClusterError, match="no image outboxrelay/absent:dev was built on this machine"):
        up().load_image("outboxrelay/absent:dev")
