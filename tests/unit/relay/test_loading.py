"""`outboxrelay bench` without a database: pace, writers, keys, the end, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from outboxrelay import cli
from outboxrelay.config import ConfigError, RelayConfig, dump
from outboxrelay.loading import Bench, Load, Tally, await_none, generate
from outboxrelay.ports import StoreError
from outboxrelay.stop import StopSignal
from outboxrelay.stores.load import Rows, route_of
from tests.contract.relay.settings import relay_config
from tests.unit.relay.test_draining import Answers


class Clock:
    """Time passes only where somebody spends it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Sleeper(StopSignal):
    """A request to end whose sleep passes the clock's time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None, *, also: int | None = None) -> bool:
        assert also is None
        self._clock.now += timeout or 0.0
        return self.is_set()


class Writes:
    """A writer whose transactions take as long as it is told."""

    def __init__(self, clock: Clock, *, seconds: float = 0.001, fails_at: int | None = None) -> None:
        self.transactions: list[list[int]] = []
        self.began: list[float] = []
        self._clock = clock
        self._seconds = seconds
        self._fails_at = fails_at

    def write(self, keys: Sequence[int]) -> None:
        if len(self.transactions) == self._fails_at:
            raise StoreError("PermissionDenied", "no")
        self.began.append(self._clock.now)
        self._clock.now += self._seconds
        self.transactions.append(list(keys))

    def close(self) -> None:
        pass


def run(load: Load, *, seconds: float = 0.001) -> tuple[Writes, Tally, float]:
    clock = Clock()
    writes = Writes(clock, seconds=seconds)
    tally, took = generate(load, [writes], stop=Sleeper(clock), clock=clock, rng=Random(1))
    return writes, tally, took


@pytest.mark.parametrize("rows", [1, 10])
def test_it_keeps_the_pace_and_the_time(rows: int) -> None:
    writes, tally, _ = run(Load(rows_per_second=50, seconds=4, rows_per_transaction=rows, keys=7))
    assert tally.rows == sum(map(len, writes.transactions)) == 200
    assert tally.transactions == len(writes.transactions) == 200 // rows
    for number, began in enumerate(writes.began):
        assert began == pytest.approx(100 + number * rows / 50, abs=0.002)
    assert {key for keys in writes.transactions for key in keys} == set(range(7))


def test_a_writer_that_is_too_slow_writes_what_it_can_and_ends_in_time() -> None:
    _, tally, took = run(Load(rows_per_second=50, seconds=4), seconds=0.1)
    assert tally.rows == pytest.approx(40, abs=1)
    assert took == pytest.approx(4, abs=0.2)


def test_without_a_pace_it_never_sleeps() -> None:
    _, tally, took = run(Load(rows_per_second=0, seconds=1), seconds=0.01)
    assert tally.rows == pytest.approx(100, abs=1)
    assert took == pytest.approx(1, abs=0.02)


def test_each_writer_has_keys_of_its_own() -> None:
    clock, stop = Clock(), StopSignal()
    begun = threading.Barrier(3)

    class Together(Writes):
        def write(self, keys: Sequence[int]) -> None:
            super().write(keys)
            begun.wait(10)
            stop.set()

    writers = [Together(clock) for _ in range(3)]
    load = Load(rows_per_second=0, seconds=9, writers=3, rows_per_transaction=50, keys=10)
    tally, _ = generate(load, writers, stop=stop, clock=clock, rng=Random(1))
    found = [{key for keys in writer.transactions for key in keys} for writer in writers]
    assert found == [{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}]
    assert tally.rows == 150


def test_one_that_fails_ends_the_others() -> None:
    clock = Clock()
    good, bad = Writes(clock, seconds=0.0), Writes(clock, seconds=0.0, fails_at=3)
    with pytest.raises(StoreError, match="no"):
        generate(
            Load(rows_per_second=0, seconds=1, writers=2), [good, bad], stop=StopSignal(), clock=clock, rng=Random(1)
        )


def test_a_request_to_end_ends_it() -> None:
    clock, stop = Clock(), StopSignal()
    stop.set()
    tally, _ = generate(Load(rows_per_second=5, seconds=60), [Writes(clock)], stop=stop, clock=clock, rng=Random(1))
    assert (tally.rows, tally.percentile(0.5)) == (0, None)


def test_percentiles_are_at_most_two_percent_too_high() -> None:
    tally = Tally()
    for milliseconds in range(1, 1001):
        tally.note(rows=1, seconds=milliseconds / 1000)
    for share in (0.5, 0.99, 1.0):
        found = tally.percentile(share)
        assert found is not None
        assert share <= found <= share * 1.0201


def test_it_waits_until_no_row_waits() -> None:
    clock, backlog = Clock(), Answers(True, True, False)
    waited = await_none(backlog, within_seconds=60, stop=Sleeper(clock), clock=clock)
    assert waited == pytest.approx(0.2)
    assert backlog.closed


def test_it_waits_only_so_long() -> None:
    clock, backlog = Clock(), Answers(True)
    assert await_none(backlog, within_seconds=60, stop=Sleeper(clock), clock=clock) is None
    assert clock.now == pytest.approx(160, abs=0.2)
    assert backlog.closed


def configured(
    directory: Path, *, topic: str = "orders", columns: dict[str, Any] | None = None, **match: Any
) -> RelayConfig:
    named: dict[str, Any] = {"topic": "topic"} if "${topic}" in topic else {}
    return relay_config(directory, topic=topic, match=match, table={"columns": named | (columns or {})})


def test_the_route_is_one_that_the_pair_takes(tmp_path: Path) -> None:
    only, rest = configured(tmp_path, include=("order", "refund")), configured(tmp_path, exclude=("order",))
    assert route_of(only, Rows()) == "order"
    assert route_of(only, Rows(route="refund")) == "refund"
    assert route_of(rest, Rows()) == "bench"
    for config, route in ((only, "other"), (rest, "order")):
        with pytest.raises(ConfigError, match=f"public.outbox: rows of route {route} are not this pair's"):
            route_of(config, Rows(route=route))


def test_a_topic_that_depends_on_the_row_is_asked_for(tmp_path: Path) -> None:
    by_route, by_column = configured(tmp_path, topic="o.${route}"), configured(tmp_path, topic="${topic}")
    with pytest.raises(ConfigError, match="--route"):
        route_of(by_route, Rows())
    with pytest.raises(ConfigError, match="--topic"):
        route_of(by_column, Rows())
    with pytest.raises(ConfigError, match="--topic"):
        route_of(configured(tmp_path, topic="${topic}", include=("order",)), Rows())
    assert route_of(by_route, Rows(route="order")) == "order"
    assert route_of(by_column, Rows(topic="orders")) == "bench"


def test_a_column_that_is_route_and_topic_holds_what_was_asked_for(tmp_path: Path) -> None:
    config = configured(tmp_path, topic="${topic}", columns={"topic": "aggregatetype"})
    assert route_of(config, Rows(topic="orders")) == "orders"
    assert route_of(config, Rows(topic="orders", route="orders")) == "orders"
    neither = configured(tmp_path, columns={"route": None})
    assert route_of(neither, Rows(topic="orders", route="order")) == "order"
    with pytest.raises(ConfigError, match="must be the same: both are column aggregatetype"):
        route_of(config, Rows(topic="orders", route="order"))


def test_a_key_that_says_where_a_row_goes_is_not_made_up(tmp_path: Path) -> None:
    """Such rows would be another pair's, or nobody's, and the bench would say that none of its own waits."""
    by_type = {"key": "aggregatetype"}
    for config, rows in (
        (configured(tmp_path, columns=by_type, include=("order",)), Rows()),
        (configured(tmp_path, columns=by_type, topic="o.${route}"), Rows(route="order")),
        (configured(tmp_path, columns=by_type), Rows(route="order")),
        (configured(tmp_path, columns={"topic": "aggregateid"}, topic="${topic}"), Rows(topic="orders")),
    ):
        with pytest.raises(ConfigError, match="says where a row goes, and is also its key"):
            route_of(config, rows)
    assert route_of(configured(tmp_path, columns=by_type), Rows()) == "bench"


@pytest.mark.parametrize(
    "option", [("--rate", "-1"), ("--rate", "many"), ("--seconds", "inf"), ("--payload-bytes", "3"), ("--keys", "0")]
)
def test_numbers_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(dump(relay_config(tmp_path)))
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--config", str(path), *option], stop=StopSignal())
    assert ended.value.code == 2
    assert option[0] in capsys.readouterr().err


def test_each_writer_needs_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(dump(relay_config(tmp_path)))
    assert cli.main(["bench", "--config", str(path), "--keys", "2", "--writers", "3"], stop=StopSignal()) == 2
    assert "--keys 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("looked", "waited", "last"),
    [
        (True, 1.25, "relayed  no row waited 1.2 s after the last commit"),
        (True, None, "relayed  rows waited still when the bench ended; `outboxrelay lag` tells more"),
        (False, None, "relayed  not looked at"),
    ],
)
def test_what_is_told(looked: bool, waited: float | None, last: str) -> None:
    found = Bench(
        table="public.outbox",
        rows=6000,
        transactions=1,
        writers=1,
        payload_bytes=300,
        seconds=30.0,
        rows_per_second=200.0,
        wanted_rows_per_second=200.0,
        commit_p50_seconds=0.001,
        commit_p99_seconds=0.0123,
        looked=looked,
        none_waits_after_seconds=waited,
    )
    assert found.text().splitlines() == [
        "written  6,000 rows of 300 B in 1 transaction by 1 writer into public.outbox",
        "pace     200 rows/s for 30.0 s (200 rows/s wanted)",
        "commit   p50 1.0 ms, p99 12.3 ms",
        last,
    ]
