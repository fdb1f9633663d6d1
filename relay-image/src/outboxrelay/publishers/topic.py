"""What the topic looks like, asked without creating it.

An ordinary metadata request of a producer would create a missing topic on brokers that allow it, with whatever number
of partitions they like; the admin interface's does not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._topic import TopicDescription

from outboxrelay.config import RelayConfig
from outboxrelay.ports import PublisherError
from outboxrelay.publishers.client import Remarks, client_log, client_settings
from outboxrelay.publishers.errors import broker_error, is_silence, tells_why
from outboxrelay.wording import counted

_log = logging.getLogger(__name__)

_NOT_FOR_US: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
"""Errors of describing settings that stay, and say nothing about whether the brokers are well."""

_OF_ONE_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)
"""Errors of describing a topic that say nothing about the brokers and other topics."""


_LOOK_SECONDS: Final = 0.1
_TOPICS_AT_ONCE: Final = 200
"""How many topics one request is about: answers stay small, and in time."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What is known about the topic; None where the brokers do not let us know."""

    partitions: int
    replicas: int
    compacted: bool | None
    max_message_bytes: int | None
    min_insync_replicas: int | None
    short: int = 0
    """Partitions that take no messages now: without a leader, or with fewer in-sync replicas than they must have."""


def lacks_replicas(facts: TopicFacts) -> str:
    """What to say of partitions that are `short`."""
    return (
        f"{facts.short} of {counted(facts.partitions, 'partition')} cannot take messages: no leader, or fewer in-sync"
        " replicas than min.insync.replicas"
    )


class TopicInspector:
    """Asks about topics through an admin client that lives from `open` to `close`."""

    def __init__(
        self,
        config: RelayConfig,
        *,
        client_id: str,
        request_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._request_seconds = request_seconds
        self._config = config
        self._client_id = client_id
        self._admin: AdminClient | None = None
        self._ending = ExitStack()
        self._remarks = Remarks()
        self._told = False

    def open(self, secured: Mapping[str, str]) -> TopicFacts:
        """Connect with what `Security.settings` gave, and look.

        Raises:
            PublisherError: the brokers do not answer, or the topic is missing or may not be seen or written to.
        """
        # Not `look`: without a token there is no attempt to connect, and why may have been told already.
        self._connect(secured)
        return self._describe()

    def open_without_topic(self, secured: Mapping[str, str]) -> None:
        """Connect, for names of topics that are only known later.

        Raises:
            PublisherError: the brokers do not answer.
        """
        self._connect(secured)
        self._ask_brokers()

    def _connect(self, secured: Mapping[str, str]) -> None:
        self.close()
        self._remarks.forget()
        settings = client_settings(self._config, client_id=self._client_id, secured=secured)
        # A refusal is to be heard before the next attempt.
        settings["reconnect.backoff.ms"] = min(1000, settings["reconnect.backoff.max.ms"])
        try:
            admin = AdminClient(settings | {"error_cb": self._remarks.take}, logger=client_log)
        except KafkaException as error:
            raise broker_error(error.args[0], config=self._config, attempt="creating the client") from None
        self._admin = self._ending.enter_context(admin)

    def close(self) -> None:
        """End the client, whatever still refers to it.

        To the traceback of an error it must not be left: it would be ended by a collection of garbage, and librdkafka
        aborts the process when that happens in the client's own thread, which takes its answers.
        """
        self._admin = None
        self._ending.close()

    def heed(self) -> None:
        """Take what the client has to say: it keeps that, and while brokers are away complains twice a second."""
        if self._admin is not None:
            self._admin.poll(0)

    def look(self) -> TopicFacts:
        """Describe the topic now.

        Raises:
            PublisherError: as `open`.
        """
        self._listen()
        return self._describe()

    def survey(self, topics: Sequence[str]) -> dict[str, TopicFacts | KafkaError]:
        """Describe several topics; the error is of a topic that is missing, or may not be seen or written to.

        Raises:
            PublisherError: the brokers do not answer.
        """
        self._listen()
        found: dict[str, TopicFacts | KafkaError] = {}
        for start in range(0, len(topics), _TOPICS_AT_ONCE):
            found |= self._survey(topics[start : start + _TOPICS_AT_ONCE])
        return found

    def ask_brokers(self) -> None:
        """Prove that the brokers answer.

        Raises:
            PublisherError: they do not.
        """
        self._listen()
        self._ask_brokers()

    def _listen(self) -> None:
        """From now on only what is said from now on counts: what was said since the look before may be over."""
        self.heed()
        self._remarks.forget()

    def _client(self) -> AdminClient:
        if self._admin is None:
            raise PublisherError("BrokerUnreachable", "there is no connection to the brokers")
        return self._admin

    def _ask_brokers(self) -> None:
        try:
            self._answer(self._client().describe_cluster(request_timeout=self._request_seconds))
        except KafkaException as error:
            raise self._failed(error.args[0]) from None

    def _describe(self) -> TopicFacts:
        topic = self._config.kafka.topic
        facts = self._survey([topic])[topic]
        if isinstance(facts, KafkaError):
            raise self._failed(facts)
        return facts

    def _survey(self, topics: Sequence[str]) -> dict[str, TopicFacts | KafkaError]:
        try:
            described = self._client().describe_topics(
                TopicCollection(list(topics)), request_timeout=self._request_seconds, include_authorized_operations=True
            )
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        seen = {topic: self._seen(described[topic]) for topic in topics}
        settings = self._settings([topic for topic, each in seen.items() if not isinstance(each, KafkaError)])
        return {
            topic: each if isinstance(each, KafkaError) else _facts(each, settings[topic])
            for topic, each in seen.items()
        }

    def _seen(self, described: Future[Any]) -> TopicDescription | KafkaError:
        try:
            description: TopicDescription = self._answer(described)
        except KafkaException as error:
            if error.args[0].code() in _OF_ONE_TOPIC:
                refusal: KafkaError = error.args[0]
                return refusal
            raise self._failed(error.args[0]) from None
        if description.is_internal:
            # Brokers let nobody but themselves write to these, whatever the ACLs say.
            return KafkaError(KafkaError.TOPIC_EXCEPTION)
        allowed = description.authorized_operations
        if allowed and AclOperation.WRITE not in allowed:
            return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return description

    def _answer(self, request: Future[Any]) -> Any:
        """The result of a request. Raises `KafkaException`.

        A client that is refused tries again and again until the request ends, and hurries with the first attempts: as
        soon as it was told why, no more of them are of use, and some servers lock a user out for them.
        """
        deadline = self._clock() + self._request_seconds + 1
        while True:
            try:
                return request.result(timeout=_LOOK_SECONDS)
            except FutureTimeoutError:
                self.heed()
            refusal = self._remarks.latest
            if refusal is not None and tells_why(refusal):
                raise KafkaException(refusal)
            if self._clock() >= deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _failed(self, error: KafkaError) -> PublisherError:
        if is_silence(error):
            # The request knows only that nobody answered.
            self.heed()
            error = self._remarks.latest or error
        return broker_error(error, config=self._config, attempt="describing the topic")

    def _settings(self, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """The topics' settings; empty where DESCRIBE_CONFIGS is not allowed or not known.

        Raises:
            PublisherError: the brokers do not answer.
        """
        if not topics:
            return {}
        resources = {topic: ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics}
        try:
            answers = self._client().describe_configs(list(resources.values()), request_timeout=self._request_seconds)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        return {topic: self._entries(answers[resource]) for topic, resource in resources.items()}

    def _entries(self, answer: Future[Any]) -> dict[str, str | None]:
        try:
            entries: dict[str, Any] = self._answer(answer)
        except KafkaException as error:
            # Anything else is an outage; to take the settings for unknown then would charge it to the rows.
            if error.args[0].code() not in _NOT_FOR_US:
                raise self._failed(error.args[0]) from None
            if not self._told:
                self._told = True
                _log.info("the topic's settings may not be read; row sizes are left to the broker to judge")
            return {}
        return {name: entry.value for name, entry in entries.items()}


def _facts(description: TopicDescription, settings: Mapping[str, str | None]) -> TopicFacts:
    policy, limit, insync = (
        settings.get(name) for name in ("cleanup.policy", "max.message.bytes", "min.insync.replicas")
    )
    least = 0 if insync is None else int(insync)
    # Without a leader there is None, whatever the client's own types say.
    described: Sequence[Any] = description.partitions
    return TopicFacts(
        partitions=len(description.partitions),
        replicas=min((len(partition.replicas) for partition in description.partitions), default=0),
        compacted=None if policy is None else "compact" in policy,
        max_message_bytes=None if limit is None else int(limit),
        min_insync_replicas=None if insync is None else least,
        short=sum(
            # Of a topic that has fewer replicas than that, brokers ask for as many as there are (Kafka 3.7 and later).
            partition.leader is None or len(partition.isr) < min(least, len(partition.replicas))
            for partition in described
        ),
    )
