from __future__ import annotations

import pytest

from undaunted.cli.cycle_info import cycle_info
from undaunted.cli.parse import UsageError, parse
from undaunted.fault_tolerance.cycle_info_place import CycleInfoPlace


def place(line: str, **environ: str) -> CycleInfoPlace | None:
    parsed = parse([*line.split(), "train.py"], environ)
    return cycle_info(parsed, environ, "/work", "run 1", "/l/p.log")


def test_no_files_unless_asked_for():
    assert place("") is None


def test_names():
    here = place("--ft-cycle-info-dir info")
    assert here == CycleInfoPlace(directory="/work/info", job_id="run 1", log_prefix="/l/p.log")
    assert here.current == "/work/info/cycle_info.run_1.current"
    assert here.path(3) == "/work/info/cycle_info.run_1.0.3"


def test_slurms_names():
    slurm = {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "2"}
    here = place("--ft-cycle-info-dir /i", **slurm)
    assert here is not None
    assert here.path(0) == "/i/cycle_info.8.2.0"
    here = place("--ft-cycle-info-dir /i", **slurm, SLURM_ARRAY_JOB_ID="7")
    assert here is not None
    assert here.path(0) == "/i/cycle_info.7.2.0"  # the same for all nodes of an array
    here = place("--ft-cycle-info-dir /i --ft-cycle-info-job-id x", **slurm)
    assert here is not None
    assert here.job_id == "x"
    here = place("--ft-cycle-info-dir /i", SLURM_RESTART_COUNT="many")
    assert here is not None
    assert here.attempt == 0


def test_a_name_without_files():
    with pytest.raises(UsageError, match="needs --ft-cycle-info-dir"):
        place("--ft-cycle-info-job-id x")
