"""Two ranks save to a disk that has no room for both. Run by test_full_disk.py.

    python full_disk_program.py DIRECTORY

DIRECTORY is a small file system of its own, of 5 MiB. Prints what lies there after each save.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 60.0
MIB = 1 << 20
LATE_S = 0.5


def start(directory: str) -> int:
    ranks = [
        subprocess.Popen([sys.executable, __file__, directory, str(rank)]) for rank in range(2)
    ]
    return max(rank.wait() for rank in ranks)


def train(directory: Path, rank: int) -> None:
    import torch
    import torch.distributed as dist

    from undaunted.checkpointing import Checkpointer

    meeting = f"file://{directory}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    checkpoints = Checkpointer(
        directory / "all",
        keep=1,
        on_failure="warn",
        timeout=TIMEOUT_S,
        bandwidth=None if rank == 1 else 2 * MIB / LATE_S,
    )

    def save(step: int, *sizes: int) -> None:
        """Each rank saves a part of its own; sizes are in MiB."""
        mine = torch.full((sizes[rank] * MIB,), rank, dtype=torch.uint8)
        checkpoints.save(step, {f"of rank {rank}": mine})
        checkpoints.wait()
        if step < 4:  # until `close` the old one may still be there
            tell(f"after step {step}")

    def tell(when: str) -> None:
        dist.barrier()
        if rank == 0:
            paths = (directory / "all").iterdir()
            there = sorted(path.name for path in paths if not path.name.startswith(".session-"))
            print(when, there, flush=True)
        dist.barrier()

    save(1, 1, 1)
    save(2, 2, 6)  # rank 1 fails at once; rank 0 has room, and learns of it when it has written
    save(3, 6, 2)  # the other way round
    save(4, 1, 1)
    checkpoints.close()
    tell("closed")
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        raise SystemExit(start(sys.argv[1]))
    train(Path(sys.argv[1]), int(sys.argv[2]))
