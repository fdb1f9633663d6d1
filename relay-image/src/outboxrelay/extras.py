"""Columns that only some configurations need: where a message goes, when it was written, headers from columns.

Whoever needs none of them pays for none: such rows come without them. With any of them rows are `WideRow`s, and have
these columns behind their fields, in the order given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from outboxrelay.config import RelayConfig
from outboxrelay.ports import Row

Role = Literal["route", "topic", "partition", "timestamp", "header", "time"]

FIRST: Final = len(Row._fields)
"""Position of the first of them in a row."""

EVENT_TIME_HEADER: Final = "ce_time"
"""The attribute `time` of a CloudEvent: when what it tells of happened."""


class Extra(NamedTuple):
    """One such column; `header` is the name of the header it becomes."""

    role: Role
    column: str
    header: str = ""


def extras_of(config: RelayConfig) -> tuple[Extra, ...]:
    """The columns that a configuration needs."""
    columns, template = config.table.columns, config.kafka.topic
    single: tuple[tuple[Role, str | None], ...] = (
        ("route", columns.route if "${route}" in template else None),
        ("topic", columns.topic if "${topic}" in template else None),
        ("partition", columns.partition),
        ("timestamp", columns.created_at if config.timestamps == "CreatedAt" else None),
    )
    # A column that is to be this header goes before: the sender knows best when something happened.
    timed = config.format == "CloudEvents" and all(extra.header != EVENT_TIME_HEADER for extra in columns.extra_headers)
    time = columns.created_at if timed else None
    return (
        *(Extra(role, column) for role, column in single if column is not None),
        *(Extra("header", extra.column, extra.header) for extra in columns.extra_headers),
        # The last, so that the others are where they are in every format.
        *(() if time is None else (Extra("time", time, EVENT_TIME_HEADER),)),
    )


def position(extras: Sequence[Extra], role: Role) -> int | None:
    """Where in a row the column is; None if it is not there. Not for headers, of which there may be many."""
    return next((FIRST + number for number, extra in enumerate(extras) if extra.role == role), None)


def header_positions(extras: Sequence[Extra]) -> tuple[tuple[str, int], ...]:
    """Names of headers, and where in a row their values are."""
    return tuple((extra.header, FIRST + number) for number, extra in enumerate(extras) if extra.header)
