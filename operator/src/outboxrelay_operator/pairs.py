"""From a spec to its database/topic pairs. Pure; every other module takes pairs and never walks the spec again."""

from __future__ import annotations

from dataclasses import dataclass

from outboxrelay.config import Match
from outboxrelay_operator.api.database import Database
from outboxrelay_operator.api.kafka import Kafka
from outboxrelay_operator.api.retention import Retention
from outboxrelay_operator.api.spec import OutboxRelaySpec, Topic
from outboxrelay_operator.names import pair_name


@dataclass(frozen=True, slots=True)
class Key:
    """Which OutboxRelay: what the work queue holds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The OutboxRelay as its objects refer to it, and its age, which settles conflicts."""

    key: Key
    uid: str
    created: str
    """metadata.creationTimestamp; RFC 3339 in UTC, so that text order is time order."""

    @property
    def seniority(self) -> tuple[str, str]:
        """Sorts older resources first; the uid decides within a second."""
        return (self.created, self.uid)


@dataclass(frozen=True, slots=True)
class Pair:
    """One database and one topic: what one relay Deployment serves."""

    key: Key
    name: str
    database: Database
    topic: Topic
    match: Match
    retention: Retention
    kafka: Kafka
    leftover: bool = False
    """Not a pair that is served, but the rows of the table that no topic takes."""

    def __str__(self) -> str:
        return f"{self.key.namespace}/{self.name}"


def pairs_of(key: Key, spec: OutboxRelaySpec) -> tuple[Pair, ...]:
    """The pairs of a spec, in the order in which it names topics and databases."""
    return tuple(
        Pair(
            key=key,
            name=pair_name(relay=key.name, database=database.name, topic=topic.name),
            database=database,
            topic=topic,
            match=_match(spec, topic, database),
            retention=spec.retention,
            kafka=spec.kafka,
        )
        for topic in spec.topics
        for database in spec.databases
        if topic.serves(database.name)
    )


def _match(spec: OutboxRelaySpec, topic: Topic, database: Database) -> Match:
    if topic.match is not None:
        return Match(include=tuple(sorted(topic.match)))
    others = (other for other in spec.topics if other is not topic and other.serves(database.name))
    return Match(exclude=tuple(sorted({value for other in others for value in other.match or ()})))
