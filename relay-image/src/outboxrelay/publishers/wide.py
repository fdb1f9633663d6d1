"""Rows with columns that say where they go: topics by template or column, partitions, timestamps.

What all rows of a relay have in common is found out when it connects. Here it is only found out when rows come, and is
a matter of these rows: a topic that is missing, or that may not be written to, is their fault and nobody else's.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from outboxrelay.config import RelayConfig
from outboxrelay.extras import extras_of, position
from outboxrelay.ports import Header, Outcome, PublisherError, Row
from outboxrelay.publishers.errors import TOPIC_REFUSALS
from outboxrelay.publishers.headers import HeadersInvalidError, HeaderSource
from outboxrelay.publishers.kafka import KafkaPublisher, limit_of
from outboxrelay.publishers.routing import MisroutedError, Place, TopicTemplate, is_template, waves
from outboxrelay.publishers.topic import TopicFacts, TopicInspector
from outboxrelay.report import RowFaultReason

_REMEDIES: Final[dict[RowFaultReason, str]] = {
    "TopicMissing": "there is no such topic; create it, or correct or delete the row",
    "TopicAuthorizationFailed": "the relay may not write to it; allow DESCRIBE and WRITE on the topic",
    "TopicInvalid": "the brokers take no messages for a topic of this name; correct or delete the row",
}

_KNOWN_TOPICS: Final = 10_000
_LOOKED_AT: Final = 500
"""Of how many known topics each check asks; the others have their turn in the next ones."""

_MOST_WAVES: Final = 32
"""In how many waves the rows of a batch are sent at most. Each costs a round trip to the brokers."""

_HEADER_ROOM: Final = 4096
"""More than the bytes that a message's headers have beyond what its row weighs."""


class WidePublisher(KafkaPublisher):
    """A `KafkaPublisher` for `WideRow`s."""

    def __init__(
        self,
        config: RelayConfig,
        *,
        client_id: str,
        clock: Callable[[], float] = time.monotonic,
        examine_seconds: float = 15.0,
        headers: HeaderSource | None = None,
        null_payloads: bool = False,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        """See `KafkaPublisher`."""
        extras = extras_of(config)
        variables = {name: at for name in ("route", "topic") if (at := position(extras, name)) is not None}
        topic = config.kafka.topic
        self._template = (
            TopicTemplate(topic, variables, forbidden=config.on_error.topic) if is_template(topic) else None
        )
        self._partition_at = position(extras, "partition")
        self._timestamp_at = position(extras, "timestamp")
        self._known: dict[str, TopicFacts] = {}
        self._troubled: dict[str, RowFaultReason] = {}
        self._waves: deque[list[Row]] = deque()
        self._put_back: list[int] = []
        super().__init__(
            config,
            client_id=client_id,
            clock=clock,
            examine_seconds=examine_seconds,
            headers=headers,
            null_payloads=null_payloads,
            overrides=overrides,
        )
        if self._template is not None:
            self._row_refusals |= TOPIC_REFUSALS

    def _begin(self, rows: Sequence[Row]) -> None:
        super()._begin(rows)
        self._waves.clear()
        self._put_back = []

    def publish(self, rows: Sequence[Row], *, halfway: Callable[[], None] | None = None) -> None:
        """See `Publisher.publish`."""
        self._begin(rows)
        self._begin_waves(rows)
        if halfway is not None:
            halfway()

    def _begin_waves(self, rows: Sequence[Row]) -> None:
        """Hand over what may go first."""
        if self._template is not None:
            self._get_to_know(rows)
        if self._partition_at is not None:
            self._look_for_partitions(rows, self._partition_at)
        if self._template is None and self._partition_at is None:
            self._produce(rows)
            return
        parts = waves(rows, self._place_or_none)
        if len(parts) > _MOST_WAVES:
            # All other rows wait for the last wave.
            self._put_back = sorted(row.id for part in parts[_MOST_WAVES:] for row in part)
            put_back = set(self._put_back)
            self._rows = [row for row in rows if row.id not in put_back]
        self._waves.extend(parts[1:_MOST_WAVES])
        self._group = parts[0]
        self._produce(parts[0])

    def outcome(self) -> Outcome:
        """See `Publisher.outcome`."""
        put_back = self._put_back
        return super().outcome()._replace(put_back=put_back)

    def wait(self, timeout_seconds: float) -> bool:
        """See `Publisher.wait`."""
        if not super().wait(timeout_seconds):
            return False
        if not self._waves:
            return True
        self._send_group(self._waves.popleft())
        return False

    def _go_careful(self) -> None:
        # All rows of the batch are sent again, also those of waves that have not begun.
        self._waves.clear()
        # What the batch needs is looked at again first.
        self._known = {
            name: self._known[name] for name in sorted(self._names(self._rows)) if name in self._known
        } | self._known
        super()._go_careful()

    def _produce(self, rows: Sequence[Row]) -> None:
        """As of `KafkaPublisher`, with a place and a moment for each row."""
        max_row = self._config.tuning.max_row_bytes
        for row in rows:
            if row.key is not None and row.key in self._stuck_keys:
                self._left_out.add(row.id)
                continue
            try:
                topic, partition = self._place(row)
                facts = self._facts_of(row)
                compacted = facts is not None and facts.compacted is True
                doubtful = row.payload is None or row.size > max_row or (compacted and row.key is None)
                if doubtful and self._doubtful(row):
                    continue
                headers = self._headers.build(row)
                if facts is not None and self._outsized(row, headers, facts.max_message_bytes):
                    continue
            except MisroutedError as error:
                self._fault(row, error.reason, error.message)
                continue
            except HeadersInvalidError as error:
                self._fault(row, "HeadersInvalid", f"{error}; correct the row's headers or delete it")
                continue
            moment = 0 if self._timestamp_at is None else row[self._timestamp_at] or 0
            callback = functools.partial(self._report, None if self._resend is None else row)
            produce = functools.partial(self._client().produce, topic, row.payload, row.key, partition)
            if not self._queue(row, functools.partial(produce, callback, None, moment, headers)):
                return

    def _outsized(self, row: Row, headers: Sequence[Header], limit: int | None) -> bool:
        """Whether the row is at fault for the limit of its own topic, which may be below the client's.

        A row that only the broker refused would take its neighbours with it.
        """
        if limit is None or row.size + _HEADER_ROOM <= limit:
            return False
        size = len(row.key or b"") + len(row.payload or b"")
        if size + sum(len(name) + len(value or b"") for name, value in headers) <= limit:
            return False
        self._too_large(row, f"with key and headers it exceeds the topic's max.message.bytes of {limit}, uncompressed")
        return True

    def _queue(self, row: Row, produce: Callable[[], None]) -> bool:
        """Hand a row to the client; False if that gave up on an earlier one."""
        while True:
            try:
                produce()
            except BufferError:
                # Back-pressure: the same row again once there is room. Nothing is lost, nothing overtakes.
                try:
                    self._client().poll(0.1)
                except (KafkaException, SystemError) as error:
                    self._fatal(error)
                    return False
                continue
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    # Which row it was, and why, the reports say in `wait`.
                    self._cut_short = True
                    return False
                self._refused_by_client(row, error.args[0])
            return True

    def _refused_by_broker(self, row: Row, error: KafkaError) -> None:
        if error.code() not in TOPIC_REFUSALS:
            super()._refused_by_broker(row, error)
            return
        # What the brokers did not tell when they were asked. The other rows of the topic need not be tried.
        reason = _reason(error)
        self._troubled[self._topic_of(row)] = reason
        self._fault(row, reason, _REMEDIES[reason])

    # -- places

    def _place(self, row: Row) -> Place:
        """Where the row goes.

        Raises:
            MisroutedError: there is no such place.
        """
        topic = self._topic if self._template is None else self._template.name(row)
        facts = self._facts if self._template is None else self._known.get(topic)
        reason = self._troubled.get(topic)
        if reason is not None:
            raise MisroutedError(reason, _REMEDIES[reason])
        cells: tuple[Any, ...] = row
        partition = None if self._partition_at is None else cells[self._partition_at]
        if partition is None:
            return topic, -1
        if partition < 0 or (facts is not None and partition >= facts.partitions):
            raise MisroutedError("PartitionInvalid", f"it asks for partition {partition}, which the topic has not")
        return topic, partition

    def _place_or_none(self, row: Row) -> Place | None:
        try:
            return self._place(row)
        except MisroutedError:
            return None

    def _facts_of(self, row: Row) -> TopicFacts | None:
        return self._facts if self._template is None else self._known.get(self._topic_of(row))

    def _topic_of(self, row: Row) -> str:
        if self._template is None:
            return self._topic
        try:
            return self._template.name(row)
        except MisroutedError:
            return self._topic

    # -- topics by template

    def _inspect(self) -> None:
        if self._template is None:
            super()._inspect()
            return
        self._known.clear()
        self._inspector.open_without_topic(self._secured)

    def _reach(self, inspector: TopicInspector, secured: Mapping[str, str]) -> Mapping[str, TopicFacts]:
        if self._template is None:
            return super()._reach(inspector, secured)
        inspector.open_without_topic(secured)
        found = inspector.survey(sorted(self._names(self._rows)))
        return {name: facts for name, facts in found.items() if isinstance(facts, TopicFacts)}

    def _look(self) -> None:
        if self._template is None:
            super()._look()
        elif self._known:
            names = list(self._known)[:_LOOKED_AT]
            for name in names:
                self._known[name] = self._known.pop(name)
            self._survey(names)
        else:
            self._inspector.ask_brokers()

    def _names(self, rows: Sequence[Row]) -> set[str]:
        """The topics that rows name."""
        names: set[str] = set()
        if self._template is None:
            return names
        for row in rows:
            try:
                names.add(self._template.name(row))
            except MisroutedError:
                continue
        return names

    def _get_to_know(self, rows: Sequence[Row]) -> None:
        """Find out about topics that rows name for the first time, and again about those that were missing."""
        self._troubled.clear()
        names = self._names(rows)
        new = sorted(names - self._known.keys())
        if not new:
            return
        if len(self._known) + len(new) > _KNOWN_TOPICS:
            self._known.clear()
            new = sorted(names)
        before = self._limits()
        self._survey(new)
        if self._limits() != before:
            self._connect()

    def _look_for_partitions(self, rows: Sequence[Row], at: int) -> None:
        """Look again at topics of which rows ask for more partitions than were there: some may have been added."""
        names: set[str] = set()
        for row in rows:
            cells: tuple[Any, ...] = row
            facts = self._facts_of(row)
            if cells[at] is not None and facts is not None and cells[at] >= facts.partitions:
                names.add(self._topic_of(row))
        if not names:
            return
        before = self._limits()
        if self._template is None:
            super()._look()
        else:
            self._survey(sorted(names))
        if self._limits() != before:
            self._connect()

    def _survey(self, names: Sequence[str]) -> None:
        try:
            found = self._inspector.survey(names)
        except PublisherError:
            self.close()
            raise
        for name, facts in found.items():
            if isinstance(facts, TopicFacts):
                self._known[name] = facts
                continue
            self._known.pop(name, None)
            self._troubled[name] = _reason(facts)

    def _known_topic(self) -> str:
        return self._topic if self._template is None else next(iter(self._known), "")

    def _limits(self) -> tuple[int, int]:
        if self._template is None:
            return super()._limits()
        limits = [limit_of(facts) for facts in self._known.values()] or [limit_of(None)]
        return max(limits), min(limits)


def _reason(error: KafkaError) -> RowFaultReason:
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return "TopicAuthorizationFailed"
    return "TopicInvalid" if error.code() == KafkaError.TOPIC_EXCEPTION else "TopicMissing"
