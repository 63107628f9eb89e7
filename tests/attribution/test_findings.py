import re
from pathlib import Path

import msgspec
import pytest

from undaunted.attribution.findings import CAUSES, Finding, worst_first

DESIGN = Path(__file__).parents[2] / "docs" / "design" / "attribution.md"


def test_the_design_names_each_cause() -> None:
    table = DESIGN.read_text().split("| causes |")[1].split("\n\n")[0]

    assert set(re.findall(r"`(\w+)`", table)) == set(CAUSES)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.name)
def test_a_row_says_what_to_do_and_when(cause) -> None:
    assert CAUSES[cause.name] is cause
    assert cause.meaning
    assert cause.after >= 1
    assert not cause.follows or cause.action == "restart"


def test_stop_stands_only_where_other_hardware_would_not_help() -> None:
    stops = {cause.name for cause in CAUSES.values() if cause.action == "stop"}

    assert stops == {
        "checkpoint_mismatch",
        "data_error",
        "device_fault",
        "gpu_out_of_memory",
        "launcher_error",
        "mismatch",
        "missing_file",
        "not_finite",
        "program_error",
        "quota_exceeded",
        "state_not_saved",
        "unequal_work",
    }
    # One that stops a job is seen at least twice before.
    assert {CAUSES[name].after for name in stops} == {3}


def test_severity_comes_before_time() -> None:
    timeout = Finding("collective_timeout", t=10.0)
    error = Finding("program_error", t=20.0)
    memory = Finding("gpu_memory_error", t=30.0)

    assert worst_first([timeout, error, memory]) == [memory, error, timeout]


def test_among_equals_the_earliest_wins_and_no_time_is_last() -> None:
    late = Finding("gpu_lost", t=30.0)
    early = Finding("gpu_memory_error", t=20.0)
    unknown = Finding("gpu_firmware")

    assert worst_first([unknown, late, early]) == [early, late, unknown]


def test_at_the_same_time_the_surest_wins() -> None:
    guess = Finding("program_error", confidence=0.4)
    sure = Finding("program_error", confidence=0.9)

    assert worst_first([guess, sure]) == [sure, guess]


def test_a_cause_of_a_newer_version_is_not_last() -> None:
    new = Finding("quantum_decoherence")

    assert worst_first([Finding("terminated"), new])[0] == new


def test_a_finding_travels_as_json() -> None:
    finding = Finding("host_lag", ranks=(3,), nodes=("n1",), t=5.5, source="recording of rank 3")

    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
