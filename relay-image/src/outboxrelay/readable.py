"""Waiting for something to read, however many descriptors the process has.

`select` fails for numbers above 1023. There are that many where there are many brokers: each Kafka client keeps up to
three descriptors for every one of them. Must stay light, as `stop`.
"""

from __future__ import annotations

import select


def readable(*descriptors: int, within: float | None) -> frozenset[int]:
    """Those from which something can be read, an end or an error included; waits up to `within` seconds for one.

    None: for as long as it takes. Seconds count in thousandths, rounded up.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return frozenset(ready for ready, _ in poll.poll(None if within is None else max(0.0, within) * 1000))
