"""Plays the agent for workers: a process of its own, so that orphans and signals are its own.

`AgentProcess` is used by tests; ``python harness.py`` is what it starts. They speak JSON lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0
SRC = Path(__file__).parents[3] / "src"
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(SRC),
}


class AgentProcess:
    """A process that starts workers like the agent, and waits for them."""

    def __init__(
        self,
        *,
        warm: bool,
        modules: list[str],
        env: dict[str, str] | None = None,
        flags: tuple[str, ...] = (),
        learned: tuple[str, ...] = (),
    ):
        """Start it; ``learned`` are modules that earlier workers are said to have imported."""
        self.env = ENVIRONMENT if env is None else env
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.env,
        )
        self.warm = warm
        self._ask(warm=warm, modules=modules, env=self.env, flags=flags, learned=learned)

    def _ask(self, **request: Any) -> Any:
        self._tell(request)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], DEADLINE_S)[0]:
            raise TimeoutError("the test's agent does not answer")
        line = self._process.stdout.readline()
        assert line, "the test's agent ended"
        return json.loads(line)

    def _tell(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def run(self, specs: list[dict[str, Any]]) -> dict[str, Any]:
        """Start one worker per spec, wait for all; exit codes are negative for signals."""
        answer: dict[str, Any] = self._ask(specs=self._fill(specs))
        return answer

    def post(self, specs: list[dict[str, Any]]) -> None:
        """Start one worker per spec and wait for nothing; then only `drop` is allowed."""
        self._tell({"specs": self._fill(specs)})

    def _fill(self, specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "local_rank": rank,
                "kind": "script",
                "args": [],
                "env": self.env,
                "cwd": "/",
                **spec,
            }
            for rank, spec in enumerate(specs)
        ]

    def drop(self) -> None:
        """End it, if it has not ended already."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


# --- what runs in the other process ---------------------------------------------------------------


async def agent() -> None:
    from undaunted.base import process
    from undaunted.fault_tolerance.worker.spawner import Spawner

    process.become_subreaper()
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    # What workers print must not be taken for an answer, and what they read is not for them.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    start = json.loads(requests.readline())
    reasons: list[str] = []
    ready: list[Any] = []
    spawner = Spawner(
        [sys.executable, *start["flags"]],
        warm=start["warm"],
        pass_fds=start.get("pass_fds", ()),
    )
    spawner.report_to(
        reasons.append,
        lambda pid, message: ready.extend([pid, message.import_ns, message.failed]),
    )
    spawner.prepare(start["env"], start["modules"])
    if start["learned"]:
        done = await spawner.learn(learned(start["learned"]))
        assert done is not None, "the template has ended"
        assert (done.left, done.problem, done.learned) == ({}, "", len(start["learned"]))
    print(json.dumps("started"), file=answers, flush=True)
    try:
        for line in requests:
            answer = await serve(json.loads(line), spawner)
            answer |= {"reasons": reasons, "ready": ready}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        await spawner.close()
        left = set(process.descendants(os.getpid())) - spawner.pids()
        assert not left, f"left behind: {left}"
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def learned(names: list[str]) -> Any:
    """What ranks say that have imported these, and no other packages."""
    import importlib.util

    from undaunted.fault_tolerance.worker.messages import Group, Learned

    packages = {
        name: ((spec := importlib.util.find_spec(name)) and spec.origin) or ""
        for name in names
        if "." not in name
    }
    return Learned(groups=[Group({}, names)], packages=packages, gives_way=True)


async def serve(request: dict[str, Any], spawner: Any) -> dict[str, Any]:
    import msgspec

    from undaunted.fault_tolerance.worker.messages import WorkerSpec

    specs = msgspec.convert(
        [{"agent_pid": os.getpid(), **spec} for spec in request["specs"]], list[WorkerSpec]
    )
    started_ns = time.monotonic_ns()
    spawned = await spawner.spawn(specs)
    took_ns = time.monotonic_ns() - started_ns
    codes: dict[int, int] = {}
    while not codes.keys() >= set(spawned.pids):  # they may not be our children for a moment yet
        pid, status = os.waitpid(-1, 0)
        codes[pid] = status
    return {
        "mode": spawned.mode,
        "reason": spawned.reason,
        "pids": spawned.pids,
        "codes": [os.waitstatus_to_exitcode(codes[pid]) for pid in spawned.pids],
        "started_ns": started_ns,
        "took_ns": took_ns,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(SRC))
    asyncio.run(agent())
