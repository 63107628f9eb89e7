"""How much results vary, in a line."""

from __future__ import annotations

from undaunted.training.rerun.stats import QuickStats


def test_all_identical():
    stats = QuickStats()
    for _ in range(1234):
        stats.record(0.0)
    assert stats.print_stats() == "1,234 samples, all identical"


def test_percentiles_count_zeros():
    stats = QuickStats()
    for _ in range(600):
        stats.record(0.0)
    for number in range(1, 401):
        stats.record(number / 1000)
    assert stats.print_stats() == (
        "1,000/600 total/identical samples, rel. variability: avg= 8.020E-02, p50= 0.0, "
        "p90= 3.010E-01, p99= 3.910E-01, p99.9= 4.000E-01, max: 4.000E-01"
    )


def test_the_newest_are_kept():
    stats = QuickStats(max_size=3)
    for number in (9.0, 1.0, 2.0, 3.0):
        stats.record(number)
    assert sorted(stats.samples) == [1.0, 2.0, 3.0]
    assert stats.max == 9.0


def test_those_of_several_ranks():
    one, other = QuickStats(), QuickStats()
    one.record(1.0)
    other.record(0.0)
    other.record(3.0)
    one.combine([QuickStats.of(other.state())])
    assert (sorted(one.samples), one.zero_cnt, one.max) == ([1.0, 3.0], 1, 3.0)
    one.reset()
    assert one.print_stats() == "0 samples, all identical"
