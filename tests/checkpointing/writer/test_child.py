"""The writer as a child process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from undaunted.base import process
from undaunted.checkpointing.writer import child

pytestmark = pytest.mark.e2e


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch):
    """Python with the program's arguments, which it does not understand; it waits for its input."""
    ours, theirs = os.pipe()
    monkeypatch.setattr(child, "_PROGRAM", "undaunted.base")  # cannot be executed
    found = child.start(ours)
    yield found
    found.release()
    os.close(ours)
    os.close(theirs)


def test_its_end_is_noticed_and_told(started: child.Child) -> None:
    assert started.ended(60)
    assert "has ended with exit code 1; its standard error" in started.how_it_ended()
    assert "exit code 1" in started.how_it_ended()
    started.kill()
    started.release()
    assert started.ended()


def test_one_that_somebody_else_has_waited_for(started: child.Child) -> None:
    assert started.ended(60)
    os.waitpid(started.pid, 0)
    assert started.how_it_ended() == "has ended"


def test_one_that_has_not_ended_is_waited_for_later() -> None:
    waits = "import signal; signal.pause()"
    pid = process.spawn([sys.executable, "-c", waits], dict(os.environ), [])
    pidfd = process.open_pidfd(pid)
    assert pidfd is not None
    spare = os.dup(pidfd)
    one = child.Child(pid, pidfd)
    one.release()
    one.release()
    assert pid in child._left
    process.signal_pidfd(spare, 9)
    assert process.wait_pidfd(spare, 60)
    os.close(spare)
    child._reap_left()
    assert pid not in child._left


def test_what_a_process_does() -> None:
    assert "file system" in child.Child(os.getpid(), -1).doing()


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setattr(sys, "path", ["", "/a"])
    environ = child._environment()
    first, ours, msgspecs = environ["PYTHONPATH"].split(":")
    assert first == "/a", "not the current directory"
    assert (Path(ours) / "undaunted").is_dir()
    assert (Path(msgspecs) / "msgspec").is_dir()
    assert "PYTHONINSPECT" not in environ
