"""How much the ranks of a node read from its disk when they load the same state.

    python -m benchmarks.checkpoint.node [--ranks 8] [--gib 1] [--rounds 3]

All ranks have the same state, as of DistributedDataParallel, and load it with the page cache
emptied (which only root can do). Shown per round: bytes that all of them have had read from the
disk, by the kernel's account of each process, and the seconds of the slowest.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.checkpoint.worker import drop_caches
from undaunted.checkpointing import Checkpointer

ROOT = Path(__file__).parent.parent.parent
TENSORS = 900


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gib", type=float, default=1.0, help="of the state [1]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="on the disk to be used (default: temporary)")
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank(args.dir, int(args.gib * (1 << 30)), args.rounds)
        return
    with tempfile.TemporaryDirectory(dir=args.dir) as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = ["--dir", folder, "--gib", str(args.gib), "--rounds", str(args.rounds)]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.checkpoint.node", *words],
                cwd=ROOT,
                env={
                    **os.environ,
                    "RANK": str(at),
                    "LOCAL_RANK": str(at),
                    "WORLD_SIZE": str(args.ranks),
                    "LOCAL_WORLD_SIZE": str(args.ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )
            for at in range(args.ranks)
        ]
        codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


def rank(folder: Path, size: int, rounds: int) -> None:
    """Be one rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    state = {f"t{at}": torch.randn(size // TENSORS // 4) for at in range(TENSORS)}
    expected = [float(one.sum()) for one in state.values()]
    with Checkpointer(folder, keep=1) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        for number in range(rounds):
            for one in state.values():
                one.zero_()
            drop_caches()
            before, began = bytes_read(), time.perf_counter()
            checkpoints.load(state, 1)
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            total = torch.tensor([bytes_read() - before], dtype=torch.float64)
            if [float(one.sum()) for one in state.values()] != expected:
                raise SystemExit("something else was loaded than was saved")
            dist.all_reduce(total)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if dist.get_rank() == 0:
                ratio = float(total) / size
                print(
                    f"round {number}: {dist.get_world_size()} ranks have read {ratio:.3f} x the "
                    f"state, in {float(took):.2f} s",
                    flush=True,
                )
    dist.destroy_process_group()


def bytes_read() -> int:
    """Return how much this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


if __name__ == "__main__":
    main()
