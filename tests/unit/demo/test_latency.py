"""The latency histogram: percentiles within a bucket of the truth, and the difference of two snapshots."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.demo.shop.latency import Histogram, bucket_of, percentile, since, upper_bound

WIDTH = 10 ** (1 / 40)


def test_no_counts_no_percentile() -> None:
    assert percentile({}, 0.5) is None


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (1e-4, 0), (1e-3, 40), (1.0, 160)])
def test_buckets(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket


@given(st.floats(min_value=1.1e-4, max_value=1e5))
def test_a_duration_lies_within_its_bucket(seconds: float) -> None:
    bound = upper_bound(bucket_of(seconds))
    assert seconds <= bound * (1 + 1e-9)
    assert seconds >= bound / WIDTH * (1 - 1e-9)


@given(st.lists(st.floats(min_value=1.1e-4, max_value=1e4), min_size=1, max_size=200), st.sampled_from([0.5, 0.99, 1]))
def test_percentiles_are_at_most_one_bucket_above_the_truth(durations: list[float], share: float) -> None:
    histogram = Histogram()
    histogram.add(durations)
    exact = sorted(durations)[max(1, math.ceil(len(durations) * share)) - 1]
    found = percentile(histogram.counts, share)
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * WIDTH * (1 + 1e-9)


def test_the_difference_of_snapshots_is_what_came_in_between() -> None:
    assert since({1: 5, 2: 3, 4: 1}, {1: 5, 2: 1}) == {2: 2, 4: 1}
