from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance import run_lock

if TYPE_CHECKING:
    from pathlib import Path

# Locks, passes the lock on to a child as the launcher does to its agent, and is killed. The child
# lets go when its standard input ends.
KILLED = """
import os, signal, subprocess, sys
from undaunted.fault_tolerance import run_lock
fd = run_lock.lock(sys.argv[1], "a")
if os.fork() == 0:
    print("here", flush=True)
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path):
    """The process left behind by a launcher that was killed has the lock."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )
    assert launcher.stdout is not None
    assert launcher.stdin is not None
    with launcher.stdout, launcher.stdin:
        assert launcher.stdout.readline() == b"here\n"
        launcher.wait(60)
        yield launcher
        launcher.stdin.close()
        assert launcher.stdout.read() == b""  # the child has ended


def test_the_lock_is_free_again_when_its_descriptor_is_closed(tmp_path: Path) -> None:
    for _ in range(2):
        fd = run_lock.lock(str(tmp_path), "a")
        assert fd is not None
        assert fd >= 0
        os.close(fd)


def test_a_launcher_that_lives_is_not_waited_for(tmp_path: Path, capsys) -> None:
    fd = run_lock.lock(str(tmp_path), "a")
    other = run_lock.lock(str(tmp_path), "b")
    assert fd is not None
    assert other is not None
    assert run_lock.lock(str(tmp_path), "a", wait_s=60.0) is None
    assert capsys.readouterr().err == ""
    os.close(fd)
    os.close(other)


def test_a_launcher_that_has_just_begun_is_not_taken_for_a_killed_one(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    fd = run_lock.lock(str(tmp_path), "a")
    assert fd is not None
    path = tmp_path / ".lock-a"
    signature = path.read_text()
    path.write_text("")  # has the lock, and has not signed yet
    read = os.pread

    def read_before_it_signs(*which: int) -> bytes:
        seen = read(*which)
        path.write_text(signature)
        return seen

    monkeypatch.setattr(os, "pread", read_before_it_signs)
    assert run_lock.lock(str(tmp_path), "a", wait_s=0.01) is None
    assert capsys.readouterr().err == ""
    os.close(fd)


def test_the_owner_and_its_job_are_told_apart_by_others(tmp_path: Path) -> None:
    assert run_lock.owner(str(tmp_path), "a") is None
    fd = run_lock.lock(str(tmp_path), "a", job="job 7")
    assert fd is not None
    owner = run_lock.owner(str(tmp_path), "a")
    assert owner is not None
    assert (owner.pid, owner.lives) == (os.getpid(), True)
    assert run_lock.same_job(owner, "job 7")
    assert not run_lock.same_job(owner, "job 8")
    assert not owner._replace(start=owner.start + 1).lives
    (tmp_path / ".lock-a").write_bytes(b"\xff\xfe x y")
    assert run_lock.owner(str(tmp_path), "a") is None
    os.close(fd)


def test_what_a_killed_launcher_has_left_is_waited_for(tmp_path: Path, killed, capsys) -> None:
    assert run_lock.lock(str(tmp_path), "a", wait_s=0.01) is None
    assert "was killed; waiting up to 0.01 s" in capsys.readouterr().err
    assert killed.stdin is not None
    killed.stdin.close()
    fd = run_lock.lock(str(tmp_path), "a", wait_s=60.0)
    assert fd is not None
    assert fd >= 0
    os.close(fd)


def test_who_has_the_lock_is_found_although_the_launcher_is_gone(tmp_path: Path, killed) -> None:
    owner = run_lock.owner(str(tmp_path), "a")
    assert owner is not None
    assert not owner.lives
    holder = run_lock.holder(str(tmp_path), "a")
    assert holder not in {None, owner.pid}
    assert run_lock.holder(str(tmp_path), "b") is None


def test_without_a_directory_or_locks_there_is_none(tmp_path: Path, monkeypatch) -> None:
    assert run_lock.lock(str(tmp_path / "missing"), "a") == run_lock.NO_LOCKS

    def refuse(*_: object) -> None:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert run_lock.lock(str(tmp_path), "a") == run_lock.NO_LOCKS
