"""What it costs a rank to be asked how long it has worked: `python -m benchmarks.own_times`.

A full Flight Recorder of 2,000 collectives of gloo, one in each step. "Kept" is how long the main
thread stands still at most, as torch writes its dump under the interpreter's lock.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
import timeit

from benchmarks.__main__ import machine

ENTRIES = 2000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_times", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="answers (10)")
    args = parser.parse_args()
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(ENTRIES)

    import torch
    import torch.distributed as dist

    from undaunted.fault_tolerance.worker.witness import Times
    from undaunted.progress import writer

    page = writer.current = writer.NullWriter("a benchmark")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        number = torch.ones(1)
        for step in range(ENTRIES):
            page.step(step)
            dist.all_reduce(number)
        found = [answer(Times()) for _ in range(args.rounds)]
        dist.destroy_process_group()
    calls, iterations = 20_000, itertools.count()
    took = timeit.repeat(lambda: page.step(next(iterations)), number=calls, repeat=10)
    step_ns = min(took) / calls * 1e9
    print("| | least | most |\n|---|---|---|")
    for name, figures in zip(("CPU time, ms", "kept, ms", "bytes"), zip(*found), strict=True):  # noqa: B905
        print(f"| {name} | {min(figures):.1f} | {max(figures):.1f} |")
    print(f"\n`undaunted.step`: {step_ns:.0f} ns\n{machine()}")
    return 0


def answer(times: object) -> tuple[float, float, int]:
    """Answer once, while the main thread looks at the clock: CPU ms, longest gap in ms, bytes."""
    said: list[tuple[float, int]] = []

    def work() -> None:
        began = time.thread_time()
        size = len(times.answer())  # type: ignore[attr-defined]
        said.append(((time.thread_time() - began) * 1000, size))

    thread = threading.Thread(target=work)
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return said[0][0], longest * 1000, said[0][1]


if __name__ == "__main__":
    sys.exit(main())
