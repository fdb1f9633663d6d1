"""What the demo suggests at its end leads on from what the demo installed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.demo.hints import hints
from tests.demo.install import OPERATOR_NAMESPACE, RELEASE
from tests.demo.manifests import NAMESPACE
from tests.testbed.paths import REPOSITORY

TEXT = hints(kubectl=Path("/bin/kubectl"), kubeconfig=Path("/etc/kubeconfig"))


def test_the_operator_of_the_demo_can_be_told_to_serve_a_further_namespace() -> None:
    (line,) = re.findall(r"helm upgrade(?:.*\\\n)?.*", TEXT)
    _, _, release, chart, *flags = [word for word in shlex.split(line) if word.strip()]
    assert (release, flags[:2]) == (RELEASE, ["-n", OPERATOR_NAMESPACE])
    assert (Path(chart) / "Chart.yaml").is_file()
    assert flags[2:] == ["--reuse-values", "--set", f"watchNamespaces={{{NAMESPACE},mine}}"]


def test_the_image_has_each_of_kafkas_scripts_that_the_readme_and_the_demo_use() -> None:
    named = set(re.findall(r"kafka-[a-z-]+\.sh", (REPOSITORY / "README.md").read_text("utf-8") + TEXT))
    assert named
    folder = REPOSITORY / "tests" / "testbed" / "services" / "images" / "kafka"
    assert named <= {path.name for path in folder.iterdir()}
