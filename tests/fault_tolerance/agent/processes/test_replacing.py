"""A process in the place of a lost rank."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from tests.coordinator.wire.talk import on_loop
from undaunted.base import process
from undaunted.fault_tolerance.agent.processes.replacing import Replacing
from undaunted.fault_tolerance.worker.spawner import Spawned
from undaunted.fault_tolerance.worker.spec import WorkerSpec

SPEC = WorkerSpec(
    local_rank=1, kind="program", target="x", args=[], env={"A": "b"}, cwd="/", agent_pid=1
)
CURRENT: Any = SimpleNamespace(specs=[SPEC, SPEC], rank=lambda local_rank: 4 + local_rank)


class Parts:
    """What it works with; notes what it is asked for."""

    def __init__(
        self, *, current: bool = True, stopping: bool = False, fails: bool = False
    ) -> None:
        self.calls: list[Any] = []
        self.fails = fails
        this: Any = self
        self.replacing = Replacing(
            this, this, this, this, this, lambda _: current, lambda: stopping, self._failed
        )

    async def spawn(self, specs: list[WorkerSpec]) -> Spawned:
        if self.fails:
            raise OSError("no more processes")
        self.calls.append(("spawn", specs[0].env))
        pid = process.spawn(
            [sys.executable, "-c", "import signal; signal.pause()"], dict(os.environ), ()
        )
        return Spawned([pid], "fresh")

    def reset(self, local_rank: int) -> None:
        self.calls.append(("reset", local_rank))

    def rank_replaced(self, local_rank: int, started_ns: int) -> None:
        self.calls.append(("watched", local_rank))

    def record(self, kind: type, **fields: Any) -> None:
        self.calls.append((kind.__name__, fields["rank"]))

    def say(self, text: str) -> None:
        self.calls.append(text)

    def end(self, pid: int) -> None:
        self.calls.append("ended")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def replace(self, local_rank: int, pid: int, began_ns: int) -> None:
        self.calls.append(("adopted", local_rank))
        self.pid = pid

    def _failed(self, local_rank: int) -> None:
        self.calls.append(("failed", local_rank))


@on_loop
async def test_it_is_told_to_rejoin_and_watched() -> None:
    parts = Parts()
    await parts.replacing.start(CURRENT, 1)
    assert parts.calls == [
        ("reset", 1),
        ("spawn", {"A": "b", "UNDAUNTED_INPROCESS_REJOIN": "1"}),
        ("watched", 1),
        ("RankReplaced", 5),
        ("adopted", 1),
    ]
    os.kill(parts.pid, signal.SIGKILL)
    os.waitpid(parts.pid, 0)


@on_loop
async def test_it_is_ended_at_once_when_the_round_is_being_stopped() -> None:
    parts = Parts(stopping=True)
    await parts.replacing.start(CURRENT, 1)
    assert parts.calls[2:] == ["ended", ("watched", 1), ("RankReplaced", 5), ("adopted", 1)]


@on_loop
async def test_the_next_round_hears_nothing_of_one_that_was_started_for_the_last() -> None:
    parts = Parts(current=False)
    await parts.replacing.start(CURRENT, 1)
    assert parts.calls[2:] == ["ended"]
    parts = Parts(current=False, fails=True)
    await parts.replacing.start(CURRENT, 1)
    assert parts.calls == [("reset", 1)]


@on_loop
async def test_that_there_is_no_process_is_told() -> None:
    parts = Parts(fails=True)
    await parts.replacing.start(CURRENT, 1)
    line = "no process could be started in the place of rank 5: no more processes"
    assert parts.calls == [("reset", 1), line, ("failed", 1)]
