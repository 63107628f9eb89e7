"""Whether a launcher on another node still runs, by its step of Slurm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.journal.owner import this_process
from undaunted.services.slurm import steps

if TYPE_CHECKING:
    from pathlib import Path

SQUEUE = """#!/bin/sh
case "$*" in *"--jobs=$JOB "*) printf '%s\\n' $STEPS ;; *) exit 1 ;; esac
"""
ARRAY = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1"}


@pytest.mark.parametrize(
    ("step", "env", "running"),
    [
        ("17.0", {}, False),
        ("17.0", {"STEPS": "17.batch"}, False),
        ("17.0", {"STEPS": "17.0 17.batch"}, None),  # it is there, perhaps without that launcher
        ("17.1", {"STEPS": "17.0"}, False),
        ("17.0", {"STEPS": "16_1.0", "JOB": "16_1"} | ARRAY, None),
        ("17.0", {"STEPS": "16_1.1", "JOB": "16_1"} | ARRAY, False),
        ("16.0", {}, None),  # another job, perhaps of another cluster
        ("17.4294967291", {}, None),  # the batch script
        ("17.0", {"JOB": "nobody"}, None),
        ("17.0", {"SLURM_HET_SIZE": "2"}, None),
        ("", {}, None),
    ],
)
def test_a_step_that_has_ended_runs_no_launcher(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    env: dict[str, str],
    running: bool | None,
) -> None:
    (tmp_path / "squeue").write_text(SQUEUE)
    (tmp_path / "squeue").chmod(0o700)
    ours = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    ours |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB": "17", "STEPS": ""}
    for name, text in (ours | env).items():
        monkeypatch.setenv(name, text)
    steps._steps.cache_clear()
    opened = msgspec.structs.replace(this_process(1, ""), boot_id="elsewhere", slurm_step=step)
    assert steps.is_running(opened) is running


def test_a_task_of_srun_writes_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    assert this_process(1, "").slurm_step == ""
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    assert this_process(1, "").slurm_step == "17.3"
    assert steps.is_running(this_process(1, "")) is True
