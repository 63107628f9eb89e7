"""Jobs of a few real ranks over gloo, each with a disk of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import warm
from tests.ports import free_ports
from tests.said import lines_of

PROGRAM = Path(__file__).with_name("rank_program.py")
ROOT = Path(__file__).parents[3]
DEADLINE_S = 100.0


def run(
    tmp_path: Path,
    ranks: int,
    scenario: str,
    codes: dict[int, int] | None = None,
    program: Path = PROGRAM,
) -> list[Any]:
    """Run a scenario of `rank_program`; return what each rank has told.

    Args:
        tmp_path: has a folder ``node{rank}`` for each.
        ranks: how many.
        scenario: a function of the program.
        codes: by rank: how it ends, if not with 0.
        program: has the scenario.
    """
    port = str(free_ports(2))
    processes = []
    for rank in range(ranks):
        environ = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        }
        with (tmp_path / f"{scenario}-{rank}.err").open("wb") as err:
            processes.append(
                warm.Popen(
                    [sys.executable, str(program), scenario, str(tmp_path)],
                    env=environ,
                    stdout=subprocess.PIPE,
                    stderr=err,
                )
            )
    told = []
    try:
        for rank, process in enumerate(processes):
            out, _ = process.communicate(timeout=DEADLINE_S)
            said = (tmp_path / f"{scenario}-{rank}.err").read_text()
            assert process.returncode == (codes or {}).get(rank, 0), f"rank {rank}: {said}"
            lines = lines_of(out.decode())
            told.append(json.loads(lines[-1]) if lines else None)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    return told
