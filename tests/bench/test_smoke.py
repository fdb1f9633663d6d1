"""The bench runs and gives figures; how large they are is nobody's business here."""

from __future__ import annotations

from pathlib import Path

from tests.bench import held_snapshot, page, policies
from tests.bench.throughput import RELAY, VARIANTS, measure, table
from tests.contract.relay.settings import POLICIES


def test_every_variant_gives_figures() -> None:
    samples = measure(rows=2_000, runs=1)
    assert [sample.variant for sample in samples] == list(VARIANTS)
    for sample in samples:
        assert sample.rows == 2_000
        assert sample.rate > 0
        assert sample.cpu_seconds > 0
    (relay,) = (sample for sample in samples if sample.variant == RELAY)
    assert relay.peak_bytes is not None
    text = table(samples)
    assert all(variant in text for variant in VARIANTS)
    assert "MiB" in text


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
    assert all(policy in held_snapshot.table(results, rows=2000) for policy in results)


def test_a_section_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    whole = tmp_path / "benchmarks.md"
    for title, text in (("One", "first"), ("Two", "second"), ("One", "third")):
        page.put(title, text, page=whole)
    text = whole.read_text()
    assert text.startswith("# Benchmarks\n")
    assert text.endswith("\n## One\n\nthird\n\n## Two\n\nsecond\n")
    assert "first" not in text
