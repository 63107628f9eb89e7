from __future__ import annotations

from pathlib import Path

from benchmarks import calls


def test_table_has_a_line_per_call() -> None:
    results = {"heartbeat": {"median_us": 0.31234, "least_us": 0.3}, "step": {"median_us": 12.0, "least_us": 1.0}}  # fmt: skip # noqa: E501
    assert calls.table("heartbeat", results).splitlines() == [
        "| heartbeat | median, us | least, us |",
        "|---|---|---|",
        "| heartbeat | 0.312 | 0.3 |",
        "| step | 12 | 1 |",
    ]


def test_programs_exist() -> None:
    directory = Path(calls.__file__).parent
    assert all((directory / program).is_file() for program in calls.PROGRAMS.values())
