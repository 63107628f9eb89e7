"""Exit statuses, signals, and the tree below the agent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from undaunted.base import process
from undaunted.fault_tolerance.agent.processes import (
    Ended,
    Tree,
    Worker,
    Workers,
)

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


class Seen:
    """A `Workers` with real children, reaped by hand."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int | None]] = []
        self.workers = Workers(self.note, lambda: None)
        self.others = process.children()  # what earlier tests of this process keep, to be spared

    def note(self, worker: Worker) -> None:
        self.exits.append((worker.local_rank, worker.code))


def child(code: str) -> int:
    return process.spawn([sys.executable, "-c", code], os.environ, (), blocked=())


PAUSE = "import signal; signal.pause()"


def ended(pid: int) -> None:
    """Wait until the process has ended, without reaping it."""
    pidfd = process.open_pidfd(pid)
    assert pidfd is not None
    try:
        assert select.select([pidfd], [], [], 20)[0]
    finally:
        os.close(pidfd)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_an_exit_before_the_pid_is_known_is_not_lost(seen: Seen) -> None:
    pid = child("raise SystemExit(4)")
    ended(pid)
    seen.workers.reap()
    assert seen.exits == []
    seen.workers.adopt([pid])
    assert seen.exits == [(0, 4)]


def test_signals_we_sent_are_told_from_others(seen: Seen) -> None:
    pids = [child(PAUSE), child(PAUSE)]
    seen.workers.adopt(pids)
    os.kill(pids[0], signal.SIGKILL)
    ended(pids[0])
    seen.workers.reap()
    seen.workers.signal_ranks((0, 1), signal.SIGTERM)
    ended(pids[1])
    seen.workers.reap()
    assert seen.exits == [(0, -9), (1, -15)]
    assert [worker.signalled_by_us for worker in seen.workers.all] == [False, True]
    assert seen.workers.killed_by_others() == [(pids[0], signal.SIGKILL)]


def test_an_orphan_that_somebody_has_killed(seen: Seen) -> None:
    rank, orphan, fine = child(PAUSE), child(PAUSE), child("")
    seen.workers.adopt([rank])
    os.kill(orphan, signal.SIGKILL)
    ended(orphan)
    ended(fine)
    seen.workers.reap()
    assert seen.workers.killed_by_others() == [(orphan, signal.SIGKILL)]
    seen.workers.signal_tree(signal.SIGKILL, spare=set())
    ended(rank)
    seen.workers.reap()
    assert seen.workers.killed_by_others() == [(orphan, signal.SIGKILL)]


def test_what_is_sent_to_a_process_on_its_way_out_has_not_ended_it(seen: Seen) -> None:
    pids = [child(PAUSE), child(PAUSE)]
    seen.workers.adopt(pids)
    for pid in pids:
        os.kill(pid, signal.SIGBUS if pid == pids[0] else signal.SIGSEGV)
        ended(pid)
    seen.workers.signal_ranks((0,), signal.SIGTERM)
    seen.workers.signal_tree(signal.SIGKILL, spare=seen.others)
    seen.workers.reap()
    assert seen.exits == [(0, -signal.SIGBUS), (1, -signal.SIGSEGV)]
    assert [worker.signalled_by_us for worker in seen.workers.all] == [False, False]


HUNGRY = """
import os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, ({limit}, {limit}))
eaten = bytearray(64 << 20)
os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_how_much_memory_a_rank_had_and_whether_its_core_is_kept(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a core may be written there
    pid = child(HUNGRY.format(limit=0))
    ended(pid)
    seen.workers.reap()
    seen.workers.adopt([pid])
    (worker,) = seen.workers.all
    assert (64 << 20) < worker.peak_bytes < (16 << 30)  # at least that of this process as it forks
    assert worker.code == -signal.SIGSEGV
    if not Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        assert not worker.dumped_core, "of no bytes"


def test_a_stopped_rank_can_be_ended(seen: Seen) -> None:
    pid = child(PAUSE)
    seen.workers.adopt([pid])
    os.kill(pid, signal.SIGSTOP)
    seen.workers.signal_ranks((0,), signal.SIGTERM)
    ended(pid)
    seen.workers.reap()
    assert seen.exits == [(0, -15)]


def test_the_tree_is_spared_what_shall_live(seen: Seen) -> None:
    spared, pid = child(PAUSE), child(PAUSE)
    try:
        seen.workers.adopt([pid])
        assert seen.workers.signal_tree(signal.SIGKILL, spare={spared, *seen.others}) == [pid]
        ended(pid)
        assert process.state(spared) != "Z"
    finally:
        os.kill(spared, signal.SIGKILL)
        ended(spared)
        seen.workers.reap()


def test_strangers_exits_are_kept_in_bounds(seen: Seen) -> None:
    for number in range(3000):
        seen.workers._reaped(10_000_000 + number, Ended(0, number))
    assert len(seen.workers._unclaimed) <= 1024


def test_another_process_takes_the_place_of_a_rank(seen: Seen) -> None:
    first = child("raise SystemExit(1)")
    seen.workers.adopt([first])
    ended(first)
    seen.workers.reap()
    second = child("raise SystemExit(2)")
    seen.workers.replace(0, second, time.monotonic_ns())
    assert seen.workers.all[0].pid == second
    ended(second)
    seen.workers.reap()
    began_ns = time.monotonic_ns()
    third = child("raise SystemExit(3)")
    ended(third)
    seen.workers.reap()
    seen.workers.replace(0, third, began_ns)
    assert seen.exits == [(0, 1), (0, 2), (0, 3)]


def test_a_replacement_did_not_end_when_another_with_its_pid_did(seen: Seen) -> None:
    seen.workers.adopt([child("raise SystemExit(1)")])
    ended(seen.workers.all[0].pid)
    seen.workers.reap()
    pid = child(PAUSE)
    seen.workers._reaped(pid, Ended(0, time.monotonic_ns()))  # an orphan of the round, long ago
    seen.workers.replace(0, pid, time.monotonic_ns())
    assert seen.exits == [(0, 1)]
    seen.workers.end(pid)
    ended(pid)
    seen.workers.reap()
    assert seen.exits == [(0, 1), (0, -9)]


def test_what_was_started_for_nothing_is_ended_unless_its_pid_is_anothers(seen: Seen) -> None:
    pid = child(PAUSE)
    seen.workers.end(pid)
    ended(pid)
    seen.workers.reap()
    seen.workers.end(pid)
    seen.workers.end(os.getppid())
    assert process.state(os.getppid()) != "Z"


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


@pytest.mark.parametrize(("code", "by_us"), [(-signal.SIGKILL, True), (1, False)])
def test_a_rank_that_the_front_has_ended_was_ended_by_the_launcher(code: int, by_us: bool) -> None:
    worker = Worker(0, 1, spawned_ns=10, code=code, exited_ns=30)
    worker.ended_by_front(20)
    assert worker.signalled_by_us == by_us
