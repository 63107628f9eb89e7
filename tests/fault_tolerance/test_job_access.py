"""What launchers tell each other of their options."""

from __future__ import annotations

import pytest

from undaunted.base.durations import parse_seconds
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.job_access import settings
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.run_config import RunSettings

NODES = Nodes(min_nodes=2, max_nodes=4, endpoints=["a:1"], is_host=True, address="a")


def test_options_that_are_left_out_are_empty() -> None:
    told = settings(RunSettings(), NODES)
    assert {name for name, text in told.items() if text} == {"--nnodes"}


@pytest.mark.parametrize(
    ("given", "name", "text"),
    [
        (RunSettings(max_restarts=3), "--max-restarts", "3"),
        (RunSettings(restart_intensity=(3, 600.0)), "--restart-intensity", "3/600s"),
        (RunSettings(slow_ranks="exclude"), "--slow-ranks", "exclude"),
        (RunSettings(term_timeout_s=280.0), "--term-timeout", "280s"),
        (RunSettings(stop_timeout_s=0.5), "--workers-stop-timeout", "0.5s"),
        (
            RunSettings(ft=FaultToleranceConfig(max_no_progress_cycles=0)),
            "--ft-max-no-progress-cycles",
            "0",
        ),
    ],
)
def test_an_option_that_is_given_is_told(given: RunSettings, name: str, text: str) -> None:
    told = settings(given, NODES)
    assert {key: value for key, value in told.items() if value} == {"--nnodes": "2:4", name: text}


def test_times_that_differ_a_little_differ_and_can_be_given_again() -> None:
    told = [
        settings(RunSettings(slow_ranks_after_s=seconds), NODES)["--slow-ranks-after"]
        for seconds in (3600.0, 3610.0, 0.5)
    ]
    assert [parse_seconds(text) for text in told] == [3600.0, 3610.0, 0.5]
