"""Starts ranks that talk over gloo, and reads what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import warm

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0


def run(program: Path, ranks: int, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a program on so many ranks; return what each prints as JSON, its last line.

    The program is given the arguments, and joins by `join`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("UNDAUNTED")}
    own = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks),
        "STORE": str(folder / "store"),
    }
    processes = [
        warm.Popen(
            [sys.executable, str(program), *arguments],
            env={**inherited, **own, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [one.communicate(timeout=DEADLINE_S) for one in processes]
    finally:
        for one in processes:
            one.kill()
            one.wait()
    codes = [one.returncode for one in processes]
    assert not any(codes), (codes, [err[-3000:] for _, err in outputs])
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def join() -> tuple[int, int]:
    """Join the process group, in a rank; return the rank and the number of ranks."""
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    return rank, size


def leave(said: dict[str, Any]) -> None:
    """Leave the group, and say something to the test."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(said), flush=True)
