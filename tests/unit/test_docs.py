"""The pages for users: their links lead somewhere, and what they say to write is what the resource takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outboxrelay import metrics
from outboxrelay.ports import Wake
from outboxrelay.status import StatusBoard
from outboxrelay_operator.api import API_VERSION, KIND, OutboxRelaySpec
from outboxrelay_operator.api.crd import definition
from outboxrelay_operator.metrics import Metrics
from tests.contract.relay.settings import relay_config
from tests.testbed.paths import REPOSITORY

README = REPOSITORY / "README.md"
PAGES = [
    README,
    REPOSITORY / "ARCHITECTURE.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]

SCHEMA: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def prose(page: Path) -> str:
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings.

    https://github.com/gjtorikian/html-pipeline/blob/main/lib/html_pipeline/node_filter/table_of_contents_filter.rb
    """
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKS = [
    (page, target)
    for page in PAGES
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    if not target.startswith("https://")
]


@pytest.mark.parametrize(("page", "target"), LINKS, ids=lambda value: getattr(value, "name", value))
def test_each_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    found = page.parent / path if path else page
    assert found.is_file()
    assert not anchor or anchor in anchors(found)


def test_the_readme_names_each_page() -> None:
    linked = {(page.parent / target.partition("#")[0]).resolve() for page, target in LINKS if page == README}
    assert set(PAGES) - {README} <= linked


def blocks() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
            yield page, text


BLOCKS = list(blocks())
COMPLETE = [yaml.safe_load(text) for _, text in BLOCKS if f"kind: {KIND}" in text]


def completed(text: str) -> dict[str, Any]:
    """The README's resource with a fragment, whose indentation says where it belongs, put into it."""
    found: dict[str, Any] = yaml.safe_load(text)
    if "kind" in found:
        return found
    resource: dict[str, Any] = COMPLETE[0]
    spec: dict[str, Any] = resource["spec"]
    match len(text) - len(text.lstrip()):
        case 0:
            assert list(found) == ["spec"]
            spec = spec | found["spec"]
        case 2:
            spec = spec | found
        case 4:
            spec = spec | {"databases": [spec["databases"][0] | found]}
        case indentation:
            raise AssertionError(f"indented by {indentation}: where does it belong?")
    return resource | {"spec": spec}


def unknown(value: object, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of fields that the schema does not have; the models ignore them, since the API server refuses them."""
    if isinstance(value, list):
        for each in value:
            yield from unknown(each, schema["items"], f"{path}[]")
    elif isinstance(value, dict) and "properties" in schema:
        for name, child in value.items():
            if name in schema["properties"]:
                yield from unknown(child, schema["properties"][name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[f"{page.name}-{text.split()[0]}" for page, text in BLOCKS])
def test_what_is_to_be_written_is_a_valid_resource(page: Path, text: str) -> None:
    resource = completed(text)
    assert resource["apiVersion"] == API_VERSION
    assert list(unknown(resource, SCHEMA)) == []
    OutboxRelaySpec.model_validate(resource["spec"])


NAMED = sorted({name for page in PAGES for name in re.findall(r"`((?:spec|status)\.(?!py)[\w.\[\]]+)", prose(page))})


@pytest.mark.parametrize("name", NAMED)
def test_each_field_that_is_named_is_one(name: str) -> None:
    schema = SCHEMA
    for part in name.split("."):
        schema = schema["properties"][part.removesuffix("[]")]
        schema = schema["items"] if part.endswith("[]") else schema


def test_the_metrics_are_those_that_are_told_of(tmp_path: Path) -> None:
    operator = Metrics(statuses=dict, queue_depth=float, rollouts_queued=float, fields_missing=float)
    board = StatusBoard(relay_config(tmp_path), pod="orders-1", config_digest="0")
    board.wake_is(Wake(ok=True, reason="Listening", message=""))
    families = [*operator.registry.collect(), *metrics.registry(board).collect()]
    served = {family.name for family in families if family.name.startswith("outboxrelay_")}
    told = re.findall(r"`(outboxrelay_[a-z_]+)`", (REPOSITORY / "docs" / "operating.md").read_text("utf-8"))
    assert {name.removesuffix("_total") for name in told} == served
    named = {name for page in PAGES for name in re.findall(r"`(outboxrelay_[a-z_]+)`", prose(page))}
    assert named <= set(told)
