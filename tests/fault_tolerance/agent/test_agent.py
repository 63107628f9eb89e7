"""What the agent does beside its two state machines."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.coordinator.wire.talk import on_loop
from undaunted.fault_tolerance.agent import agent as module
from undaunted.fault_tolerance.agent.agent import Agent

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CODE = """
import socket, sys
from undaunted.fault_tolerance.agent import outside, start
from undaunted.fault_tolerance.run_config import RunConfig

def bug(self):
    raise ZeroDivisionError("a bug")

outside.Outside._front_says = bug
directory = sys.argv[1]
config = RunConfig(
    run_id="x", node="here", nproc_per_node=1, max_restarts=0, kind="program", target="sleep",
    args=["600"], cwd=directory, run_dir=directory, log_dir=directory, stdout=[0], stderr=[0],
    python=sys.executable,
)
ours, theirs = socket.socketpair()
ours.send(b"x")
start.run_agent(config, theirs)
"""


def test_a_bug_in_a_callback_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: a bug")


def ended(**parts: Any) -> Any:
    """What an agent has when a round is over."""
    said: list[Any] = []
    attribution = SimpleNamespace(round_over=said.append)
    config = SimpleNamespace(run_dir="/run")
    return SimpleNamespace(
        said=said, _say=said.append, _attribution=attribution, _config=config, **parts
    )


@on_loop
async def test_the_log_is_complete_when_the_last_output_is_copied() -> None:
    agent = ended()
    current: Any = SimpleNamespace(number=3, finish_output=lambda: ["the disk is full"])
    await Agent._finish_output(agent, current)
    assert agent.said == ["the disk is full", 3]


@on_loop
async def test_leftovers_are_named_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["", "they are left"])
    monkeypatch.setattr(module, "leftovers_line", lambda run_dir, number: next(lines))
    agent = ended()
    await Agent._name_leftovers(agent, 3)
    assert agent.said == []
    await Agent._name_leftovers(agent, 3)
    assert agent.said == ["they are left"]
