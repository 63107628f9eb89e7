from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.progress import histogram

durations = st.integers(0, 2**50)


def count(values):
    counts = [0] * histogram.BUCKETS
    for value in values:
        counts[histogram.bucket(value)] += 1
    return counts


def test_buckets_follow_each_other_without_gaps():
    limits = [histogram.bounds(i) for i in range(histogram.BUCKETS)]
    assert limits[0][0] == 0
    assert limits[-1][1] == histogram.UNBOUNDED_NS
    assert all(left[1] == right[0] for left, right in itertools.pairwise(limits))


@given(durations)
def test_a_duration_is_within_its_bucket(duration):
    low, high = histogram.bounds(histogram.bucket(duration))
    assert low <= duration < high


@given(st.integers(2**10, 2**43 - 1))
def test_bounds_are_within_a_quarter(duration):
    low, high = histogram.bounds(histogram.bucket(duration))
    assert high - low <= low / 4


def test_range_is_from_a_microsecond_to_hours():
    assert histogram.bucket(1_000) == 0
    assert histogram.bucket(1_100) == 1
    assert histogram.bucket(2 * 3600 * 10**9) < histogram.BUCKETS - 1
    assert histogram.bucket(2**63) == histogram.BUCKETS - 1


@pytest.mark.parametrize("negative", [-1, -1025, -(2**60)])
def test_a_clock_that_went_back_counts_as_nothing(negative):
    assert histogram.bucket(negative) == 0


@given(st.lists(st.integers(0, 2**42), min_size=1), st.floats(0, 1))
def test_quantile_is_an_upper_bound_and_close(values, q):
    bound = histogram.quantile(count(values), q)
    below = sum(value < bound for value in values)
    assert below >= q * len(values)
    assert bound <= max(1024, max(values) * 1.25 + 1)


def test_quantile_of_nothing_and_of_what_is_too_long():
    assert histogram.quantile([0] * histogram.BUCKETS, 0.5) is None
    assert histogram.quantile((), 0.5) is None
    assert histogram.quantile(count([2**45]), 0.5) == histogram.UNBOUNDED_NS


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
def test_bad_quantile(q):
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram.quantile([1], q)


@given(st.lists(durations), st.lists(durations))
def test_merge_counts_all(left, right):
    assert list(histogram.merge([count(left), (), count(right)])) == count(left + right)


def test_merge_of_nothing():
    assert histogram.merge([]) == (0,) * histogram.BUCKETS
