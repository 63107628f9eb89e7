"""Jobs of a few ranks with gloo."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import warm

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = Path(__file__).with_name("rank_program.py")
ROOT = Path(__file__).parents[3]
DEADLINE_S = 100.0


def writer_pid() -> int:
    """The process that writes for this one; waits until there is one."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and b"writer.program" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
    raise TimeoutError("nobody writes")


def run_ranks(
    directory: Path,
    scenarios: str,
    world_size: int = 2,
    stopped: Sequence[int] = (),
    program: Path = PROGRAM,
) -> list[dict[str, Any]]:
    """What each rank has told; those that stop themselves are killed when the others are done."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(world_size):
            out = stack.enter_context((directory / f"{rank}.log").open("wb"))
            arguments = [sys.executable, str(program), scenarios, str(directory)]
            process = warm.Popen(
                [*arguments, str(rank), str(world_size)], stdout=out, stderr=out, env=environ
            )
            processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.kill)
        deadline = time.monotonic() + DEADLINE_S
        for rank, process in enumerate(processes):
            if rank not in stopped:
                code = process.wait(max(deadline - time.monotonic(), 0.1))
                assert code == 0, (directory / f"{rank}.log").read_text()
        return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(world_size)]
