"""The process in which a launcher begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from undaunted.base import process
from undaunted.chaos.nemesis import stage

# Starts a stage that becomes `sleep`, tells its pid, and waits to be killed.
PARENT = """
import os, subprocess, sys
from undaunted.chaos.nemesis import stage
child = subprocess.Popen(stage.command(os.getpid(), (), [sys.executable, "-c", {program!r}]))
child.wait()
"""
CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_becomes_the_command() -> None:
    words = stage.command(os.getpid(), (), ["/bin/sh", "-c", "echo here; exit 3"])

    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (3, "here\n", "")


def test_nothing_starts_when_the_parent_is_gone() -> None:
    words = stage.command(1, (), ["/bin/sh", "-c", "echo here"])

    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (stage.CANNOT_START, "")


def test_a_command_that_does_not_exist() -> None:
    words = stage.command(os.getpid(), (), ["/no/such/program"])

    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert done.returncode == stage.CANNOT_START
    assert "/no/such/program" in done.stderr


def test_dies_with_the_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(program=CHILD)], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    pidfd = process.open_pidfd(pid)
    assert pidfd is not None

    parent.send_signal(signal.SIGKILL)

    assert process.wait_pidfd(pidfd, 30)
    os.close(pidfd)
    parent.wait()
    parent.stdout.close()
