"""The kind backend, against a stand-in for the program that keeps its clusters as files.

Aspects: created once; found again; its own kubeconfig; archives are loaded; removed once.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.testbed.errors import ClusterError
from tests.testbed.images.archive import ImageArchive
from tests.testbed.kind import KindCluster

# Understands the calls that are made, with kind's own words and order of arguments, and refuses any other.
STAND_IN = """#!/bin/sh
set -eu
echo "$*" >> "$KIND_CLUSTERS.log"
case "$*" in
  "get clusters") cat "$KIND_CLUSTERS" ;;
  "create cluster --name outboxrelay --kubeconfig "*)
    grep -q outboxrelay "$KIND_CLUSTERS" && { echo "cluster exists" >&2; exit 1; }
    echo outboxrelay >> "$KIND_CLUSTERS"; echo created > "$6" ;;
  "export kubeconfig --name outboxrelay --kubeconfig "*) echo exported > "$6" ;;
  "delete cluster --name outboxrelay") echo other > "$KIND_CLUSTERS" ;;
  "load image-archive "*" --name outboxrelay") test -f "$3" ;;
  *) echo "unknown command: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that lists the stand-in's clusters; there is one of somebody else."""
    program = tmp_path / "bin/kind"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    known = tmp_path / "clusters"
    known.write_text("other\n")
    monkeypatch.setenv("KIND_CLUSTERS", str(known))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OUTBOXRELAY_CACHE", str(tmp_path / "cache"))
    return known


def test_the_cluster_is_created_once_and_found_again(clusters: Path) -> None:
    cluster = KindCluster()
    assert cluster.status() == "down"
    cluster.up()
    assert cluster.kubeconfig().read_text() == "created\n"
    cluster.up()
    assert cluster.kubeconfig().read_text() == "exported\n"
    assert cluster.status() == "exists"


def test_down_removes_ours_and_only_once(clusters: Path) -> None:
    cluster = KindCluster()
    cluster.up()
    assert cluster.down()
    assert clusters.read_text() == "other\n"
    assert not cluster.kubeconfig().exists()
    assert not cluster.down()


def test_an_archive_is_loaded(clusters: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    archive.touch()
    KindCluster().load(ImageArchive(image="outboxrelay/relay:dev", archive=archive, key="k"))
    with pytest.raises(ClusterError, match="loading outboxrelay/relay:dev"):
        KindCluster().load(ImageArchive(image="outboxrelay/relay:dev", archive=tmp_path / "absent", key="k"))
