"""What is asked about many topics, and how often."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from outboxrelay.publishers import topic as topic_module
from outboxrelay.publishers.topic import TopicFacts, TopicInspector
from tests.unit.relay.world import World


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


class Admin:
    """An admin client of brokers that have every topic but `missing`; `__internal` is their own."""

    def __init__(self) -> None:
        self.described: list[int] = []
        self.configured: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def poll(self, _seconds: float) -> int:
        return 0

    def describe_cluster(self, **_options: Any) -> Future[Any]:
        return done(None)

    def describe_topics(self, topics: TopicCollection, **_options: Any) -> dict[str, Future[Any]]:
        self.described.append(len(topics.topic_names))
        return {name: done(self._describe(name)) for name in topics.topic_names}

    def _describe(self, name: str) -> Any:
        if name == "missing":
            return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        partition = SimpleNamespace(replicas=[1, 2], leader=1, isr=[1, 2])
        return SimpleNamespace(is_internal=name == "__internal", authorized_operations=None, partitions=[partition])

    def describe_configs(self, resources: list[Any], **_options: Any) -> dict[Any, Future[Any]]:
        self.configured.append(len(resources))
        return {
            resource: done({"max.message.bytes": SimpleNamespace(value=str(len(resource.name)))})
            for resource in resources
        }


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    """The only client that is made."""
    made = Admin()
    monkeypatch.setattr(topic_module, "AdminClient", lambda *_arguments, **_options: made)
    return made


def test_many_topics_cost_few_requests(admin: Admin) -> None:
    inspector = TopicInspector(World().config, client_id="c")
    inspector.open_without_topic({})
    names = [f"topic-{number}" for number in range(450)]
    found = inspector.survey([*names, "missing"])
    assert list(found) == [*names, "missing"]
    assert found["topic-7"] == TopicFacts(
        partitions=1, replicas=2, compacted=None, max_message_bytes=len("topic-7"), min_insync_replicas=None
    )
    assert isinstance(found["missing"], KafkaError)
    assert (admin.described, admin.configured) == ([200, 200, 51], [200, 200, 50])


def test_of_topics_that_are_not_there_no_settings_are_asked(admin: Admin) -> None:
    inspector = TopicInspector(World().config, client_id="c")
    inspector.open_without_topic({})
    found = inspector.survey(["missing", "__internal"])
    codes = {name: error.code() for name, error in found.items() if isinstance(error, KafkaError)}
    assert codes == {"missing": KafkaError.UNKNOWN_TOPIC_OR_PART, "__internal": KafkaError.TOPIC_EXCEPTION}
    assert admin.configured == []


@pytest.mark.parametrize(
    ("leader", "isr", "least", "short"), [(1, 2, 2, 0), (1, 1, 2, 1), (None, 2, 2, 1), (1, 0, None, 0), (1, 3, 4, 0)]
)
def test_partitions_that_take_no_messages_are_counted(
    leader: int | None, isr: int, least: int | None, short: int
) -> None:
    partition = SimpleNamespace(replicas=[1, 2, 3], leader=leader, isr=[1, 2, 3][:isr])
    settings = {} if least is None else {"min.insync.replicas": str(least)}
    facts = topic_module._facts(SimpleNamespace(partitions=[partition]), settings)  # type: ignore[arg-type]
    assert facts.short == short
