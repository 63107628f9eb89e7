from __future__ import annotations

from benchmarks.table import Result, cell, markdown, paired_ratio


def result(**values: list[float | None]) -> Result:
    rows = {launcher: {"restart": row} for launcher, row in values.items()}
    return Result("crash", "import torch", 8, rows)


def test_cell_shows_median_range_and_number_of_values() -> None:
    assert cell([0.3, 0.1, 0.25]) == "0.25 [0.1..0.3] n=3"


def test_cell_leaves_failed_runs_out() -> None:
    assert cell([None, 2.0, None]) == "2 [2..2] n=1"
    assert cell([None]) == "-"


def test_ratio_is_the_median_of_the_ratios_of_the_pairs() -> None:
    assert paired_ratio([1.0, 2.0, 4.0], [10.0, 10.0, 10.0]) == 5.0


def test_ratio_skips_pairs_that_lack_a_value_or_have_a_zero() -> None:
    assert paired_ratio([None, 0.0, 1.0, 1.0, 2.0], [9.0, 9.0, 0.0, None, 8.0]) == 4.0
    assert paired_ratio([], [1.0]) is None


def test_table_has_a_column_per_launcher_and_the_ratio() -> None:
    lines = markdown([result(undaunted=[0.1, 0.1], torchrun=[1.0, 2.0])]).splitlines()
    assert lines == [
        "| crash, 8 ranks, import torch | undaunted | torchrun | torchrun / undaunted |",
        "|---|---|---|---|",
        "| restart | 0.1 [0.1..0.1] n=2 | 1.5 [1..2] n=2 | 15 |",
    ]


def test_every_other_launcher_has_its_ratio() -> None:
    head, _, row = markdown([result(undaunted=[1.0], torchrun=[2.0], nvrx=[3.0])]).splitlines()
    assert head.endswith("| torchrun / undaunted | nvrx / undaunted |")
    assert row.endswith("| 2 | 3 |")


def test_table_without_a_launcher_to_compare_with_has_no_ratio() -> None:
    assert markdown([result(undaunted=[0.1])]).endswith("| 0.1 [0.1..0.1] n=1 |")


def test_failures_are_counted_by_kind() -> None:
    one = result(undaunted=[None, None])
    one.failures = ["run x: ended with 1.\nlong\noutput: no", "run x: ended with 1.\nother\nno"] * 2
    assert markdown([one]).splitlines()[-3:] == [
        "Failed 2 times: run x: ended with 1. output: no",
        "",
        "Failed 2 times: run x: ended with 1. no",
    ]


def test_values_of_one_round_stay_aligned_when_a_run_fails() -> None:
    one = Result("start", "", 1)
    one.add("undaunted", 0, {})
    one.add("undaunted", 1, {"start": 1.0})
    one.add("undaunted", 2, {})
    one.add("undaunted", 3, {"start": 3.0, "exit": 0.5})
    assert one.values["undaunted"] == {
        "start": [None, 1.0, None, 3.0],
        "exit": [None, None, None, 0.5],
    }
