from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import launchers
from benchmarks.launchers import Job

JOB = Job(Path("script.py"), ranks=4, restarts=2, limit_s=1.5)
COMMANDS = [launchers.undaunted_command, launchers.torchrun_command, launchers.nvrx_command]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_launcher_gets_ranks_restarts_and_the_script_last(command: object) -> None:
    words = command(JOB)  # type: ignore[operator]
    assert "--nproc-per-node=4" in words
    assert "--max-restarts=2" in words
    assert words[-1] == "script.py"


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[2]])
def test_a_limit_is_passed_on_only_if_there_is_one(command: object) -> None:
    assert "--ft-rank-heartbeat-timeout=1.5" in command(JOB)  # type: ignore[operator]
    without = command(Job(Path("script.py"), 4))  # type: ignore[operator]
    assert not [word for word in without if "timeout" in word]


def test_ours_and_torchrun_are_always_there_and_ours_is_first() -> None:
    assert [launcher.name for launcher in launchers.available()][:2] == ["undaunted", "torchrun"]


def test_source_path_leads_to_the_package_and_keeps_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    first, *rest = launchers.source_path().split(os.pathsep)
    assert Path(first, "undaunted", "__init__.py").exists()
    assert rest == ["elsewhere"]
