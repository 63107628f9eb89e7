"""When is nothing of a round left?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.base import process
from undaunted.fault_tolerance.agent.processes.tree import Tree
from undaunted.fault_tolerance.agent.processes.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITS = "import signal; print(flush=True); signal.pause()"
# Ignores SIGTERM, as does its child, which is left to whoever adopts orphans.
LEAVES_A_CHILD = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print(flush=True)
signal.pause()
"""


class Round:
    """A tree of real processes."""

    def __init__(self) -> None:
        self.empty = 0
        self.before = process.children()  # of other tests in this process
        self.spared = set(self.before)
        self.workers = Workers(lambda worker: None, lambda: self.tree.look())  # noqa: PLW0108
        self.tree = Tree(self.workers, lambda: self.spared, self._is_empty)

    def _is_empty(self) -> None:
        self.empty += 1

    def start(self, code: str, lines: int = 1) -> int:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child.stdout:
            for _ in range(lines):
                child.stdout.readline()
        child.returncode = 0  # it is ours to reap
        return child.pid

    def reap_until_empty(self) -> None:
        ours = process.children() - self.before
        pidfds = [fd for pid in ours if (fd := process.open_pidfd(pid)) is not None]
        for fd in pidfds:
            assert process.wait_pidfd(fd, 20)
            os.close(fd)
        self.workers.reap()


@pytest.fixture
def current() -> Iterator[Round]:
    current = Round()
    starts = [(pid, process.start_time(pid) or 0) for pid in current.before]
    yield current
    process.end_descendants(10, starts)


def test_an_empty_tree_is_told_at_once(current: Round) -> None:
    current.tree.signal(signal.SIGTERM)
    assert current.empty == 1
    current.tree.look()
    assert current.empty == 1, "and only once"


def test_nothing_is_told_before_it_was_asked(current: Round) -> None:
    current.tree.look()
    assert current.empty == 0


def test_a_process_is_waited_for(current: Round) -> None:
    current.start(WAITS)
    current.tree.signal(signal.SIGKILL)
    assert current.empty == 0
    current.reap_until_empty()
    assert current.empty == 1


def test_children_of_killed_processes_are_killed_too(current: Round) -> None:
    current.start(LEAVES_A_CHILD, lines=2)
    current.tree.signal(signal.SIGKILL)
    for _ in range(3):  # the child becomes ours when its parent has ended
        if not current.empty:
            current.reap_until_empty()
    assert current.empty == 1


def test_who_came_after_the_signal_gets_it_as_well(current: Round) -> None:
    current.start(WAITS)
    current.tree.signal(signal.SIGKILL)
    late = current.start(WAITS)
    current.tree.look()
    assert late in current.workers.killed
    for _ in range(2):
        if not current.empty:
            current.reap_until_empty()
    assert current.empty == 1


def test_spared_processes_are_neither_ended_nor_waited_for(current: Round) -> None:
    spared = current.start(WAITS)
    current.spared.add(spared)
    current.tree.signal(signal.SIGKILL)
    assert current.empty == 1
    assert current.tree.left() == ()
    assert process.state(spared) not in ("", "Z")


def test_what_is_left_can_be_given_up(current: Round) -> None:
    pid = current.start(LEAVES_A_CHILD, lines=2)
    current.tree.signal(signal.SIGTERM)
    assert pid in current.tree.left()
    current.tree.forget()
    process.end_descendants(10)
    current.tree.look()
    assert current.empty == 0
