from __future__ import annotations

from tests.doctor.checks.saying import said
from undaunted.doctor.checks import scheduler


def test_slurm() -> None:
    assert said(scheduler, environ={"SLURM_KILL_BAD_EXIT": "1"})[0][:2] == ("L18", "fail")
    assert said(scheduler, environ={"SLURM_KILL_BAD_EXIT": "0"}) == []
    assert said(scheduler, slurm={"KillOnBadExit": "1"})[0][:2] == ("L18", "warn")
    overridden = {"SLURM_KILL_BAD_EXIT": "0"}
    assert said(scheduler, slurm={"KillOnBadExit": "1"}, environ=overridden) == []
    assert said(scheduler, environ={"SLURM_WAIT": "10"})[0][:2] == ("L18", "fail")
    assert said(scheduler, slurm={"WaitTime": "60 sec"})[0][:2] == ("L18", "warn")
    assert said(scheduler, slurm={"WaitTime": "0 sec", "KillOnBadExit": "0"}) == []
    assert said(scheduler, slurm={"WaitTime": "60 sec"}, environ={"SLURM_WAIT": "0"}) == []
    assert said(scheduler, slurm={"KillWait": "30 sec"})[0][:2] == ("L19", "info")
    assert said(scheduler, slurm={"KillWait": "300 sec"}) == []
    tight = {"UnkillableStepTimeout": "60 sec", "MessageTimeout": "20 sec"}
    assert said(scheduler, slurm=tight)[0][:2] == ("L19", "warn")
    assert said(scheduler, slurm={"KillWait": "", "MessageTimeout": "(null)"}) == []


def test_kubernetes() -> None:
    found = said(scheduler, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert [row[:2] for row in found] == [("L20", "info")]
