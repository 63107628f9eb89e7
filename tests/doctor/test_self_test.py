from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from undaunted.doctor import self_test as module
from undaunted.doctor.self_test import SelfTest, Step, judge, run_self_test
from undaunted.journal.events import Verdict
from undaunted.journal.job.values import NodePart, Phases

S = 10**9


def failed(number: int, kind: str, rank: int, **more: Any) -> NodePart:
    verdict = Verdict(t=0, kind=kind, rank=rank, local_rank=rank, pid=7, line="...")
    phases = Phases(detect_ns=S // 1000, total_to_step_ns=S // 5)
    made: dict[str, Any] = {"verdict": verdict, "phases": phases, "last_iteration": 5}
    return NodePart(round=number, cause=f"rank {rank}: {kind}", **made | more)


LAST = NodePart(round=2, last_iteration=39)


def test_all_well() -> None:
    steps = judge(0, [failed(0, "crash", 1), failed(1, "hang", 0), LAST], 90.0)
    assert [(step.name, step.ok) for step in steps] == [
        ("start", True),
        ("rank 1 is killed", True),
        ("rank 0 hangs", True),
        ("end", True),
    ]
    assert steps[1].text == "noticed after 1.0 ms, both ranks at work again after 200 ms"
    assert steps[1].seconds == 0.2


def test_nothing_ran() -> None:
    for rounds in ([], [NodePart(round=0)]):
        steps = judge(1, rounds, 90.0)
        assert [(step.name, step.ok) for step in steps] == [("start", False), ("end", False)]


def test_another_rank_is_blamed() -> None:
    steps = judge(0, [failed(0, "crash", 0), failed(1, "hang", 0), LAST], 90.0)
    assert [step.ok for step in steps] == [True, False, True, True]
    assert steps[1].text == "not noticed as such; noticed: rank 0: crash; rank 0: hang"


def test_ranks_that_do_not_come_back() -> None:
    steps = judge(1, [failed(0, "crash", 1, phases=None)], 90.0)
    assert steps[1] == Step("rank 1 is killed", False, "noticed, but the ranks did not come back")
    assert steps[-1].text == "the launcher ended with exit code 1"


def test_a_job_that_does_not_end() -> None:
    assert judge(None, [LAST], 90.0)[-1].text == "the job has not ended within 90 s"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_launcher_that_does_not_work(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = temporary / "broken"
    program.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    found = run_self_test(os.environ)
    assert not found.ok
    assert found.output == "no such luck"
    assert list(temporary.iterdir()) == [program]


def test_a_launcher_that_hangs(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = temporary / "hung"
    program.write_text("#!/bin/sh\ntrap '' INT\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(module, "_STOP_S", 0.1)
    found = run_self_test(os.environ, deadline_s=0.1, keep=True)
    assert not found.ok
    assert found.steps[-1].text == "the job has not ended within 0 s"
    assert (Path(found.directory) / "output.txt").exists()


def test_an_interrupt_ends_the_launcher(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            launchers.append(self)
            if len(launchers) == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    program = temporary / "slow"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(KeyboardInterrupt):
        run_self_test(os.environ)
    assert launchers[0].returncode == -signal.SIGINT
    assert list(temporary.iterdir()) == [program]


def test_signals_wait_for_a_start_to_be_over() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), module._signals_held():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        done.append("started")
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_settings_of_jobs_stay_outside() -> None:
    environ = {"PET_NNODES": "2", "UNDAUNTED_TOKEN": "x", "SLURM_JOB_ID": "1", "HOME": "/h"}
    assert module._clean(environ) == {"HOME": "/h", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.e2e
def test_a_real_job(temporary: Path) -> None:
    found = run_self_test(os.environ)
    assert found.ok, found
    assert [step.name for step in found.steps] == [
        "start",
        "rank 1 is killed",
        "rank 0 hangs",
        "end",
    ]
    assert found == SelfTest(steps=found.steps, seconds=found.seconds)
    assert list(temporary.iterdir()) == []
