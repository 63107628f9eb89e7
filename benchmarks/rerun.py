"""What checks of results cost a step: `python -m benchmarks.rerun`.

A step has nothing but one check of a number. Several ranks reduce over gloo on this machine; what
the program reduces anyway is one number as well.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from benchmarks.__main__ import machine as described

if TYPE_CHECKING:
    from collections.abc import Callable

Steps = dict[str, "Callable[[int], None]"]
_BLOCK = 100  # steps whose time is taken together


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rerun", description=__doc__)
    parser.add_argument("--blocks", type=int, default=1000, help=f"of {_BLOCK} steps each (1000)")
    parser.add_argument("--ranks", type=int, default=2, help="that reduce (2)")
    args = parser.parse_args()
    import torch.multiprocessing as mp

    print("| a step, µs | least | median |\n|---|---|---|")
    show(measured(steps_of_one(), args.blocks))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_of_several, (args.ranks, folder, args.blocks // 10), nprocs=args.ranks)
    print(f"\n{described()}")
    return 0


def steps_of_one() -> Steps:
    """Steps of a process that is alone."""
    import numpy.random
    import torch

    from undaunted.base import random_generators
    from undaunted.progress import writer
    from undaunted.progress.writer import NullWriter
    from undaunted.training import Rerun, Session

    torch.rand(1), numpy.random.rand()
    writer.current = NullWriter("a benchmark")
    checked, session = Session(rerun=Rerun()), Session()

    def in_session(one: Session) -> Callable[[int], None]:
        def step(iteration: int) -> None:
            one.step(iteration)
            for _ in one.attempts():
                one.check(1.5, "loss")

        return step

    return {
        "keeping the random generators": lambda _iteration: random_generators.states(),
        "machine, mode disabled": machine_step(mode="disabled"),
        "machine, beside the reduction": machine_step(any_rank=lambda wishes: wishes),
        "`session.attempts` and `check` without `rerun`": in_session(session),
        "`session.attempts` and `check`, beside the reduction": in_session(checked),
    }


def machine_step(**arguments: Any) -> Callable[[int], None]:
    from undaunted.training.rerun.machine import RerunStateMachine

    one = RerunStateMachine(**{"mode": "validate_results", **arguments})

    def step(_iteration: int) -> None:
        while one.should_run_forward_backward():
            one.validate_result(1.5, math.isnan, "loss")
        one.should_checkpoint_and_exit()

    return step


def rank_of_several(rank: int, ranks: int, folder: str, blocks: int) -> None:
    import torch
    import torch.distributed as dist

    from undaunted.training.rerun.machine import RerunStateMachine

    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    number, pair = torch.zeros(1), torch.zeros(2)
    riding = RerunStateMachine(mode="validate_results")

    def with_flag(_iteration: int) -> None:
        while riding.should_run_forward_backward():
            riding.validate_result(1.5, math.isnan, "loss")
            pair[1] = riding.flag
            dist.all_reduce(pair)
            riding.flag_reduced(pair[1].item())
        riding.should_checkpoint_and_exit()

    not_fatal = machine_step(fatal_checks=False)
    several = f"{ranks} ranks: "
    steps: Steps = {
        f"{several}what the program reduces": lambda _iteration: dist.all_reduce(number),
        f"{several}this, and the flag rides on it": with_flag,
        f"{several}machine with its reduction": machine_step(),
        f"{several}machine, no check is fatal": not_fatal,
    }
    found = measured(steps, blocks)
    if rank == 0:
        show(found)
    dist.destroy_process_group()


def measured(steps: Steps, blocks: int) -> dict[str, list[float]]:
    """Return microseconds of a step, block by block; kinds of steps take turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for iteration in range(1, 4):
            step(iteration)
    for block in range(blocks):
        for name, step in steps.items():
            first = 4 + block * _BLOCK
            began = time.perf_counter()
            for iteration in range(first, first + _BLOCK):
                step(iteration)
            found[name].append((time.perf_counter() - began) / _BLOCK * 1e6)
    return found


def show(found: dict[str, list[float]]) -> None:
    for name, times in found.items():
        print(f"| {name} | {min(times):.2f} | {statistics.median(times):.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
