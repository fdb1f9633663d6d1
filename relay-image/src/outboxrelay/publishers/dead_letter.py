"""The dead-letter topic: where rows go that their own topic does not take.

A letter is the message as it would have been, with headers that say what was wrong with it and where it came from. The
relay removes the row once the letter is acknowledged, so nothing may be left out of it: what cannot be sent whole stays
in the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from outboxrelay.config import RelayConfig
from outboxrelay.extras import Extra, Role, extras_of, position
from outboxrelay.ports import DeadLetter, Header, Outcome, Publisher, PublisherError, Row
from outboxrelay.publishers.choice import kafka_publisher
from outboxrelay.publishers.formats.choice import header_source, plain_header_source
from outboxrelay.publishers.headers import HeadersInvalidError, HeaderSource
from outboxrelay.publishers.routing import MisroutedError, TopicTemplate, is_template

REASON_HEADER: Final = "outbox-error-reason"
MESSAGE_HEADER: Final = "outbox-error-message"
ATTEMPTS_HEADER: Final = "outbox-error-attempts"
TOPIC_HEADER: Final = "outbox-error-topic"
SOURCE_HEADER: Final = "outbox-error-source"
ROW_HEADER: Final = "outbox-error-row"
TIME_HEADER: Final = "outbox-error-time"
HEADERS_HEADER: Final = "outbox-error-headers"
_PLACE_HEADERS: Final[dict[Role, str]] = {
    "route": "outbox-error-route",
    "topic": "outbox-error-topic-column",
    "partition": "outbox-error-partition",
    "timestamp": "outbox-error-created-at",
}


class LetterHeaders:
    """The headers that a row's message would have had, then those about its fault.

    These begin with `outbox-error-`: reason, message, attempts (how often it failed), topic (where it should have
    gone; the template where the row makes no name of it), source (database, schema and table as in `outbox-id`), row
    (its id), time (when it was given up, RFC 3339 in UTC) and headers, the text of the headers column, where that is
    malformed. Columns that say where and when the row was to go, as they are: route, topic-column, partition and
    created-at (milliseconds since 1970); without value for SQL NULL, and left out where they are not used.
    """

    def __init__(
        self,
        original: HeaderSource,
        *,
        topic: str,
        source: str,
        wall: Callable[[], float],
        extras: Sequence[Extra] = (),
        plain: HeaderSource | None = None,
    ) -> None:
        """`topic` may be a template; `extras` are the further columns of the rows.

        `plain` makes the headers of rows that cannot have those of `original`.
        """
        self._sources = (original,) if plain is None else (original, plain)
        self._topic = topic.encode()
        variables = {name: at for name in ("route", "topic") if (at := position(extras, name)) is not None}
        self._template = TopicTemplate(topic, variables) if is_template(topic) else None
        self._places = tuple(
            (name, at) for role, name in _PLACE_HEADERS.items() if (at := position(extras, role)) is not None
        )
        self._source = source.encode()
        self._wall = wall
        self.letters: Mapping[int, DeadLetter] = {}

    def build(self, row: Row) -> list[Header]:
        """See `HeaderSource.build`; `letters` must have the row."""
        letter = self.letters[row.id]
        headers, malformed = self._message_headers(row)
        given_up = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds")
        return [
            *headers,
            (REASON_HEADER, letter.fault.reason.encode()),
            (MESSAGE_HEADER, letter.fault.message.encode()),
            (ATTEMPTS_HEADER, b"%d" % letter.attempts),
            (TOPIC_HEADER, self._topic_of(row)),
            (SOURCE_HEADER, self._source),
            (ROW_HEADER, b"%d" % row.id),
            (TIME_HEADER, given_up.replace("+00:00", "Z").encode()),
            *malformed,
            *self._columns(row),
        ]

    def _message_headers(self, row: Row) -> tuple[list[Header], list[Header]]:
        """The first that can be made, and the text of the headers column if it is not in them."""
        for source in self._sources:
            try:
                return source.build(row), []
            except HeadersInvalidError:
                continue
        bare = row._replace(headers=None)
        malformed: list[Header] = [(HEADERS_HEADER, row.headers)]
        for source in self._sources[:-1]:
            try:
                return source.build(bare), malformed
            except HeadersInvalidError:
                continue
        return self._sources[-1].build(bare), malformed

    def _topic_of(self, row: Row) -> bytes:
        try:
            return self._topic if self._template is None else self._template.name(row).encode()
        except MisroutedError:
            return self._topic

    def _columns(self, row: Row) -> list[Header]:
        cells: tuple[Any, ...] = row
        values = [(name, cells[at]) for name, at in self._places]
        return [(name, b"%d" % value if isinstance(value, int) else value) for name, value in values]


class DeadLetterSender:
    """`DeadLetters` over a publisher of its own, so that trouble with this topic is none of the other's."""

    def __init__(self, publisher: Publisher, headers: LetterHeaders) -> None:
        """`publisher` is for the dead-letter topic, is not open, and makes its headers with `headers`."""
        self._publisher = publisher
        self._headers = headers
        self._open = False

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """See `DeadLetters.send`."""
        self._headers.letters = {letter.fault.row.id: letter for letter in letters}
        try:
            if self._open:
                self._publisher.check()
            else:
                self._publisher.open()
                self._open = True
            self._publisher.publish([letter.fault.row for letter in letters])
        except PublisherError:
            self.close()
            raise

    def wait(self, timeout_seconds: float) -> bool:
        """See `DeadLetters.wait`."""
        try:
            return self._publisher.wait(timeout_seconds)
        except PublisherError:
            self.close()
            raise

    def outcome(self) -> Outcome:
        """See `DeadLetters.outcome`."""
        self._headers.letters = {}
        try:
            return self._publisher.outcome()
        except PublisherError:
            self.close()
            raise

    def close(self) -> None:
        """See `DeadLetters.close`."""
        self._open = False
        self._headers.letters = {}
        self._publisher.close()


def kafka_dead_letters(
    config: RelayConfig, *, client_id: str, wall: Callable[[], float] = time.time
) -> DeadLetterSender | None:
    """What sends the pair's dead letters, if the configuration names a topic for them."""
    if config.on_error.topic is None:
        return None
    headers = LetterHeaders(
        header_source(config),
        extras=extras_of(config),
        plain=plain_header_source(config),
        topic=config.kafka.topic,
        source=f"{config.pair.database}.{config.table.qualified}",
        wall=wall,
    )
    publisher = kafka_publisher(dead_letter_config(config), client_id=client_id, letters_of=config, headers=headers)
    return DeadLetterSender(publisher, headers)


def dead_letter_config(config: RelayConfig) -> RelayConfig:
    """The same relay's configuration, but for the dead-letter topic, where the key alone chooses the partition."""
    columns = config.table.columns.model_copy(update={"partition": None})
    return config.model_copy(
        update={
            "kafka": config.kafka.model_copy(update={"topic": config.on_error.topic}),
            "table": config.table.model_copy(update={"columns": columns}),
            "timestamps": "SendTime",
        }
    )
