"""What torch's Flight Recorder costs per collective: gloo, two ranks, one number each.

    python benchmarks/recorder.py [--rounds 5] [--calls 4000] [--json]

Each round measures both cases, in processes of their own, one after the other. A figure is the mean
of all calls of a process; shown are median, least and largest over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

RANK = """
import sys, time
import torch, torch.distributed as dist
rank, calls, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
number = torch.ones(1)
for _ in range(500):
    dist.all_reduce(number)
began = time.perf_counter()
for _ in range(calls):
    dist.all_reduce(number)
print((time.perf_counter() - began) / calls * 1e6)
"""


def measure(size: int, calls: int) -> float:
    """Return microseconds per collective with a buffer of so many operations."""
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(size), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(calls), f"{place}/store"],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        return max(float(rank.communicate(timeout=300)[0]) for rank in ranks)


def main() -> None:
    """Measure both, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[int, list[float]] = {0: [], 2000: []}
    for _ in range(options.rounds):
        for size, taken in found.items():
            taken.append(measure(size, options.calls))
    if options.json:
        print(json.dumps({f"buffer {size}": taken for size, taken in found.items()}))
        return
    print(f"{'buffer':>8} {'median us':>10} {'least':>8} {'largest':>8}")
    for size, taken in found.items():
        print(f"{size:>8} {statistics.median(taken):>10.1f} {min(taken):>8.1f} {max(taken):>8.1f}")


if __name__ == "__main__":
    main()
