"""The expectation itself, against the vectors of Kafka's own tests (UtilsTest.testMurmur2)."""

from __future__ import annotations

import pytest

from tests.integration.harness.murmur2 import java_partition, murmur2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_javas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


def test_a_negative_hash_still_gives_a_partition() -> None:
    assert 0 <= java_partition(b"21", 12) < 12
