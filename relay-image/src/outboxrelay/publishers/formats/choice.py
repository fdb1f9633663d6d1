"""Which format a configuration asks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of, header_positions, position
from outboxrelay.ports import Header, Row, WideRow
from outboxrelay.publishers.formats.cloud_events import CloudEventHeaders, lacks_value
from outboxrelay.publishers.formats.debezium import DebeziumHeaders
from outboxrelay.publishers.headers import HeaderBuilder, HeaderSource


class ExtraHeaders:
    """The headers of a format, then one for each column that has a header of its own; SQL NULL is one without value."""

    def __init__(
        self,
        format_: HeaderSource,
        columns: Sequence[tuple[str, int]],
        *,
        left_out: Callable[[Header], bool] | None = None,
    ) -> None:
        """`columns`: names of headers, and where in a wide row their values are; of them none that are `left_out`."""
        self._format = format_
        self._columns = tuple(columns)
        self._left_out = left_out

    def build(self, row: Row) -> list[Header]:
        """See `HeaderSource.build`; the row must be a `WideRow`."""
        headers = self._format.build(row.narrow if isinstance(row, WideRow) else row)
        cells: tuple[Any, ...] = row
        extra: list[Header] = [(name, cells[at]) for name, at in self._columns]
        headers.extend(extra if self._left_out is None else itertools.filterfalse(self._left_out, extra))
        return headers


def header_source(config: RelayConfig) -> HeaderSource:
    """What makes the headers of the pair's messages."""
    extras = extras_of(config)
    if not extras:
        return _format(config)
    left_out = lacks_value if config.format == "CloudEvents" else None
    return ExtraHeaders(_format(config), header_positions(extras), left_out=left_out)


def plain_header_source(config: RelayConfig) -> HeaderSource:
    """What makes headers of any row whose headers column can be read, whatever the pair's format demands of it."""
    plain = _format(config.model_copy(update={"format": "Plain"}))
    # The rows are those of the pair's format, also where this one needs fewer columns.
    extras = extras_of(config)
    return ExtraHeaders(plain, header_positions([each for each in extras if each.role != "time"])) if extras else plain


def _format(config: RelayConfig) -> HeaderSource:
    # Not the database's own name: shards of one application have the same, and often meet in one topic.
    id_prefix = f"{config.pair.database}.{config.table.qualified}:"
    if config.format == "Debezium":
        return DebeziumHeaders()
    if config.format == "CloudEvents":
        return CloudEventHeaders(
            id_prefix=id_prefix,
            source=config.cloud_events.source or f"/{config.pair.namespace}/{config.pair.relay}/{config.pair.database}",
            content_type=config.cloud_events.content_type,
            timed=position(extras_of(config), "time") is not None,
        )
    return HeaderBuilder(id_prefix=id_prefix)


def null_payloads_pass(config: RelayConfig) -> bool:
    """Whether SQL NULL becomes a message without a value in every topic, as Debezium's router has it."""
    return config.format == "Debezium"
