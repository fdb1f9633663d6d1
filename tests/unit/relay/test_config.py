"""What the relay's configuration refuses of the policies for faulty rows and for rows that were sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outboxrelay.config import ConfigError, parse
from tests.unit.relay.world import World


def document(**changes: Any) -> str:
    whole = json.loads(World().config.model_dump_json(by_alias=True))
    return json.dumps(whole | changes)


@pytest.mark.parametrize(
    ("on_error", "complaint"),
    [
        ({"policy": "DeadLetter"}, "needs topic"),
        ({"policy": "Park", "topic": "dead"}, "needs topic"),
        ({"policy": "DeadLetter", "topic": "t"}, "must not be kafka.topic"),
        ({"policy": "DeadLetter", "topic": "a b"}, "on_error.topic"),
        ({"policy": "DeadLetter", "topic": "dead", "attempts": 0}, "on_error.attempts"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(on_error: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(document(on_error=on_error), source="test")


def test_a_policy_is_read() -> None:
    read = parse(document(on_error={"policy": "DeadLetter", "topic": "dead", "attempts": 2}), source="test")
    assert (read.on_error.policy, read.on_error.topic, read.on_error.attempts) == ("DeadLetter", "dead", 2)


@pytest.mark.parametrize(
    ("retention", "complaint"),
    [
        ({"policy": "Mark", "mark": {"column": "status", "sent": "done", "error_column": "payload"}}, "must not write"),
        ({"policy": "Mark", "mark": {"column": "id"}}, "must not write"),
        ({"policy": "Mark"}, "needs mark"),
        ({"mark": {"column": "s"}}, "needs mark"),
        ({"keep_for_seconds": 60.0}, "keep_for_seconds needs"),
        ({"policy": "Mark", "keep_for_seconds": 60.0, "mark": {"column": "s", "sent": "x"}}, "keep_for_seconds needs"),
        ({"keep": {"table": "t"}}, "only policy Keep"),
        ({"policy": "Mark", "keep_for_seconds": 0, "mark": {"column": "s"}}, "keep_for_seconds"),
        ({"policy": "Mark", "mark": {"column": "s", "pending": "x"}}, "or give sent"),
        ({"policy": "Mark", "mark": {"column": "s", "pending": "x", "sent": "x"}}, "must differ"),
    ],
)
def test_a_retention_that_cannot_be_meant_is_refused(retention: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(document(retention=retention), source="test")


@pytest.mark.parametrize(
    ("format_", "header"),
    [("Plain", "outbox-id"), ("Debezium", "id"), ("CloudEvents", "content-type"), ("Debezium", "outbox-error-row")],
)
def test_a_column_cannot_have_a_header_of_the_relays_own(format_: str, header: str) -> None:
    table = json.loads(World().config.table.model_dump_json(by_alias=True))
    table["columns"] |= {"extra_headers": [{"column": "h", "header": header}], "type": "type"}
    with pytest.raises(ConfigError, match="must not name"):
        parse(document(table=table, format=format_), source="test")
    table["columns"]["extra_headers"][0]["header"] = "traceparent"
    parse(document(table=table, format=format_), source="test")
