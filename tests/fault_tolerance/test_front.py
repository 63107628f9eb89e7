"""The launcher's own process, where it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CODE = """
import os, resource, sys, threading
from undaunted.fault_tolerance import front
from undaunted.fault_tolerance.run_config import RunConfig

def no_process():
    raise BlockingIOError(11, "Resource temporarily unavailable")

def no_thread(self):
    raise RuntimeError("can't start new thread")

directory, which = sys.argv[1:]
if which == "process":
    os.fork = no_process
elif which == "thread":
    threading.Thread.start = no_thread
elif which == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
elif which == "size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
target, args = ("false" if which == "fails" else "true"), []
if which == "told":  # to stop: the rank has saved, and ends with 0
    target = "sh"
    args = ["-c", f"trap 'exit 0' TERM; kill -TERM {os.getpid()}; sleep 60 & wait"]
config = RunConfig(
    run_id="x", node="here", nproc_per_node=1, max_restarts=0, kind="program", target=target,
    args=args, cwd=directory, run_dir=directory, log_dir=directory, stdout=[0], stderr=[0],
    python=sys.executable,
)
sys.exit(front.run(config))
"""


def launch(directory: Path, which: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a launcher that lacks what ``which`` says."""
    return subprocess.run(
        [sys.executable, "-c", CODE, str(directory), which],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), **environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("which", "code"), [("process", 2), ("thread", 1)])
def test_the_limit_of_processes_is_named_with_the_remedy(
    tmp_path: Path, which: str, code: int
) -> None:
    done = launch(tmp_path, which)
    (line,) = done.stderr.splitlines()
    assert done.returncode == code
    assert line.startswith("[undaunted] ")
    assert "ulimit -u" in line


@pytest.mark.parametrize(
    ("which", "limit"), [("files", "ulimit -n is 30"), ("size", "ulimit -f is 1024 bytes")]
)
def test_other_limits_are_named_with_value_and_remedy(
    tmp_path: Path, which: str, limit: str
) -> None:
    done = launch(tmp_path, which)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("[undaunted] 1 rank cannot be started: ")
    assert f"{limit}: raise it" in line


@pytest.mark.parametrize("name", ["journal-here.jsonl", ".lock-here"])
@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "FIFO"), (os.mkdir, "directory")])
def test_what_is_no_file_is_named_with_the_remedy(
    tmp_path: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    make(tmp_path / name)
    done = launch(tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"[undaunted] {tmp_path / name} is a {kind}, not a file; remove it")


# --- a file that says that the job is finished ----------------------------------------------------


def test_a_finished_job_leaves_its_flag(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    for _ in range(2):  # it may be there already
        assert launch(tmp_path, FAULT_TOL_FINISHED_FLAG_FILE=str(flag)).returncode == 0
        assert flag.read_bytes() == b""
    assert flag.stat().st_mode & 0o777 == 0o600


def test_a_failed_job_leaves_no_flag(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    assert launch(tmp_path, "fails", FAULT_TOL_FINISHED_FLAG_FILE=str(flag)).returncode == 1
    assert not flag.exists()


def test_a_job_that_was_told_to_stop_leaves_no_flag_though_all_ranks_end_well(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    assert launch(tmp_path, "told", FAULT_TOL_FINISHED_FLAG_FILE=str(flag)).returncode == 0
    assert not flag.exists()


@pytest.mark.parametrize("name", ["missing/flag", "x" * 300])
def test_a_flag_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    ended = launch(tmp_path, FAULT_TOL_FINISHED_FLAG_FILE=str(tmp_path / name))
    assert ended.returncode == 0
    said = [line for line in ended.stderr.splitlines() if "FAULT_TOL_FINISHED_FLAG_FILE" in line]
    assert len(said) == 1
    assert "the job is finished, but" in said[0]
    assert "Traceback" not in ended.stderr
