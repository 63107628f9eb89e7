"""What a Loader costs beside torch's own: `python -m benchmarks.data`.

In one process, in turns: microseconds for each sample of a data set that does nothing, with
DistributedSampler and DataLoader, and with Loader, without workers. Then steps of a model of 3 M
parameters, 32 texts of 64 tokens each, with both. Then the time from a state in
the middle of 10^12 samples to the first batch, and memory and CPU time for an order of 10^9 samples
by torch.randperm (which needs 8 GB) and by GlobalOrder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from undaunted.data import Loader

LENGTH = 100_000
MEMORY = """
import resource, time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import torch
from undaunted.data import GlobalOrder
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
{do}
seconds = time.process_time() - began
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


class Texts(Dataset):  # type: ignore[misc]
    """Texts of 64 numbers, kept in memory."""

    def __init__(self) -> None:
        self._texts = torch.randint(0, 1024, (LENGTH, 65))

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._texts[index]


class Steps:
    """Training of one model with batches from one loader."""

    def __init__(self, batches: Any) -> None:
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        layers = nn.Embedding(1024, 256), nn.TransformerEncoder(layer, 3), nn.Linear(256, 1024)
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._batches = iter(batches)

    def once(self) -> float:
        """Return the seconds of a step."""
        began = time.perf_counter()
        batch = next(self._batches)
        logits = self._model(batch[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - began


def of_steps(count: int) -> str:
    """Return the time of a step with torch's loader, and what ours takes of it."""
    data = Texts()
    sampler = DistributedSampler(data, num_replicas=4, rank=1, seed=1)
    place = {"rank": 1, "world_size": 4}
    torchs = Steps(DataLoader(data, 32, sampler=sampler, drop_last=True))
    ours = Steps(Loader(data, global_batch=128, micro_batch=32, **place))
    pairs = [(torchs.once(), ours.once()) for _ in range(count)][3:]
    middle = statistics.median(pair[0] for pair in pairs)
    ratio = statistics.median(pair[1] for pair in pairs) / middle
    return f"a step: {middle * 1e3:.1f} ms with torch's loader, {ratio:.4f} times that with Loader"


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
    for _ in range(3):
        print(of_steps(40 * rounds))
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
        ("torch.randperm(10**9)", "torch.randperm(10**9)"),
        (
            "GlobalOrder(10**9), 8,192 samples of it",
            "GlobalOrder(10**9).indices(0, torch.arange(8192))",
        ),
    ):
        words = [sys.executable, "-c", MEMORY.format(do=do)]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        print(f"{name}: {float(told[0]):.1f} MiB, {float(told[1]):.3f} s of CPU")
    print(f"load {os.getloadavg()[0]:.1f}")


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
