from __future__ import annotations

from simulator.coordination.run import Result
from simulator.coordination.summary import Summary


def test_runs_are_summed_up_and_violations_grouped() -> None:
    summary = Summary()
    summary.add(Result(0, ended="finished", seconds=1800, rounds=2))
    summary.add(Result(1, hopeless="1 node is left", seconds=1800, rounds=1))
    for seed in range(2, 12):
        summary.add(Result(seed, problem="the budget: 3 of 2", ended="failed"))
    assert summary.failures == 10
    assert summary.lines() == [
        "runs        12: 0 faults, 3 rounds, 0 take-overs, 0 events",
        "time        1.0 h simulated; of a job, half lost up to 0.0 s",
        "jobs ended  10 failed, 1 finished, 1 gave up (beyond help)",
        "violations  10",
        "  the budget: 10 (seeds 2, 3, 4, 5, 6, 7, 8, 9, ...)",
    ]
