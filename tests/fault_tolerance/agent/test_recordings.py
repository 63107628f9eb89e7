"""Ranks are asked for what their recorders hold; who does not answer is not waited for."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.fault_tolerance.agent import recordings as module
from undaunted.fault_tolerance.agent.recordings import Recordings
from undaunted.fault_tolerance.slow_ranks.own_times import OwnTimes
from undaunted.fault_tolerance.worker import witness

if TYPE_CHECKING:
    from collections.abc import Iterator

# Without torch there is no recording; with a bytes object in its place there is this one.
RANK = """
import sys
from undaunted.fault_tolerance.worker import witness
if len(sys.argv) > 1:
    witness.record, witness.encode = (lambda: 1), (lambda _: b"x" * int(sys.argv[1]))
from undaunted.progress.writer import current_writer
for step in range(11):
    current_writer().step(step)
witness.begin()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.communicate()


def start(name: str, *args: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", RANK, *args],
        env={**os.environ, witness.VARIABLE: name},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


@on_loop
async def test_each_rank_says_what_it_has(
    ranks: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Recordings()
    name = asked.open()
    ranks += [
        start(name),
        start(name, "70"),
        start(name, str(max(witness.MOST_BYTES.values()) + 1)),
    ]
    without, with_one, too_long = (each.pid for each in ranks)
    monkeypatch.setattr(module, "ANSWER_S", 20.0)  # a machine may be busy
    for _ in range(2):
        found = await asked.ask([without, with_one, too_long, 1])
        assert found == {without: b"", with_one: b"x" * 70, too_long: b""}
    ranks[0].kill()
    ranks[0].wait()
    assert await asked.ask([without]) == {without: None}
    asked.close()


@on_loop
async def test_who_does_not_answer_is_not_waited_for_and_is_late_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    asked = Recordings()
    name = asked.open()
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(f"\0{name}")
        assert await asked.ask([os.getpid()]) == {os.getpid(): None}
        rank.sendall(rank.recv(2)[:1] + (3).to_bytes(4, "big") + b"old")
        monkeypatch.setattr(module, "ANSWER_S", 20.0)
        rank.sendall(bytes([2]) + (3).to_bytes(4, "big") + b"new")
        assert await asked.ask([os.getpid()]) == {os.getpid(): b"new"}
        rank.sendall(bytes([3]) + b"\xff\xff\xff\xff")
        assert await asked.ask([os.getpid()]) == {os.getpid(): None}
    asked.close()


@on_loop
async def test_each_rank_says_how_long_it_has_worked(
    ranks: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 20.0)
    asked = Recordings()
    ranks.append(start(asked.open()))
    pid = ranks[0].pid
    (answer,) = (await asked.ask_idly([pid], witness.TIMES)).values()
    assert answer is not None
    own = msgspec.msgpack.decode(answer, type=OwnTimes)
    assert own.chunks == (), "there is no recorder without torch"
    assert own.cost_us > 0
    asked.close()


@on_loop
async def test_after_a_hang_nobody_waits_for_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 20.0)
    asked = Recordings()
    name = asked.open()
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(f"\0{name}")
        times = asyncio.ensure_future(asked.ask_idly([os.getpid()], witness.TIMES))
        while not (question := await asyncio.to_thread(rank.recv, 2)):
            pass
        assert question == bytes([1]) + witness.TIMES
        rank.sendall(bytes([1]) + (3).to_bytes(4, "big") + b"old")
        rank.sendall(bytes([2]) + (3).to_bytes(4, "big") + b"new")
        assert await asked.ask([os.getpid()]) == {os.getpid(): b"new"}
        assert rank.recv(2) == bytes([2]) + witness.RECORDING
        await times
    asked.close()


@on_loop
async def test_times_of_a_rank_that_has_no_core_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.0)
    asked = Recordings()
    name = asked.open()
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(f"\0{name}")
        times = asyncio.ensure_future(asked.ask_idly([os.getpid()], witness.TIMES))
        await asyncio.to_thread(rank.recv, 2)
        rank.sendall(bytes([1]) + (4).to_bytes(4, "big") + b"late")
        assert await times == {os.getpid(): b"late"}
    asked.close()


@on_loop
async def test_a_round_ends_while_a_rank_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 20.0)
    asked = Recordings()
    name = asked.open()
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(f"\0{name}")
        times = asyncio.ensure_future(asked.ask_idly([os.getpid()], witness.TIMES))
        await asyncio.to_thread(rank.recv, 2)
        assert asked.open() != name
        assert await times == {}
    asked.close()


def test_a_rank_goes_on_without_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(witness.VARIABLE, "undaunted-nobody-listens-there")
    witness.begin()
    assert witness.VARIABLE not in os.environ
    witness.begin()


# Its descriptors are closed, and a socket of the program has the number; a child closes it neither.
CLOSES = """
import os, socket, sys, threading
from undaunted.base.descriptors import identity
from undaunted.fault_tolerance.worker import witness
witness.begin()
open_fds = (int(name) for name in os.listdir("/proc/self/fd"))
(number,) = (fd for fd in open_fds if fd > 2 and identity(fd).startswith("socket"))
here, there = socket.socketpair()
os.closerange(3, here.fileno())
os.closerange(there.fileno() + 1, 4096)
os.dup2(here.fileno(), number)
print(flush=True)
sys.stdin.readline()
for thread in threading.enumerate():
    if thread.name == "undaunted-witness":
        thread.join(60)
        assert not thread.is_alive()
pid = os.fork()
if not pid:
    os._exit(os.write(number, b"the program's") - 13)
assert os.waitpid(pid, 0)[1] == 0
assert there.recv(100) == b"the program's"
"""


@on_loop
async def test_a_socket_of_the_program_gets_no_answer() -> None:
    asked = Recordings()
    with subprocess.Popen(
        [sys.executable, "-c", CLOSES],
        env={**os.environ, witness.VARIABLE: asked.open()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)
        answer = asyncio.ensure_future(asked.ask_idly([child.pid], witness.TIMES))
        await asyncio.to_thread(child.communicate, b"\n", timeout=60)
        await answer
    asked.close()
    assert child.returncode == 0


FORKS = """
import os
from undaunted.fault_tolerance.worker import witness
witness.begin()
pid = os.fork()
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


@on_loop
async def test_a_rank_that_forks_is_not_warned() -> None:
    asked = Recordings()
    env = {**os.environ, witness.VARIABLE: asked.open()}
    subprocess.run([sys.executable, "-W", "error", "-c", FORKS], env=env, check=True, timeout=60)
    asked.close()
