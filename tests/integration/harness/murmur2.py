"""Where Java's Kafka clients put a key, written from the published algorithm as the vectors of KF-06.

MurmurHash2, 32 bit, seed 0x9747b28c, over the key's bytes; the partition is its value without the sign bit modulo
the number of partitions (org.apache.kafka.common.utils.Utils.murmur2 and toPositive).
"""

from __future__ import annotations

from typing import Final

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as Java shows it: a signed 32-bit number."""
    h = (_SEED ^ len(data)) & _MASK
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        k ^= k >> 24
        h = (h * _MULTIPLIER & _MASK) ^ (k * _MULTIPLIER & _MASK)
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    h ^= h >> 13
    h = h * _MULTIPLIER & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def java_partition(key: bytes, partitions: int) -> int:
    """The partition that a Java producer chooses for a key that is not null."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
