from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.probes import Children, of_slurm, parse_config

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
Configuration data as of 2026-11-21T10:00:00
AccountingStorageHost   = localhost
KillOnBadExit           = 0
KillWait                = 30 sec
= nothing
UnkillableStepTimeout   = 60 sec
"""


def test_the_settings_that_matter() -> None:
    assert parse_config(CONFIG) == {
        "KillOnBadExit": "0",
        "KillWait": "30 sec",
        "UnkillableStepTimeout": "60 sec",
    }
    assert parse_config("\0\n===\n") == {}


def test_its_own_command(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho 'KillWait = 7 sec'\n")
    program.chmod(0o700)
    with Children() as children:
        job = {"PATH": str(tmp_path), "SLURM_JOB_ID": "1"}
        assert of_slurm(children, job) == ({"KillWait": "7 sec"}, "")
        assert of_slurm(children, {"PATH": str(tmp_path)}) == ({}, "")
        assert of_slurm(children, {"PATH": "/none", "SLURM_JOB_ID": "1"}) == ({}, "")
        program.write_text("#!/bin/sh\necho 'no contact' >&2\nexit 1\n")
        assert of_slurm(children, job) == ({}, "exit code 1: no contact")
