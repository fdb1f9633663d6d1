"""What must agree between the chart's files, the packages and the images; no Helm is needed to tell."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.testbed.paths import REPOSITORY

CHART = REPOSITORY / "charts" / "outboxrelay"


def _yaml(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / name).read_text(encoding="utf-8"))
    return loaded


def test_the_chart_carries_the_generated_crd() -> None:
    generated = (REPOSITORY / "crds" / "outboxrelays.yaml").read_text(encoding="utf-8")
    assert (CHART / "crds" / "outboxrelays.yaml").read_text(encoding="utf-8") == generated, "run `make crd`"


@pytest.mark.parametrize("package", ["operator", "relay-image"])
def test_one_version_everywhere(package: str) -> None:
    chart = _yaml("Chart.yaml")
    project = tomllib.loads((REPOSITORY / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    image = re.search(r"^ARG VERSION=(\S+)$", (REPOSITORY / package / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert image is not None
    assert chart["version"] == chart["appVersion"] == project["version"] == image[1]


def test_the_schema_knows_exactly_the_values() -> None:
    """Helm checks values against the schema; this checks the schema against the values, at every depth it closes."""

    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        assert values.keys() == schema["properties"].keys() - {"global"}, path
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, schema["properties"][name], f"{path}.{name}")

    compare(_yaml("values.yaml"), json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")), "values")


def test_every_value_is_used() -> None:
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*") if path.is_file())
    unused = [name for name in _yaml("values.yaml") if f".Values.{name}" not in templates]
    assert unused == []
