"""One rank of a job with gloo: ``rank_program.py SCENARIO,... DIRECTORY RANK WORLD_SIZE``.

What the scenarios return is written to DIRECTORY/RANK.json, by their names.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.ranks import Ranks
from undaunted.checkpointing.async_ckpt.state_dict_saver import save_state_dict_async_plan
from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 60.0
SCENARIOS: dict[str, Callable[[Path, int], Any]] = {}


def scenario(function: Callable[[Path, int], Any]) -> Callable[[Path, int], Any]:
    SCENARIOS[function.__name__] = function
    return function


def caught(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"returned": function()}
    except SaveError as error:
        return {"text": str(error), "ranks": error.ranks, "errno": error.errno}


@scenario
def one_fails(directory: Path, rank: int) -> Any:
    """Rank 1's save fails at once while the others' go on: all hear of it, and the next works."""
    queue, gate, ends = AsyncCallsQueue(), threading.Event(), list[int]()

    def save() -> None:
        if rank == 1:
            raise OSError(28, "No space left on device", "/full/file")
        assert gate.wait(DEADLINE_S)

    queue.schedule_async_request(AsyncRequest(save, (), [lambda: ends.append(0)]))
    first: dict[str, Any] = {"returned": []}
    while first == {"returned": []}:
        first = caught(queue.maybe_finalize_async_calls)
    gate.set()
    queue.schedule_async_request(AsyncRequest(lambda: None, (), [lambda: ends.append(1)]))
    second = caught(lambda: queue.maybe_finalize_async_calls(blocking=True))
    queue.close()
    return [first, second, ends]


@scenario
def all_or_none(directory: Path, rank: int) -> Any:
    """A save that is done on one rank is finalized when it is done on the other."""
    queue, gate = AsyncCallsQueue(), threading.Event()
    queue.schedule_async_request(
        AsyncRequest((lambda: gate.wait(DEADLINE_S)) if rank else (lambda: None), (), [])
    )
    early = queue.maybe_finalize_async_calls()
    gate.set()
    late = queue.maybe_finalize_async_calls(blocking=True)
    queue.close()
    return [early, late]


@scenario
def different_saves(directory: Path, rank: int) -> Any:
    """The ranks are not at the same save: said before anything is finalized."""
    queue, ends = AsyncCallsQueue(), list[int]()
    for number in range(1 + rank):
        queue.schedule_async_request(
            AsyncRequest(lambda: None, (), [lambda number=number: ends.append(number)])  # type: ignore[misc]
        )
    if rank == 1:
        queue.maybe_finalize_async_calls(blocking=True, no_dist=True)
        queue.schedule_async_request(AsyncRequest(lambda: None, (), [lambda: ends.append(9)]))
    ends.clear()
    told = caught(lambda: queue.maybe_finalize_async_calls(blocking=True))
    request = AsyncRequest(None, (), [lambda: ends.append(7)], call_idx=rank)
    alone = caught(request.execute_finalize_fns)
    queue.close(abort=True)
    return [told, alone, ends]


@scenario
def done_here_and_now(directory: Path, rank: int) -> Any:
    """`execute_sync` fails on all ranks when it does on one."""

    def save() -> None:
        if rank == 0:
            raise ValueError("bad")

    return caught(AsyncRequest(save, (), []).execute_sync)


@scenario
def stopped(directory: Path, rank: int) -> Any:
    """A rank that is stopped costs the other one its deadline, and no more."""
    queue = AsyncCallsQueue()
    queue.schedule_async_request(AsyncRequest(lambda: None, (), []))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    told = caught(lambda: queue.maybe_finalize_async_calls(blocking=True, timeout=2.0))
    queue.close(abort=True)
    writer = FileSystemWriterAsync(directory / "stopped")
    planned = caught(lambda: save_state_dict_async_plan({"a": 1}, writer, timeout=2.0))
    return [told, planned]


@scenario
def exchange(directory: Path, rank: int) -> Any:
    """Bytes of different lengths, gathered and scattered by a coordinator that is not rank 0."""
    ranks = Ranks(coordinator_rank=1)
    gathered = ranks.gather(b"x" * (rank * 3))
    parts = [[b"for rank 0", b"1"], [b"", b"all"], [b"", b""]]
    mine = [ranks.scatter(one if ranks.is_coordinator else None).decode() for one in parts]
    return [gathered and [len(one) for one in gathered], mine]


def main() -> None:
    names, directory, rank, world_size = sys.argv[1:]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store",
        rank=int(rank),
        world_size=int(world_size),
        timeout=dt.timedelta(seconds=DEADLINE_S),
    )
    told = {}
    for name in names.split(","):
        told[name] = SCENARIOS[name](Path(directory), int(rank))
        (Path(directory) / f"{rank}.json").write_text(json.dumps(told))
    if "stopped" not in told:  # gloo would wait for that rank, for as long as the group may
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
