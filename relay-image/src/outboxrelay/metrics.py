"""The metrics of one relay process, read from the status board when they are scraped.

Nothing is counted here: the loop must not pay for metrics. Units are in the names; no label depends on rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outboxrelay.status import StatusBoard


class BoardCollector(Collector):
    """Turns a status board into metrics."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """See `Collector.collect`."""
        board = self._board
        for name, text, value in (
            ("outboxrelay_sent_rows", "Rows acknowledged by the broker and removed from the table", board.sent_rows),
            ("outboxrelay_sent_bytes", "Bytes of these rows as the database reckons them", board.sent_bytes),
            ("outboxrelay_batches", "Batches settled", board.batches),
            (
                "outboxrelay_publish_seconds",
                "Seconds from the first message of a batch to its last acknowledgement, but for what the database took",
                board.publish_seconds,
            ),
            ("outboxrelay_cycles", "Rounds of the loop, idle and waiting ones included", board.cycles),
            (
                "outboxrelay_row_faults",
                "Attempts to send a row that failed because of the row itself",
                board.row_faults,
            ),
            ("outboxrelay_database_failures", "Times the database could not be used", board.store_failures),
            ("outboxrelay_broker_failures", "Times the brokers could not be used", board.publisher_failures),
        ):
            yield CounterMetricFamily(name, text, value=value)
        letters = CounterMetricFamily(
            "outboxrelay_dead_lettered_rows",
            "Rows sent to the dead-letter topic and removed from the table",
            labels=("reason",),
        )
        for reason, count in board.dead_lettered.items():
            letters.add_metric((reason,), count)
        yield letters
        for name, text, number in (
            ("outboxrelay_lanes_owned", "Key lanes owned by this process", len(board.lanes_owned)),
            ("outboxrelay_members", "Live relays of this pair as seen by this process", board.members),
            ("outboxrelay_halted_lanes", "Key lanes that stand still for a row at fault", len(board.halted_lanes)),
            ("outboxrelay_parked_rows", "Rows parked now, each holding back its key", board.parked_total),
            ("outboxrelay_database_up", "1 if the database can be used", int(board.database.ok)),
            ("outboxrelay_broker_up", "1 if the brokers and the topic can be used", int(board.broker.ok)),
            ("outboxrelay_last_cycle_age_seconds", "Seconds since the last round", board.seconds_since_tick()),
        ):
            yield GaugeMetricFamily(name, text, value=number)
        if board.wake is not None:
            text = "1 if new rows are announced; 0 if the relay has to poll, although wake is Notify"
            yield GaugeMetricFamily("outboxrelay_wake_up", text, value=int(board.wake.ok))


def registry(board: StatusBoard) -> CollectorRegistry:
    """A registry of its own: the board and the process."""
    result = CollectorRegistry()
    result.register(BoardCollector(board))
    ProcessCollector(registry=result)
    return result


def render(source: CollectorRegistry) -> bytes:
    """The text exposition format."""
    return generate_latest(source)
