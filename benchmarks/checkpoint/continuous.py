"""What saving all the time costs a step: `python -m benchmarks.checkpoint.continuous`.

Each rank trains a Transformer of 19 M parameters with AdamW (230 MB with its moments, DDP), with a
Checkpointer(every="continuous") and without, in turns of some seconds. On rank 0's standard output:
steps per second of each turn's pair, their ratio, how many saves there were and how far apart.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from undaunted.checkpointing import Checkpointer

ROOT = Path(__file__).parents[2]
LIMIT_S = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=9, help="of turns [9]")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a turn [15]")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args)
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = {
            "WORLD_SIZE": str(args.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "OMP_NUM_THREADS": "1",
            "FOLDER": folder,
        }
        free.close()
        words = [sys.executable, "-m", "benchmarks.checkpoint.continuous", *sys.argv[1:]]
        ranks = [
            subprocess.Popen(words, cwd=ROOT, env={**os.environ, **env, "RANK": str(rank)})
            for rank in range(args.ranks)
        ]
        codes = [rank.wait(LIMIT_S) for rank in ranks]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


class Training:
    """A model, its optimizer, and steps of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        self.model = nn.TransformerEncoder(layer, 6)
        wrapped = nn.parallel.DistributedDataParallel(self.model)
        self._run = wrapped if dist.get_world_size() > 1 else self.model
        self._optimizer = torch.optim.AdamW(self.model.parameters())
        self.step = 0
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self._optimizer}

    def turn(self, seconds: float, checkpoints: Checkpointer | None) -> tuple[float, list[int]]:
        """Return steps per second, and which were saved."""
        saved: list[int] = []
        first, began, over = self.step, time.monotonic(), torch.zeros(1)
        while not over:
            self.step += 1
            self._optimizer.zero_grad()
            self._run(torch.randn(4, 64, 512)).square().mean().backward()
            self._optimizer.step()
            if checkpoints is not None and checkpoints.due(self.step):
                checkpoints.save(self.step, self.state)
                saved.append(self.step)
            over.fill_(time.monotonic() - began > seconds)
            dist.broadcast(over, 0)
        return (self.step - first) / (time.monotonic() - began), saved


def train(args: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    training, rank = Training(), dist.get_rank()
    training.turn(args.seconds, None)
    ratios, rates, count, apart = [], [], 0, []
    with Checkpointer(os.environ["FOLDER"], keep=1, every="continuous") as checkpoints:
        training.turn(args.seconds, checkpoints)
        for pair in range(args.pairs):
            turns = {}
            for often in (True, False) if pair % 2 else (False, True):
                turns[often], saved = training.turn(args.seconds, checkpoints if often else None)
                checkpoints.wait()
                count += len(saved)
                apart += [(b - a) / turns[True] for a, b in itertools.pairwise(saved)]
            rates.append(turns[False])
            ratios.append(turns[True] / turns[False])
            if rank == 0:
                print(f"{turns[False]:.2f} steps/s, with saves {turns[True]:.2f}", flush=True)
    if rank == 0:
        low, high = min(ratios), max(ratios)
        print(f"ratio {statistics.median(ratios):.4f} ({low:.4f}-{high:.4f}), n={len(ratios)}")
        print(f"{statistics.median(rates):.2f} steps/s without")
        print(f"{count} saves, {statistics.median(apart or [0]):.2f} s apart")
        print(f"load {os.getloadavg()[0]:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
