"""Every word that a status or an Event may hold is in one file, says what to do, and is explained in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from outboxrelay.report import BROKER_REASONS, DATABASE_REASONS, RowFaultReason, WakeReason
from outboxrelay_operator import conditions, scale
from outboxrelay_operator.conditions import Reason

TEXT = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

CATALOGUE = (
    *conditions.REASONS,
    *conditions.OTHER_REASONS,
    *conditions.EVENT_REASONS,
    *conditions.SCALING_REASONS,
)
REPORTED = {*get_args(RowFaultReason), *get_args(WakeReason)}
WORDS = {reason.word for reason in CATALOGUE} | set(conditions.TYPES) | REPORTED


def sections() -> dict[str, str]:
    """The text below each heading of a word."""
    parts = re.split(r"^##+ (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {heading: text for heading, text in zip(parts[::2], parts[1::2], strict=True) if text.strip()}


SECTIONS = {word: text for heading, text in sections().items() for word in re.findall(r"[A-Za-z]+", heading)}

FINE = {"Connected", "AllMeasured", "MeasuredByRelays", "NoConflict", "NoTrouble", "WithinLimits", "AllRouted"}
"""Reasons of conditions that are as they should be."""


@pytest.mark.parametrize("word", sorted(WORDS))
def test_each_word_has_a_section(word: str) -> None:
    assert len(SECTIONS.get(word, "").strip()) >= 40


def test_each_heading_of_a_reason_is_a_word_of_the_catalogue() -> None:
    headings = re.findall(r"^### (.+)$", TEXT, flags=re.MULTILINE)
    assert {word for heading in headings for word in re.findall(r"[A-Za-z]+", heading)} <= WORDS
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize("reason", CATALOGUE, ids=lambda reason: reason.word)
def test_each_reason_is_a_word_and_a_sentence(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]+)+", reason.word)
    assert reason.text.endswith(".")


@pytest.mark.parametrize(
    "reason",
    [
        reason
        for reason in (*conditions.REASONS, *conditions.OTHER_REASONS)
        if not reason.ready and reason.word not in conditions.CALM | FINE
    ],
    ids=lambda reason: reason.word,
)
def test_what_is_wrong_has_a_remedy(reason: Reason) -> None:
    assert len(reason.remedy) >= 8


def test_no_word_is_said_in_two_ways_in_one_list() -> None:
    for reasons in (conditions.REASONS, conditions.OTHER_REASONS, conditions.SCALING_REASONS):
        assert len({reason.word for reason in reasons}) == len(reasons)
    assert not {reason.word for reason in conditions.REASONS} & {reason.word for reason in conditions.OTHER_REASONS}


def test_the_words_of_scaling_and_of_the_relays_are_in_it() -> None:
    assert {reason.word for reason in conditions.SCALING_REASONS} == set(scale.REASONS)
    assert {*DATABASE_REASONS, *BROKER_REASONS} <= {reason.word for reason in CATALOGUE}
    assert {*get_args(WakeReason)} - {"Listening", "Starting"} == conditions.POLLING_WORDS
    assert {reason.word for reason in conditions.OTHER_REASONS} >= conditions.POLLING_WORDS
