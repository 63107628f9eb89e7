"""Exit statuses and signals of processes that may end at any moment."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import pytest

from undaunted.base import process
from undaunted.fault_tolerance.agent.processes.workers import Worker, Workers


class Seen:
    """A `Workers` with real children, reaped by hand."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int | None]] = []
        self.workers = Workers(self.note, lambda: None)

    def note(self, worker: Worker) -> None:
        self.exits.append((worker.local_rank, worker.code))


def child(code: str) -> int:
    return process.spawn([sys.executable, "-c", code], os.environ, ())


WAITS = "import signal; signal.pause()"


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
    pids = [child(WAITS), child(WAITS)]
    seen.workers.adopt(pids)
    os.kill(pids[0], signal.SIGKILL)
    ended(pids[0])
    seen.workers.reap()
    seen.workers.signal_ranks((0, 1), signal.SIGTERM)
    ended(pids[1])
    seen.workers.reap()
    assert seen.exits == [(0, -9), (1, -15)]
    assert [worker.told_by_us for worker in seen.workers.all] == [False, True]


def test_what_is_sent_to_a_process_on_its_way_out_has_not_ended_it(seen: Seen) -> None:
    pids = [child(WAITS), child(WAITS)]
    seen.workers.adopt(pids)
    for pid in pids:
        os.kill(pid, signal.SIGBUS if pid == pids[0] else signal.SIGSEGV)
        ended(pid)
    seen.workers.signal_ranks((0,), signal.SIGTERM)
    seen.workers.signal_tree(signal.SIGKILL, spare=set())
    seen.workers.reap()
    assert seen.exits == [(0, -signal.SIGBUS), (1, -signal.SIGSEGV)]
    assert [worker.told_by_us for worker in seen.workers.all] == [False, False]


def test_a_stopped_rank_can_be_ended(seen: Seen) -> None:
    pid = child(WAITS)
    seen.workers.adopt([pid])
    os.kill(pid, signal.SIGSTOP)
    seen.workers.signal_ranks((0,), signal.SIGTERM)
    ended(pid)
    seen.workers.reap()
    assert seen.exits == [(0, -15)]


def test_the_tree_is_spared_what_shall_live(seen: Seen) -> None:
    spared, pid = child(WAITS), child(WAITS)
    try:
        seen.workers.adopt([pid])
        assert seen.workers.signal_tree(signal.SIGKILL, spare={spared}) == [pid]
        ended(pid)
        assert process.state(spared) != "Z"
    finally:
        os.kill(spared, signal.SIGKILL)
        ended(spared)
        seen.workers.reap()


def test_strangers_exits_are_kept_in_bounds(seen: Seen) -> None:
    for number in range(3000):
        seen.workers._reaped(10_000_000 + number, 0, number)
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
    pid = child(WAITS)
    seen.workers._reaped(pid, 0, time.monotonic_ns())  # an orphan of the round, long ago
    seen.workers.replace(0, pid, time.monotonic_ns())
    assert seen.exits == [(0, 1)]
    seen.workers.end(pid)
    ended(pid)
    seen.workers.reap()
    assert seen.exits == [(0, 1), (0, -9)]


def test_what_was_started_for_nothing_is_ended_unless_its_pid_is_anothers(seen: Seen) -> None:
    pid = child(WAITS)
    seen.workers.end(pid)
    ended(pid)
    seen.workers.reap()
    seen.workers.end(pid)
    seen.workers.end(os.getppid())
    assert process.state(os.getppid()) != "Z"
