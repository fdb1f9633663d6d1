"""Messages to one Kafka topic through librdkafka, batch by batch, with an account of each row.

One thread produces, waits and takes the delivery reports; a busy second Python thread would slow the reports down
two-hundredfold, as each of them needs the interpreter's lock. Nothing here may retry what librdkafka gave up:
it retries by itself, in order and for as long as it takes, whatever can be retried.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outboxrelay.config import RelayConfig
from outboxrelay.ports import Outcome, PublisherError, Row, RowFault
from outboxrelay.publishers.client import Remarks, client_log, client_settings
from outboxrelay.publishers.errors import (
    CHECK_BROKERS,
    CHECK_REPLICAS,
    NOT_SENT,
    ROW_REFUSALS,
    SECRET_REASONS,
    TOO_LARGE,
    broker_error,
    fatal_error,
)
from outboxrelay.publishers.formats.choice import header_source, null_payloads_pass
from outboxrelay.publishers.headers import HeadersInvalidError, HeaderSource
from outboxrelay.publishers.resend import Resend
from outboxrelay.publishers.security import Security
from outboxrelay.publishers.topic import TopicFacts, TopicInspector, lacks_replicas
from outboxrelay.report import BrokerReason, RowFaultReason

_log = logging.getLogger(__name__)

_DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default for max.message.bytes, taken when the topic's setting may not be read."""

_LINGER_MS: Final = 25
"""About as long as handing over a full batch takes. `wait` flushes, and a flush sends at once whatever lingers: what is
cut off before it costs the brokers more record batches (at 5 ms three times the CPU seconds). What is due by itself
goes on while nobody flushes."""

_PURGE_SECONDS: Final = 2.0
_SILENCE_SECONDS: Final = 5.0
_EXAMINE_REQUEST_SECONDS: Final = 3.0


def limit_of(facts: TopicFacts | None) -> int:
    """The topic's max.message.bytes, or Kafka's default if it is not known."""
    return _DEFAULT_MAX_MESSAGE_BYTES if facts is None or facts.max_message_bytes is None else facts.max_message_bytes


class KafkaPublisher:
    """`Publisher` over confluent_kafka."""

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
        """`examine_seconds`: silence after which the client itself is suspected.

        `headers` replaces the builder of headers; `null_payloads` lets them pass to a topic that is not compacted.
        `overrides` are librdkafka settings for tests; the command line gives none.
        """
        self._clock = clock
        self._examine_seconds = examine_seconds
        self._waiting_since = self._examined_at = 0.0
        self._config = config
        self._topic: Final = config.kafka.topic
        self._overrides = dict(overrides or {})
        self._client_id = client_id
        self._headers = headers or header_source(config)
        self._null_payloads = null_payloads or null_payloads_pass(config)
        self._inspector = TopicInspector(config, client_id=client_id)
        self._security = Security(config)
        self._secured: Mapping[str, str] = {}
        self._facts: TopicFacts | None = None
        self._producer: Producer | None = None
        self._remarks = Remarks()
        self._complaint: tuple[BrokerReason, str] | None = None
        self._row_refusals: frozenset[int] = ROW_REFUSALS
        self._begin(())

    def _begin(self, rows: Sequence[Row]) -> None:
        """Start the account of a batch."""
        self._rows = rows
        self._group = rows
        self._faults: list[RowFault] = []
        self._left_out: set[int] = set()
        self._stuck_keys: set[bytes] = set()
        self._reports: list[tuple[Row | None, KafkaError]] = []
        """Failures; the row only of those that are sent carefully."""
        self._resend: Resend | None = None
        self._waiting = 0
        self._cut_short = False

    def open(self) -> None:
        """See `Publisher.open`."""
        self.close()
        self._secured = self._security.settings()
        self._inspect()
        self._connect()

    def close(self) -> None:
        """See `Publisher.close`."""
        self._drop()
        self._inspector.close()
        self._facts = None
        self._content()
        self._begin(())

    def partitions(self) -> int | None:
        """See `Publisher.partitions`."""
        return None if self._facts is None else self._facts.partitions

    def check(self) -> None:
        """See `Publisher.check`."""
        self._client()
        if self._security.changed():
            _log.info("the files of the login to Kafka have changed; connecting anew")
            self.open()
            return
        before = self._limits()
        self._look()
        self._content()
        if self._limits() != before:
            self._connect()

    def _inspect(self) -> None:
        """Find out about the topic, with a new connection."""
        self._facts = self._inspector.open(self._secured)

    def _reach(self, inspector: TopicInspector, secured: Mapping[str, str]) -> Mapping[str, TopicFacts]:
        """Prove with a client of its own that the brokers answer; what is known of the topics in use."""
        return {self._topic: inspector.open(secured)}

    def _look(self) -> None:
        """Find out what has changed about the topic."""
        self._facts = self._inspector.look()

    def _facts_of(self, _row: Row) -> TopicFacts | None:
        """What is known of the topic that the row goes to."""
        return self._facts

    def _known_topic(self) -> str:
        """A topic that was there."""
        return self._topic

    def _topic_of(self, _row: Row) -> str:
        """The topic that the row goes to, for messages."""
        return self._topic

    def trouble(self) -> tuple[BrokerReason, str] | None:
        """See `Publisher.trouble`."""
        return self._complaint

    def publish(self, rows: Sequence[Row], *, halfway: Callable[[], None] | None = None) -> None:
        """See `Publisher.publish`."""
        self._begin(rows)
        if halfway is None:
            self._produce(rows)
            return
        half = len(rows) // 2
        self._produce(rows[:half])
        halfway()
        if self._resend is None:
            # Else the client gave up, and all of the batch is sent again, carefully.
            self._produce(rows[half:])

    def _produce(self, rows: Sequence[Row]) -> None:
        """Queue rows in order. The relay's hot path: bound names, positional arguments, nothing built twice."""
        producer = self._client()
        produce, topic = producer.produce, self._topic
        build, report, partial = self._headers.build, self._report, functools.partial
        # Which row a report is about matters only once they are sent carefully; a callback of its own for each row is
        # a twentieth of the loop.
        careful, callback = self._resend is not None, partial(report, None)
        stuck, doubtful = self._stuck_keys, self._doubtful
        compacted = self._facts is not None and self._facts.compacted is True
        max_row = self._config.tuning.max_row_bytes
        for row in rows:
            row_id, key, payload, _, _, _, size = row
            if stuck and key in stuck:
                self._left_out.add(row_id)
                continue
            if (payload is None or size > max_row or (compacted and key is None)) and doubtful(row):
                continue
            try:
                headers = build(row)
            except HeadersInvalidError as error:
                self._fault(row, "HeadersInvalid", f"{error}; correct the row's headers or delete it")
                continue
            while True:
                try:
                    if careful:
                        callback = partial(report, row)
                    produce(topic, payload, key, -1, callback, None, 0, headers)
                except BufferError:
                    # Back-pressure: the same row again once there is room. Nothing is lost, nothing overtakes.
                    try:
                        producer.poll(0.1)
                    except (KafkaException, SystemError) as error:
                        self._fatal(error)
                        return
                    continue
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._FATAL:
                        # The client gave up on an earlier row; which one, and why, the reports say in `wait`.
                        self._cut_short = True
                        return
                    self._refused_by_client(row, error.args[0])
                break

    def _doubtful(self, row: Row) -> bool:
        """Whether a row that looks odd is at fault."""
        facts = self._facts_of(row)
        compacted = None if facts is None else facts.compacted
        limit = self._config.tuning.max_row_bytes
        if row.size > limit:
            self._too_large(row, f"its {row.size} bytes exceed the relay's tuning.max_row_bytes of {limit}")
        elif row.key is None and compacted:
            self._fault(
                row,
                "NullKeyOnCompactedTopic",
                "it has no key, which a compacted topic refuses; set it or delete the row",
            )
        elif row.payload is None and compacted is False and not self._null_payloads:
            self._fault(
                row,
                "PayloadIsNull",
                "it has no payload, which means a deletion, and the topic is not compacted; set it or delete the row",
            )
        else:
            return False
        return True

    def _report(self, row: Row | None, error: KafkaError | None, _message: Message) -> None:
        # Called for failures only (delivery.report.only.error), and possibly while an exception of librdkafka's is
        # under way: it must do no more than remember.
        if error is not None:
            self._reports.append((row, error))

    def _refused_by_client(self, row: Row, error: KafkaError) -> None:
        if error.code() not in TOO_LARGE:
            raise self._given_up(error, f"handing over row {row.id}")
        limit, _ = self._limits()
        self._too_large(row, f"with key and headers it exceeds the topic's max.message.bytes of {limit}, uncompressed")

    def _refused_by_broker(self, row: Row, error: KafkaError) -> None:
        if error.code() in TOO_LARGE:
            self._too_large(row, f"the broker refused it as {error.name()}")
        else:
            self._fault(row, "RowRejected", f"the broker refused it as {error.name()}; correct or delete the row")

    def _too_large(self, row: Row, why: str) -> None:
        self._fault(row, "RowTooLarge", f"{why}; raise the limit, or shorten or delete the row")

    def _fault(self, row: Row, reason: RowFaultReason, message: str) -> None:
        self._faults.append(RowFault(row, reason, f"row {row.id} cannot go to topic {self._topic_of(row)}: {message}"))
        if row.key is not None:
            self._stuck_keys.add(row.key)

    def wait(self, timeout_seconds: float) -> bool:
        """See `Publisher.wait`."""
        try:
            if (waiting := self._client().flush(timeout_seconds)) > 0:
                self._look_for_progress(waiting)
                return False
        except (KafkaException, SystemError) as error:
            # confluent_kafka raises a fatal error as a SystemError if reports were served after it.
            self._fatal(error)
            return self._send_next_group()
        if self._cut_short:
            raise self._given_up(KafkaError(KafkaError._FATAL), "sending a batch")
        if self._reports:
            self._refused()
        return self._resend is None or self._send_next_group()

    def _look_for_progress(self, waiting: int) -> None:
        """Say when nothing is acknowledged any more, and give up a client that has lost its way to the brokers.

        A client that was told of a cluster without brokers (one that is just starting says so) forgets them all and
        never asks again: https://github.com/confluentinc/librdkafka/issues/5301. Waiting on would be for ever. A second
        client tells that from brokers which really do not answer; for those there is nothing to do but wait.
        """
        now = self._clock()
        self._inspector.heed()
        if waiting != self._waiting:
            self._waiting, self._waiting_since, self._examined_at = waiting, now, now
            return
        if self._complaint is not None and self._complaint[0] in SECRET_REASONS and self._security.changed():
            # With what it was made with this client is never let in. What was not acknowledged is read again.
            reason, message = self._complaint
            self.close()
            raise PublisherError(reason, f"{message}; what the Secret holds has changed since and is tried now")
        silent = now - self._waiting_since
        if silent >= _SILENCE_SECONDS and self._complaint is None:
            cause = f"nothing was acknowledged for {silent:.0f} s; {CHECK_BROKERS}"
            self._complaint = ("BrokerUnreachable", f"sending a batch (topic {self._topic}): {cause}")
        if now - self._examined_at >= self._examine_seconds:
            self._examine()
            self._examined_at = self._clock()

    def _examine(self) -> None:
        second = TopicInspector(self._config, client_id=self._client_id, request_seconds=_EXAMINE_REQUEST_SECONDS)
        try:
            topics = self._reach(second, Security(self._config).settings())
        except PublisherError as error:
            self._complaint = (error.reason, error.message)
            return
        finally:
            second.close()
        try:
            self._client().list_topics(self._known_topic(), timeout=_EXAMINE_REQUEST_SECONDS)
        except KafkaException as error:
            raise self._given_up(error.args[0], "reaching brokers that answer others") from None
        # The client hears of it with each attempt, and tells nobody.
        short = next(((name, facts) for name, facts in topics.items() if facts.short), None)
        if short is not None:
            cause = f"{lacks_replicas(short[1])}; {CHECK_REPLICAS}"
            self._complaint = ("BrokerError", f"sending a batch (topic {short[0]}): {cause}")

    def _fatal(self, error: BaseException) -> None:
        """librdkafka gave up on a gap; which rows of the batch had arrived is not known for certain.

        If a row may be the cause, all of the batch goes again, carefully.
        """
        cause = fatal_error(error)
        reasons = [report for _, report in self._reports if report.code() not in NOT_SENT]
        others = [report for report in reasons if report.code() not in self._row_refusals]
        if others or cause is None or cause.code() != KafkaError._GAPLESS_GUARANTEE or self._resend is not None:
            raise self._given_up((others or [cause or KafkaError(KafkaError._FATAL)])[0], "sending a batch")
        self._go_careful()

    def _go_careful(self) -> None:
        """Send all of the batch again, in groups and with a client that gives exact reports."""
        # The topic's limits may have changed since they were read.
        self._look()
        self._cut_short = False
        # From the first row on: what was found at fault by now is met again in its turn. To remember it would leave out
        # good rows in front of it, which are about to be sent again.
        self._faults.clear()
        self._left_out.clear()
        self._stuck_keys.clear()
        self._resend = Resend(self._rows)
        self._connect(careful=True)

    def _refused(self) -> None:
        """Some rows were given back, and librdkafka saw no gap in it."""
        reports, self._reports = self._reports, []
        others = [error for _, error in reports if error.code() not in self._row_refusals]
        if others:
            raise self._given_up(others[0], "sending a batch")
        if self._resend is None:
            self._go_careful()
            return
        errors = {row.id: error for row, error in reports if row is not None}
        culprit = self._resend.refused(self._group, [row for row in self._group if row.id in errors])
        if culprit is not None:
            self._refused_by_broker(culprit, errors[culprit.id])

    def _send_next_group(self) -> bool:
        """True when there was none."""
        if self._resend is None:
            return True
        group, left_out = self._resend.next_group(self._stuck_keys)
        self._left_out.update(row.id for row in left_out)
        if not group:
            self._resend = None
            self._connect()
            return True
        self._send_group(group)
        return False

    def _send_group(self, group: Sequence[Row]) -> None:
        self._group = group
        # As many rows as before may be under way, but others: silence is reckoned from here.
        self._waiting = 0
        self._produce(group)

    def outcome(self) -> Outcome:
        """See `Publisher.outcome`."""
        rows, faults = self._rows, self._faults
        if faults:
            missing = self._left_out | {fault.row.id for fault in faults}
            acknowledged = [row.id for row in rows if row.id not in missing]
        else:
            acknowledged = [row.id for row in rows]
        self._begin(())
        self._content()
        return Outcome(acknowledged=acknowledged, faults=faults)

    def _content(self) -> None:
        """What the client complained of is over."""
        self._remarks.forget()
        self._complaint = None

    def _client(self) -> Producer:
        if self._producer is None:
            raise PublisherError("BrokerUnreachable", f"there is no connection for topic {self._topic}")
        return self._producer

    def _given_up(self, error: KafkaError, attempt: str) -> PublisherError:
        """Forget every message, so that no copy of a row is left in the client."""
        failure = broker_error(error, config=self._config, attempt=attempt)
        self.close()
        return failure

    def _connect(self, *, careful: bool = False) -> None:
        self._drop()
        try:
            self._producer = Producer(self._settings(careful=careful), logger=client_log)
        except KafkaException as error:
            raise self._given_up(error.args[0], "creating the client") from None

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.purge(in_queue=True, in_flight=True, blocking=False)
                # Whatever still refers to it, as the traceback of an error does, would keep its connections. `close`
                # waits without end for messages that are left: after a purge there are none.
                if not producer.flush(_PURGE_SECONDS):
                    producer.close()
            except (KafkaException, SystemError):
                _log.debug("the Kafka client was dropped with a fatal error")
        self._reports.clear()

    def _limits(self) -> tuple[int, int]:
        """The largest and the smallest max.message.bytes of the topics."""
        limit = limit_of(self._facts)
        return limit, limit

    def _settings(self, *, careful: bool) -> dict[str, Any]:
        tuning, chosen = self._config.tuning, self._config.kafka.settings
        limit, least = self._limits()
        return {
            **client_settings(self._config, client_id=self._client_id, secured=self._secured),
            "acks": "all",
            "enable.idempotence": True,
            # What comes behind a gap in a partition is given back instead of being sent: a later row of a key must
            # not arrive before a refused earlier one.
            "enable.gapless.guarantee": not careful,
            # Endless: of messages that time out some may have been written and some not, and a resend would reorder.
            "message.timeout.ms": 0,
            # Places keys as Java's clients do.
            "partitioner": "murmur2_random",
            "linger.ms": _LINGER_MS if chosen.linger_ms is None else chosen.linger_ms,
            "batch.size": max(1, min(chosen.batch_size or 1_000_000, least)),
            "compression.type": self._config.kafka.compression,
            # A row that is too large is refused here and alone, before it can take its neighbours down.
            "message.max.bytes": min(1_000_000_000, max(1000, limit)),
            # One batch always fits, so that the loop need not wait for room: it is the batch that bounds memory. Its
            # bytes are reckoned (see JSON_EXPANSION), hence the margin.
            "queue.buffering.max.messages": max(100_000, 2 * tuning.batch_rows),
            "queue.buffering.max.kbytes": 8 * (tuning.batch_bytes + tuning.max_row_bytes) // 1024,
            "delivery.report.only.error": True,
            "error_cb": self._on_client_error,
            **self._overrides,
        }

    def _on_client_error(self, error: KafkaError) -> None:
        self._remarks.take(error)
        failure = broker_error(self._remarks.latest or error, config=self._config, attempt="reaching the brokers")
        self._complaint = (failure.reason, failure.message)
