"""What a Loader costs beside torch's own: `python -m benchmarks.data`.

In one process, in turns: microseconds for each sample of a data set that does nothing, with
DistributedSampler and DataLoader, and with Loader, without workers. Then the time from a state in
the middle of 10^12 samples to the first batch, and memory and time for an order: 10^8 samples by
torch.randperm, 10^9 by GlobalOrder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from undaunted.data import Loader

LENGTH = 100_000
MEMORY = """
import resource, time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import torch
from undaunted.data import GlobalOrder
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
{do}
seconds = time.perf_counter() - began
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024, seconds)
"""


class Nothing(Dataset):  # type: ignore[misc]
    """Samples that cost nothing."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


def of_torch(size: int, samples: int) -> float:
    sampler = DistributedSampler(Nothing(), num_replicas=4, rank=1, seed=1)
    loader = DataLoader(Nothing(), size, sampler=sampler, collate_fn=len, drop_last=True)
    return timed(iter(loader), samples // size) / samples


def of_ours(size: int, samples: int, **settings: Any) -> float:
    place = {"rank": 1, "world_size": 4, "collate_fn": len}
    loader = Loader(Nothing(), global_batch=4 * size, micro_batch=size, **place, **settings)
    return timed(iter(loader), samples // size) / samples


def timed(batches: Any, count: int) -> float:
    next(batches)
    began = time.perf_counter()
    for _ in range(count - 1):
        next(batches)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    kinds = {
        "DataLoader, DistributedSampler": of_torch,
        "Loader, no random numbers": lambda size, samples: of_ours(
            size, samples, sample_rng=False, micro_rng=False
        ),
        "Loader": of_ours,
    }
    print("| us a sample | " + " | ".join(kinds) + " |\n|---" + "|---" * len(kinds) + "|")
    for size in (1, 8, 256):
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, kind in kinds.items():
                found[name].append(kind(size, 20_480 if size > 1 else 8192) * 1e6)
        print(f"| batches of {size} | " + " | ".join(map(cell, found.values())) + " |")
    first = []
    for _ in range(rounds):
        loader = Loader(Nothing(10**12), global_batch=64, micro_batch=8, sample_rng=False)
        state = {**loader.state_dict(), "epoch": 3, "position": 64 * 10**9}
        began = time.perf_counter()
        loader.load_state_dict(state)
        next(loader.step())
        first.append((time.perf_counter() - began) * 1e3)
    print(f"from a state to the first batch: {cell(first)} ms")
    for name, do in (
        ("torch.randperm(10**8)", "torch.randperm(10**8)"),
        (
            "GlobalOrder(10**9), 8,192 samples of it",
            "GlobalOrder(10**9).indices(0, torch.arange(8192))",
        ),
    ):
        words = [sys.executable, "-c", MEMORY.format(do=do)]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        print(f"{name}: {float(told[0]):.0f} MiB, {float(told[1]):.3f} s")
    print(f"load {os.getloadavg()[0]:.1f}")


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
