"""One of two ranks that save, one of which meets with an accident. Run by test_ranks.py.

    python ranks_program.py SCENARIO DIRECTORY

Prints lines of JSON: what became of the save in which it happened, and of the next one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tests.checkpointing.async_ckpt.jobs import writer_pid
from undaunted.checkpointing import Checkpointer, SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 12.0


def main() -> None:
    scenario, directory = sys.argv[1:]
    rank = int(os.environ["RANK"])
    meeting = f"file://{directory}.meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    checkpoints = Checkpointer(directory, timeout=TIMEOUT_S, bandwidth=4e6)
    state = {f"of rank {rank}": torch.full((1 << 20,), float(rank))}
    if rank == 1:
        ACCIDENTS[scenario](checkpoints, state)
    began = time.monotonic()
    step = 7 if scenario == "steps" and rank == 1 else 1
    if scenario != "missed" or rank == 0:
        signals = {"writer killed": signal.SIGKILL, "writer stopped": signal.SIGSTOP}
        number = signals.get(scenario, 0) if rank == 1 else 0
        say(rank, "save", began, lambda: saved(checkpoints, step, state, number))
    if scenario == "missed":
        dist.barrier()
    if scenario.startswith("writer") or scenario in ("structure", "steps", "missed"):
        small = {f"of rank {rank}": torch.full((10,), float(rank))}
        say(rank, "next", began, lambda: saved(checkpoints, 2, small))
    if not scenario.startswith(("killed", "stopped")):
        dist.barrier()  # as `close` would: rank 0 serves until the other has its answer
    checkpoints.abort()
    os._exit(0)  # the process group has perhaps lost a member


def saved(
    checkpoints: Checkpointer, step: int, state: dict[str, torch.Tensor], number: int = 0
) -> None:
    checkpoints.save(step, state)
    if number:
        os.kill(writer_pid(), number)  # it needs a second
    checkpoints.wait()


def say(rank: int, what: str, began: float, do: Callable[[], None]) -> None:
    outcome, ranks = "done", ()
    try:
        do()
    except SaveError as error:
        outcome, ranks = f"{type(error).__name__}: {error}", error.ranks
    line = {"rank": rank, "what": what, "outcome": outcome, "ranks": list(ranks)}
    print(json.dumps({**line, "seconds": time.monotonic() - began}), flush=True)


def signal_self_while_saving(number: int) -> Callable[[Checkpointer, dict[str, object]], None]:
    def do(checkpoints: Checkpointer, state: dict[str, object]) -> None:
        checkpoints.save(1, state)  # copied; its writer needs a second
        os.kill(os.getpid(), number)

    return do


def signal_self_before(number: int) -> Callable[[Checkpointer, object], None]:
    return lambda _checkpoints, _state: os.kill(os.getpid(), number)


def cannot_be_saved(_: Checkpointer, state: dict[str, object]) -> None:
    state["lambda"] = lambda: None


ACCIDENTS = {
    "nothing": lambda _checkpoints, _state: None,
    "writer killed": lambda _checkpoints, _state: None,
    "writer stopped": lambda _checkpoints, _state: None,
    "killed before": signal_self_before(signal.SIGKILL),
    "killed while saving": signal_self_while_saving(signal.SIGKILL),
    "stopped while saving": signal_self_while_saving(signal.SIGSTOP),
    "structure": cannot_be_saved,
    "steps": lambda _checkpoints, _state: None,
    "missed": lambda _checkpoints, _state: None,
}


if __name__ == "__main__":
    main()
