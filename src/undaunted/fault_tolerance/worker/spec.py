"""What the agent tells a worker process about the program it is to become."""

from __future__ import annotations

from typing import Literal

import msgspec


class WorkerSpec(msgspec.Struct, kw_only=True, frozen=True):
    """One rank of one round.

    Attributes:
        local_rank: index on this node.
        kind: ``script`` (a path, as in ``python script.py``), ``module`` (``python -m name``),
            ``run_path`` (runpy.run_path in the worker, torchrun's ``--run-path``) or ``program``
            (an executable, ``--no-python``).
        target: the path, module name or executable.
        args: arguments after the target.
        env: the complete environment.
        cwd: working directory.
        stdout: file that gets standard output (appended, created 0600), "" = inherit.
        stderr: the same for standard error. May equal ``stdout``.
        agent_pid: the worker ends itself at once if this is not its parent.
        evidence_signal: signal on which faulthandler writes all stacks, 0 = none.
        evidence_fd: descriptor it writes to, -1 = none.
        numa_node: NUMA node it is bound to, -1 = none.
        numa_strict: its memory comes from that node only.
        exception_hook: record unhandled exceptions in the page.
    """

    local_rank: int
    kind: Literal["script", "module", "run_path", "program"]
    target: str
    args: list[str]
    env: dict[str, str]
    cwd: str
    stdout: str = ""
    stderr: str = ""
    agent_pid: int
    evidence_signal: int = 0
    evidence_fd: int = -1
    numa_node: int = -1
    numa_strict: bool = True
    exception_hook: bool = True
