"""What the agent does beside its two state machines."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.coordinator.wire.talk import on_loop
from undaunted.fault_tolerance.agent.agent import Agent
from undaunted.fault_tolerance.agent.outside import Outside
from undaunted.fault_tolerance.run_config import STOP_SIGNALS
from undaunted.journal.events import JobEnded
from undaunted.journal.reader import find_journals, read_journal

if TYPE_CHECKING:
    from pathlib import Path


CODE = """
import socket, sys
from undaunted.fault_tolerance.agent import agent, start
from undaunted.fault_tolerance import run_lock
from undaunted.fault_tolerance.run_config import RunConfig

def bug(self, *_):
    raise ZeroDivisionError("a bug")

directory, where, seconds = sys.argv[1:]
setattr(agent.Outside, where, bug)
config = RunConfig(
    run_id="x", node="here", nproc_per_node=1, max_restarts=0, kind="program", target="sleep",
    args=[seconds], cwd=directory, run_dir=directory, log_dir=directory, stdout=[0], stderr=[0],
    python=sys.executable,
)
ours, theirs = socket.socketpair()
if where == "_front_says":
    ours.send(b"x")
sys.exit(start.run_agent(config, theirs, None, run_lock.NO_LOCKS))
"""


def with_a_bug(tmp_path: Path, where: str, seconds: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), where, seconds],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_bug_in_a_callback_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    done = with_a_bug(tmp_path, "_front_says", "600")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: a bug")


def test_a_bug_at_the_close_is_shown_and_the_journal_is_complete(tmp_path: Path) -> None:
    done = with_a_bug(tmp_path, "close", "0")
    assert done.returncode == 0
    assert "ZeroDivisionError: a bug" in done.stderr
    (journal,) = find_journals(tmp_path)
    (launch,) = read_journal(journal).launches()
    assert any(isinstance(event, JobEnded) for event in launch)


def ended(**parts: Any) -> Any:
    """What an agent has when a round is over."""
    said: list[Any] = []
    over = SimpleNamespace(round_over=said.append)
    config = SimpleNamespace(run_dir="/run")
    return SimpleNamespace(said=said, _say=said.append, _parts=over, _config=config, **parts)


@on_loop
async def test_the_log_is_complete_when_the_last_output_is_copied() -> None:
    agent = ended()
    current: Any = SimpleNamespace(number=3, finish_output=lambda: ["the disk is full"])
    await Agent._finish_output(agent, current)
    assert agent.said == ["the disk is full", 3]


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.gone = asyncio.Event()

    def stop(self, number: int) -> None:
        self.words.append(signal.Signals(number).name)

    def kill(self) -> None:
        self.words.append("kill")

    def programs(self, number: int, everywhere: bool) -> None:
        name = signal.Signals(number).name
        self.words.append(f"{name} to {'all' if everywhere else 'the front'}")

    def ends(self, number: int) -> None:
        self.words.append(f"ends by {signal.Signals(number).name}")

    def front_gone(self) -> None:
        self.gone.set()


def listen(*, said: bytes, own: int = 0) -> list[str]:
    async def main() -> list[str]:
        front, agent = socket.socketpair()
        heard = Heard()
        with front, agent:
            outside = Outside(
                agent,
                STOP_SIGNALS,
                stop=heard.stop,
                kill=heard.kill,
                programs=heard.programs,
                ends=heard.ends,
                front_gone=heard.front_gone,
            )
            outside.open()
            if own:
                os.kill(os.getpid(), own)
                await asyncio.sleep(0)
            front.send(said)
            front.shutdown(socket.SHUT_RDWR)
            await asyncio.wait_for(heard.gone.wait(), 10)
            outside.close()
        return heard.words

    return asyncio.run(main())


def test_a_second_interrupt_means_kill() -> None:
    assert listen(said=bytes([signal.SIGINT, signal.SIGINT])) == ["SIGINT", "kill"]


def test_a_signal_that_comes_twice_is_told_twice() -> None:
    said = bytes([signal.SIGTERM, signal.SIGHUP, signal.SIGTERM])
    assert listen(said=said) == ["SIGTERM", "SIGHUP", "SIGTERM"]


def test_the_agents_own_signals_count_as_well() -> None:
    assert "SIGTERM" in listen(said=bytes([signal.SIGHUP]), own=signal.SIGTERM)[:2]
