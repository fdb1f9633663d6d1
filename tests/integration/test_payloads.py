"""What a table may hold and a consumer must find again, byte for byte: cases.md DV-10."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness.consumer import read_all
from tests.integration.harness.relay import relay_config
from tests.integration.test_commands import command
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.postgres import LocalPostgres
from tests.testbed.services.table import PayloadType, create_outbox_table

WRITTEN: dict[PayloadType, list[object]] = {
    "json": ['{"a":"\\u0000"}', '{"a":"\\ud800"}', '{"b": 1.10,  "a":\t"\\u00e9", "b": 2}', '"é"'],
    "jsonb": ['{"a": "\\u00e9", "b": 1.10}', '{"a": "é"}', "null"],
    "text": ["é", "", "\\u0000", "tab\tand\nline"],
    "bytea": [b"\x00\xff\xfe", b"", b"\xed\xa0\x80"],
}
"""What every encoding holds. The escapes of NUL and of half a surrogate pair are what jsonb refuses to store."""

BEYOND_LATIN1: dict[PayloadType, list[object]] = {
    "json": ['{"a":"🚚"}', '{"a":"\\ud83d\\ude9a"}'],
    "jsonb": ['{"a": "🚚"}'],
    "text": ["🚚", "\U0010ffff"],
    "bytea": ["🚚".encode()],
}

STORED_AS = {'{"a": "\\u00e9", "b": 1.10}': '{"a": "é", "b": 1.10}'}
"""jsonb keeps the character, not the escape."""


@pytest.mark.parametrize(
    ("payload", "encoding"), [*((payload, "UTF8") for payload in WRITTEN), ("json", "LATIN1"), ("text", "LATIN1")]
)
def test_dv_10_what_was_written_arrives_byte_for_byte(
    postgres: LocalPostgres, kafka: LocalKafka, topic: Topic, tmp_path: Path, payload: PayloadType, encoding: str
) -> None:
    """cases.md DV-10: odd rows among good ones, keys and headers too; texts arrive in UTF-8."""
    wide = encoding == "UTF8"
    written = WRITTEN[payload] + (BEYOND_LATIN1[payload] if wide else [])
    key, name = ("schlüssel 🚚", "spur 🚚") if wide else ("schlüssel", "spür")
    headers = f'{{"{name}": "{name}", "nul": "\\u0000", "half": "\\ud800"}}'
    database = postgres.create_database(encoding=encoding)
    try:
        create_outbox_table(database, payload=payload)
        database.execute("alter table outbox alter headers type json using headers::text::json")
        with database.connect() as connection:
            for value in written:
                connection.execute(
                    "insert into outbox (aggregatetype, aggregateid, type, payload, headers)"
                    " values ('order', %s, %s, %s, %s)",
                    (key, name, value, headers),
                )
        config = relay_config(
            database=database.relay_role(),
            bootstrap_servers=kafka.bootstrap_servers,
            topic=topic.name,
            directory=tmp_path,
        )
        done = command(config, tmp_path, "drain", "--timeout", "60")
        assert done.returncode == 0, done.stderr
    finally:
        postgres.drop_database(database)
    messages = read_all(kafka, topic)
    assert [message.payload for message in messages] == [
        value if isinstance(value, bytes) else STORED_AS.get(str(value), str(value)).encode() for value in written
    ]
    assert {message.key for message in messages} == {key.encode()}
    for message in messages:
        assert message.headers["outbox-type"] == name.encode()
        assert message.headers[name] == name.encode()
        assert (message.headers["nul"], message.headers["half"]) == (b"\0", b"\xed\xa0\x80")
