"""How fast the rules for logs read: ``python -m benchmarks.log_rules [--runs N]``.

A log like Megatron's, 200,000 lines and about 33 MB of 64 ranks; the same with a line that a rule
knows at every tenth place; the same with tracebacks in words that no rule knows, of as many lines;
one of which no line is like another; one of errors, of which none is like another, of 53 MB. CPU
time of one process, the best run; peak memory of the process until then.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.__main__ import machine
from undaunted.attribution.logs.analyse import read_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = 200_000
RANKS = 64
HITS = (
    "[Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={i}, OpType=X)",
    "torch.distributed.DistBackendError: NCCL error, remote process exited, NCCL version 2.27.3",
    "RuntimeError: CUDA error: an illegal memory access was encountered at step {i}",
    "OSError: [Errno 116] Stale file handle: '/nfs/data/tokens/part_{i}.bin'",
)
TRACEBACKS = (
    "Traceback (most recent call last):",
    '  File "/opt/job/train.py", line 310, in step',
    "    self.ring.exchange(batch, {i})",
    "acme.RingError: device {r} gave no answer in time, fence {i}",
    "The above exception was the direct cause of the following exception:",
    "Traceback (most recent call last):",
    '  File "/opt/job/train.py", line 12, in <module>',
    "    main()",
    '  File "/opt/job/train.py", line 99, in main',
    "RuntimeError: step {i} was not done",
)


def megatron_like(
    lines: int, *, hits: bool = False, tracebacks: bool = False, seed: int = 1
) -> Iterator[str]:
    """Lines of a log in the manner of Megatron-LM.

    With `hits` every tenth is one of `HITS`; with `tracebacks` the first ten of each hundred are
    `TRACEBACKS` of one rank.
    """
    rng = random.Random(seed)
    for i in range(lines):
        rank = rng.randrange(RANKS)
        if tracebacks and i % 100 < len(TRACEBACKS):
            rank = i // 100 % RANKS
            yield f"{rank:2d}: " + TRACEBACKS[i % 100].format(r=rank, i=i)
        elif hits and i % 10 == 0:
            yield f"{rank:2d}: " + rng.choice(HITS).format(r=rank, i=i)
        elif i % 4 == 0:
            clock = f"{i // 36000 % 24:02d}:{i // 600 % 60:02d}:{i // 10 % 60:02d}"
            yield (
                f"63:  [2026-11-22 {clock}] iteration {i // 4:8d}/  500000 | consumed samples: "
                f"{i * 256:12d} | elapsed time per iteration (ms): {rng.uniform(800, 900):.1f} | "
                f"throughput per GPU (TFLOP/s/GPU): {rng.uniform(400, 500):.1f} | learning rate: "
                f"{rng.uniform(1e-5, 3e-4):.6E} | global batch size:   256 | lm loss: "
                f"{rng.uniform(2, 3):.6E} | loss scale: 1.0 | grad norm: {rng.uniform(0, 1):.3f} | "
                "number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
        elif i % 4 == 1:
            yield (
                f"{rank:2d}: [Rank {rank}] (after {i} iterations) memory (MB) | allocated: "
                f"{rng.uniform(1e4, 6e4):.4f} | max allocated: {rng.uniform(1e4, 6e4):.4f}"
            )
        else:
            yield (
                f" 0:     forward-backward {'.' * 40}: ({rng.uniform(1, 900):.2f}, "
                f"{rng.uniform(1, 900):.2f})"
            )


def unlike(lines: int, *, errors: bool = False, seed: int = 1) -> Iterator[str]:
    """Lines of words of which no line is like another; with `errors` each is an exception's."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randrange(2, 10))) for _ in range(5000)]
    for i in range(lines):
        if errors:
            yield f"[rank{i % RANKS}]: RuntimeError: " + " ".join(rng.choices(words, k=37))
        else:
            yield f"{i % RANKS}: " + " ".join(rng.choices(words, k=25))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_rules", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each")
    args = parser.parse_args()
    logs = {
        "like Megatron's": megatron_like(LINES),
        "every tenth line fits a rule": megatron_like(LINES, hits=True),
        "tracebacks in words that no rule knows": megatron_like(LINES, tracebacks=True),
        "no line like another": unlike(LINES),
        "no error like another": unlike(LINES, errors=True),
    }
    print("| log | lines | MB | CPU s | lines/s | MB/s | peak memory, MB |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for name, lines in logs.items():
            path = Path(directory, "log")
            with path.open("w") as file:
                file.writelines(line + "\n" for line in lines)
            print(row(name, path, args.runs), flush=True)
    print(f"\n{machine()}")
    return 0


def row(name: str, path: Path, runs: int) -> str:
    best = min(cpu_seconds(path) for _ in range(runs))
    size = path.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"| {name} | {LINES:,} | {size:.1f} | {best:.2f} | {LINES / best:,.0f} | {size / best:.0f} "
        f"| {peak:.0f} |"
    )


def cpu_seconds(path: Path) -> float:
    begin = time.process_time()
    read_logs([path])
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
