"""A histogram with buckets of equal relative width: percentiles over any run length in constant memory.

Pure. Two snapshots of the counts can be subtracted, which gives the distribution of what happened in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

BUCKETS_PER_DECADE = 40
"""A bucket is 5.9 % wide: the error of a percentile."""

SHORTEST_SECONDS = 1e-4


def bucket_of(seconds: float) -> int:
    """Number of the bucket that holds this duration; 0 holds everything up to `SHORTEST_SECONDS`."""
    if seconds <= SHORTEST_SECONDS:
        return 0
    return math.ceil(math.log10(seconds / SHORTEST_SECONDS) * BUCKETS_PER_DECADE)


def upper_bound(bucket: int) -> float:
    """Longest duration of a bucket, seconds."""
    return float(SHORTEST_SECONDS * 10 ** (bucket / BUCKETS_PER_DECADE))


class Histogram:
    """Counts of durations by bucket."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, durations: Iterable[float]) -> None:
        """Take durations, in seconds, into account."""
        self.counts.update(bucket_of(seconds) for seconds in durations)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Upper bound, in seconds, of the bucket in which the given share (0 to 1) is reached; None without counts."""
    total = sum(counts.values())
    if total == 0:
        return None
    rank = max(1, math.ceil(total * share))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return upper_bound(bucket)
    raise AssertionError("unreachable: the ranks end at the total")


def since(now: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    """What was counted between two snapshots of one histogram."""
    return {bucket: count - before.get(bucket, 0) for bucket, count in now.items() if count > before.get(bucket, 0)}
