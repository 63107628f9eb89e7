"""Stacks and states of ranks: each living rank is asked, nobody is waited for beyond the limit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.attribution.evidence import place_of
from undaunted.base import process
from undaunted.fault_tolerance.agent import evidence
from undaunted.fault_tolerance.agent.begun import StackPipes
from undaunted.fault_tolerance.agent.processes import Worker
from undaunted.fault_tolerance.worker import witness
from undaunted.progress.snapshot import PageSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


# With `witness`, as ranks have it. What waits in C says so, and ends if a signal interrupts it.
WAITS_IN_C = """
import ctypes, faulthandler, signal, sys
from undaunted.fault_tolerance.worker import witness
faulthandler.register(signal.SIGRTMIN + 5, file=int(sys.argv[1]), all_threads=True)
witness.begin(signal.SIGRTMIN + 5)
print(flush=True)
ctypes.CDLL(None).sleep(600)
print("interrupted", flush=True)
"""


@on_loop
async def test_a_wait_in_c_is_not_interrupted(pipes: StackPipes) -> None:
    name = f"test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        command = [sys.executable, "-c", WAITS_IN_C, str(pipes.write[0])]
        environ = {**os.environ, witness.VARIABLE: name}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, pass_fds=pipes.write, env=environ
        ) as child:
            try:
                assert child.stdout is not None
                child.stdout.readline()
                here = page(child.pid, signal.SIGRTMIN + 5)
                while not any(
                    process.thread_name(child.pid, each) == witness.THREAD
                    for each in process.threads(child.pid)
                ):
                    await asyncio.sleep(0)  # the thread is about to give itself its name
                in_c = 0
                while in_c < 3:  # the first ones may find it on its way there
                    (seen,) = await evidence.gather(
                        [Worker(0, child.pid, 1)], [0], [here], [()], pipes
                    )
                    place = place_of(seen)
                    assert place is not None
                    assert place.frame is not None
                    in_c += place.frame.line == 7
            finally:
                child.kill()
            assert child.stdout.read() == b""


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


EXECS = """
import faulthandler, os, signal, sys
faulthandler.register(signal.SIGUSR1, file=int(sys.argv[1]), all_threads=True)
os.execv("/bin/sh", ["sh", "-c", "echo; exec sleep 600"])
"""


@on_loop
async def test_another_program_under_the_pid_of_a_rank_is_not_asked(pipes: StackPipes) -> None:
    command = [sys.executable, "-c", EXECS, str(pipes.write[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=pipes.write) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (seen,) = await evidence.gather(
            [Worker(0, child.pid, 1)], [0], [page(child.pid)], [()], pipes
        )
        assert child.poll() is None
        child.kill()
    assert seen.stacks is None
    assert "exec" in seen.reason


# A file, or a pipe of the same kind, gets the number that the program has closed.
CLOSES = """
import faulthandler, os, signal, sys
number, path, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
faulthandler.register(signal.SIGUSR1, file=number, all_threads=True)
os.closerange(3, number + 1)
if kind:
    other = os.pipe()[1] if kind == "pipe" else os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(other, number)
print(flush=True)
while True: signal.pause()
"""


@pytest.mark.parametrize("kind", ["file", "pipe", ""])
@on_loop
async def test_a_rank_that_has_closed_the_pipe_is_not_asked(
    pipes: StackPipes, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "data"
    command = [sys.executable, "-c", CLOSES, str(pipes.write[0]), str(path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=pipes.write) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (seen,) = await evidence.gather(
            [Worker(0, child.pid, 1)], [0], [page(child.pid)], [()], pipes
        )
        child.kill()
    assert seen.stacks is None
    assert "closed" in seen.reason
    assert not path.exists() or not path.read_bytes()


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
    blocked = ARMED.replace("print(", "signal.pthread_sigmask(0, [signal.SIGUSR1]); print(")
    command = [sys.executable, "-c", blocked, str(pipes.write[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=pipes.write) as child:
        assert child.stdout is not None
        child.stdout.readline()
        silent = page(child.pid)
        (seen,) = await evidence.gather([Worker(0, child.pid, 1)], [0], [silent], [()], pipes)
        child.kill()
    assert (seen.stacks, seen.reason) == (None, "it did not answer")
