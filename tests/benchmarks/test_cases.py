from __future__ import annotations

from benchmarks.cases import HEAVY, PLAIN, TORCH, all_cases, seconds
from benchmarks.launchers import available


def test_plan_covers_every_number_of_ranks() -> None:
    plan = [(case.name, case.ranks) for case in all_cases((1, 2, 8))]
    for ranks in (1, 2, 8):
        assert plan.count(("start", ranks)) == 2
        assert plan.count(("crash", ranks)) == 2
    assert [ranks for name, ranks in plan if name == "hang"] == [2, 8]
    assert [ranks for name, ranks in plan if name == "idle"] == [8]


def test_torchrun_is_left_out_of_hangs() -> None:
    (case,) = [case for case in all_cases((2,)) if case.name == "hang"]
    assert case.needs_hang_detection
    assert [one.detects_hangs for one in available() if one.name == "torchrun"] == [False]


def test_workloads_exist() -> None:
    assert all(path.is_file() for path in (PLAIN, TORCH, HEAVY))


def test_seconds() -> None:
    assert seconds(1_000_000_000, 3_500_000_000) == 2.5
