"""The bench runs and gives figures; how large they are is nobody's business here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import bars, held_snapshot, page, policies, polling, profile, profiled_relay, relay_page, throughput
from tests.bench.held_snapshot import Result, Round
from tests.bench.latency import Latency, row_id
from tests.bench.polling import FASTSTREAM, PG_TRANSACTIONAL, Program
from tests.bench.throughput import DEBEZIUM, DEBEZIUM_TUNED, FAT, IN_TURN, KEEP, RELAY, VARIANTS, Sample, measure, table
from tests.contract.relay.settings import POLICIES

STAND_IN = """
import sys
import confluent_kafka, psycopg
url, table, brokers, topic = sys.argv[1:]
connection = psycopg.connect(url, autocommit=True)
connection.execute(f"create table {table} (id bigserial, queue text, payload bytea, headers jsonb)")
producer = confluent_kafka.Producer({"bootstrap.servers": brokers, "acks": "all"})
while True:
    for payload, key in connection.execute(f"delete from {table} returning payload, headers->>'key'").fetchall():
        producer.produce(topic, payload, key)
    producer.flush(30)
"""
"""A peer that polls, and keeps no promise: CI fetches none of the true ones."""


def test_every_variant_gives_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = replace(
        FASTSTREAM,
        scheme="postgresql",
        tls="sslmode=require",
        program=lambda: Program([sys.executable, "-c", STAND_IN], {}),
    )
    monkeypatch.setitem(polling.POLLING, stand_in.name, stand_in)
    monkeypatch.setattr(throughput, "FAT_ROWS", 2)
    variants = (*VARIANTS, stand_in.name, FAT)
    samples = measure(rows=2_000, runs=1, variants=variants)
    assert [sample.variant for sample in samples] == list(variants)
    for sample in samples:
        assert sample.rows == (2 if sample.variant == FAT else 2_000)
        assert sample.rate > 0
    # The kernel tells of a process in hundredths of a second, and two rows need less than one.
    assert sum(sample.cpu_seconds for sample in samples) > 0
    (relay,) = (sample for sample in samples if sample.variant == RELAY)
    assert relay.peak_bytes is not None
    text = table(samples)
    assert all(variant in text for variant in VARIANTS)
    assert "MiB" in text


def test_the_profile_tells_of_every_step() -> None:
    found = profile.measure(rows=2_000, runs=1)
    assert list(found) == list(profiled_relay.ORDER)
    assert found[profiled_relay.HEADERS] > 0
    assert found[profiled_relay.ENGINE] > 0
    assert sum(found.values()) > found[profiled_relay.HEADERS]
    assert all(step in profile.table(found) for step in found)


def test_the_peers_have_the_versions_that_are_told() -> None:
    name, _, version = FASTSTREAM.name.partition(" ")
    assert f"\n{name}=={version} " in (polling.PEERS / "faststream-outbox.txt").read_text()
    name, _, version = PG_TRANSACTIONAL.name.partition(" ")
    assert json.loads((polling.PEERS / "package.json").read_text())["dependencies"][name] == version


def samples(**rates: float) -> list[Sample]:
    """Of a run in which every bar is met, but for other rates."""
    usual = {RELAY: 130.0, KEEP: 140.0, IN_TURN: 100.0, DEBEZIUM: 15.0, DEBEZIUM_TUNED: 20.0, FAT: 1.0}
    return [
        Sample(variant, 1000, 1000 / rate, cpu_seconds=1 / rate, peak_bytes=90 * 2**20)
        for variant, rate in (usual | rates).items()
    ]


def latencies(p50: float) -> list[Latency]:
    floor = Latency("floor", 200, 1000, p50=2, p99=5, highest=9)
    return [floor, replace(floor, subject=RELAY, p50=p50, p99=20)]


@pytest.mark.parametrize(
    "header",
    [("outbox-id", b"db.public.outbox:17"), ("id", b'{"schema":{"type":"int64","optional":false},"payload":17}')],
    ids=["of the relay", "of Debezium Server"],
)
def test_a_message_tells_which_row_it_is(header: tuple[str, bytes]) -> None:
    assert row_id([("other", b"1"), header]) == 17


def held(seconds: float) -> Result:
    rounds = [Round(number, taken, 1, 400, 2**20, 2**20) for number, taken in enumerate([1.0] * 8 + [seconds] * 2)]
    return Result(rounds, rounds, 20_000)


def test_the_bars_are_computed() -> None:
    met = bars.bars(samples(), latencies(9), held(1.0))
    assert len(met) == 9
    assert all(bar.met for bar in met)
    missed = bars.bars(samples(**{KEEP: 120.0, DEBEZIUM_TUNED: 30.0}), latencies(11), held(1.2))
    assert [bar.cells()[1:] for bar in missed if not bar.met] == [
        (">= 5.00 x", "4.33 x", "no"),
        (">= 1.00 x", "0.92 x", "no"),
        ("<= 8.0 ms", "9.0 ms", "no"),
        (">= 0.90", "0.83", "no"),
    ]
    assert bars.bars(samples()[:1], [], None) == [met[5 - 1]]


def test_the_section_holds_all_that_was_measured() -> None:
    measured = relay_page.Measured(
        samples=samples(),
        latencies=latencies(9),
        held=held(1.0),
        profile=dict.fromkeys(profiled_relay.ORDER, 0.5),
        command="python -m tests.bench --write",
        rows=1000,
        machine="2 cores",
    )
    text = relay_page.text(measured, throughput.summary(measured.samples))
    assert all(part in text for part in (*(bar.name for bar in bars.bars(samples(), latencies(9), held(1.0))), KEEP))
    assert "| 7.0 | 15.0 |" in text


def test_a_plot_is_kept_as_svg_and_as_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = tmp_path / "rsvg-convert"
    converter.write_text('#!/bin/sh\necho "picture of $(cat "$5")" > "$4"\n')
    converter.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    page.draw("it.svg", "<svg/>", docs=tmp_path, pictures=tmp_path / "pictures")
    assert (tmp_path / "it.svg").read_text() == "<svg/>"
    assert (tmp_path / "pictures" / "it.png").read_text() == "picture of <svg/>\n"


def test_the_bench_of_the_policies_settles_every_row() -> None:
    samples = policies.measure(rows=2000, runs=1)
    assert [len(taken) for taken in samples.values()] == [1] * len(POLICIES)
    assert all(policy in policies.table(samples, rows=2000) for policy in POLICIES)


def test_the_bench_of_a_held_snapshot_settles_every_row() -> None:
    results = held_snapshot.measure(seconds=0, rows=2000, policies=["delete", "keep"])
    assert {policy: (len(result.held), len(result.free)) for policy, result in results.items()} == {
        "delete": (1, 1),
        "keep": (1, 1),
    }
    assert all(policy in held_snapshot.text(results, seconds=0, machine="2 cores") for policy in results)
    assert all(each.pages_per_poll > 0 for result in results.values() for each in (*result.held, *result.free))
    assert held_snapshot.drawing(results).startswith("<svg")


def test_a_section_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    whole = tmp_path / "benchmarks.md"
    for title, text in (("One", "first"), ("Two", "second"), ("One", "third")):
        page.put(title, text, page=whole)
    text = whole.read_text()
    assert text.startswith("# Benchmarks\n")
    assert text.endswith("\n## One\n\nthird\n\n## Two\n\nsecond\n")
    assert "first" not in text
