"""What the demo claims at its end, each claim with its figure and whether it held.

Pure: from the delivery service's reports and what the driver measured to lines of a table. The exit status is
the conjunction of all lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.demo.shop.latency import percentile

OPERATOR_LIMIT_MIB = 150
RELAY_LIMIT_MIB = 96


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the final table; `ok` is None where a line only informs."""

    name: str
    value: str
    ok: bool | None = None


def passed(checks: Iterable[Check]) -> bool:
    """Whether no claim failed."""
    return all(check.ok is not False for check in checks)


def duration(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def describe_latency(histogram: Mapping[int, int]) -> str:
    """Median and 99th percentile for people."""
    median, high = percentile(histogram, 0.5), percentile(histogram, 0.99)
    if median is None or high is None:
        return "no rows"
    return f"p50 {duration(median)}, p99 {duration(high)}"


def judge_delivery(report: Mapping[str, Any]) -> tuple[Check, ...]:
    """The delivery service's full report, taken after the shop stopped and everything drained."""
    committed, lost = report["committed"], report["undelivered"]
    return (
        Check("rows committed", f"{committed:,} ({report['rolled_back']:,} more rolled back)", ok=committed > 0),
        Check("delivered", f"{report['delivered']:,}", ok=report["delivered"] == committed),
        Check("lost", f"{lost:,}{_among(report['undelivered_keys'])}", ok=lost == 0),
        Check("repeated", f"{report['repeated']:,} ({report['dropped']:,} dropped by their outbox-id)"),
        Check(
            "reordered within a key", f"{report['reordered']:,}, {report['keys']:,} keys", ok=report["reordered"] == 0
        ),
        Check("keys left at an old row", f"{report['outdated_keys']:,}", ok=report["outdated_keys"] == 0),
        Check(
            "bytes compared by SHA-256",
            f"{report['compared']:,} messages, {report['altered']:,} differ",
            ok=report["altered"] == 0 and report["compared"] == report["received"],
        ),
        Check("messages of rolled back rows", f"{report['phantom']:,}", ok=report["phantom"] == 0),
        Check(
            "delivery slots",
            f"{report['orders_in_slots']:,} orders hold slots, "
            + ("both sides agree" if report["slots_equal"] else f"slots differ: {report['slot_differences']}"),
            ok=report["slots_equal"] and report["orders_in_slots"] > 0,
        ),
    )


def judge_memory(name: str, used_mib: Iterable[float], *, limit_mib: int) -> Check:
    """The highest memory of a kind of pod, against the project's own limit."""
    highest = max(used_mib, default=None)
    if highest is None:
        return Check(f"memory of {name}", "not measured: the kubelet tells nothing", ok=False)
    return Check(f"memory of {name}", f"at most {highest:.0f} MiB (limit {limit_mib})", ok=highest < limit_mib)


def _among(keys: Mapping[str, int]) -> str:
    return f" of {', '.join(keys)}..." if keys else ""
