"""Stacks and states of ranks: each living rank is asked, nobody is waited for beyond the limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.base import process
from undaunted.fault_tolerance.agent import evidence
from undaunted.fault_tolerance.agent.begun import StackPipes
from undaunted.fault_tolerance.agent.processes import Worker
from undaunted.progress.snapshot import PageSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

ARMED = """
import faulthandler, signal, sys
faulthandler.register(signal.SIGUSR1, file=int(sys.argv[1]), all_threads=True)
print(flush=True)
while True: signal.pause()
"""


@pytest.fixture
def pipes() -> Iterator[StackPipes]:
    made = StackPipes(1)
    yield made
    made.close()


@pytest.fixture
def rank(pipes: StackPipes) -> Iterator[int]:
    """Pid of a process that writes its stacks at SIGUSR1."""
    command = [sys.executable, "-c", ARMED, str(pipes.write[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=pipes.write) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def page(pid: int, signal_number: int = signal.SIGUSR1) -> PageSnapshot:
    return PageSnapshot(pid=pid, evidence_signal=signal_number)


@on_loop
async def test_a_rank_writes_its_stacks(rank: int, pipes: StackPipes) -> None:
    (seen,) = await evidence.gather([Worker(0, rank, 1)], [7], [page(rank)], [()], pipes)
    assert (seen.rank, seen.pid) == (7, rank)
    assert seen.state in {"R", "S"}
    assert 'File "<string>"' in (seen.stacks or "")


@on_loop
async def test_a_stopped_rank_stays_stopped(rank: int, pipes: StackPipes) -> None:
    os.kill(rank, signal.SIGSTOP)
    os.waitid(os.P_PID, rank, os.WSTOPPED)
    (seen,) = await evidence.gather([Worker(0, rank, 1)], [0], [page(rank)], [()], pipes)
    assert (seen.state, seen.stacks, seen.reason) == ("T", None, "it is stopped")
    assert process.state(rank) == "T"


@on_loop
async def test_a_rank_that_would_die_of_the_signal_is_not_asked(
    rank: int, pipes: StackPipes
) -> None:
    for of_another in (page(rank + 1), page(rank, 0)):
        (seen,) = await evidence.gather([Worker(0, rank, 1)], [0], [of_another], [()], pipes)
        assert (seen.stacks, seen.reason) == (None, "it has not armed faulthandler")


@on_loop
async def test_a_rank_that_has_ended(pipes: StackPipes) -> None:
    ended = Worker(0, os.getpid(), 1, code=1)
    (seen,) = await evidence.gather([ended], [0], [page(os.getpid())], [()], pipes)
    assert (seen.stacks, seen.state, seen.reason) == (None, "", "it had ended")


@on_loop
async def test_a_rank_that_does_not_answer(
    pipes: StackPipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "ANSWER_DEADLINE_S", 0.02)
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        silent = page(child.pid, signal.SIGCHLD)  # which does nothing there
        (seen,) = await evidence.gather([Worker(0, child.pid, 1)], [0], [silent], [()], pipes)
        child.kill()
    assert (seen.stacks, seen.reason) == (None, "it did not answer")
