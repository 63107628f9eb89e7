"""How much results vary."""

from __future__ import annotations

import logging
import math

from undaunted.base import torch_ranks
from undaunted.training.rerun.stats import QuickStats, StatisticsMachine


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


def step(machine, *results):
    """Run a step whose runs have these results; return how many there were, and what follows."""
    some, runs = iter(results), 0
    while machine.should_run_forward_backward(None):
        runs += 1
        machine.validate_result(next(some), math.isnan, "loss")
    return runs, machine.should_checkpoint_and_exit()


GO_ON = (False, False, 0)
REPORT = "  From validation call 'loss':"


def test_how_much_results_vary(caplog, monkeypatch):
    other = QuickStats()
    other.record(0.0)
    monkeypatch.setattr(torch_ranks, "gather", lambda mine: [mine, {"loss": other.state()}])
    caplog.set_level(logging.INFO)
    machine = StatisticsMachine(mode="report_stats")
    assert step(machine, 1.0, 1.0) == (2, GO_ON)
    assert REPORT not in caplog.messages
    assert step(machine, 1.0, 3.0) == (2, GO_ON)
    assert REPORT in caplog.messages
    assert caplog.messages[-1].startswith("    3/2 total/identical samples, rel. variability: avg=")
    assert step(machine, 2.0, 2.0) == (2, GO_ON)


def test_a_step_without_checks_varies_in_nothing():
    machine = StatisticsMachine(mode="report_stats")
    for _ in range(3):
        runs = 0
        while machine.should_run_forward_backward(None):
            runs += 1
        assert runs == 1


def test_results_vary_in_a_job_that_resumes():
    before = StatisticsMachine(mode="validate_results")
    step(before, 1.0)
    assert step(before, math.nan, math.nan) == (2, (True, True, 16))
    machine = StatisticsMachine(mode="report_stats")
    machine.load_state_dict(before.state_dict())
    assert step(machine, 1.0) == (1, GO_ON)
    assert step(machine, 1.0, 1.0) == (2, GO_ON)
