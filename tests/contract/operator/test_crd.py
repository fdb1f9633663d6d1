"""The generated CRD in the tree is what the models say."""

from __future__ import annotations

from pathlib import Path

import yaml

from outboxrelay_operator.api import crd

CRDS = Path(__file__).parents[3] / "crds"


def test_the_crd_is_generated_from_the_models() -> None:
    text = (CRDS / "outboxrelays.yaml").read_text()
    assert text == crd.text(), "run `make crd`"
    assert yaml.safe_load(text) == crd.definition()


def test_the_chart_installs_the_same_one() -> None:
    chart = CRDS.parent / "charts" / "outboxrelay" / "crds" / "outboxrelays.yaml"
    assert chart.read_text() == crd.text(), "run `make crd`"


def test_kustomize_finds_it() -> None:
    assert yaml.safe_load((CRDS / "kustomization.yaml").read_text())["resources"] == ["outboxrelays.yaml"]
