"""One rank that saves with torch's distributed checkpoint; see rank_program.py."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

sys.path.insert(0, str(Path(__file__).parent))

from jobs import writer_pid
from rank_program import caught, main, scenario

from undaunted.checkpointing.async_ckpt import core
from undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (
    CachedMetadataFileSystemReader,
)
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    CheckpointMetadataCache,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from undaunted.checkpointing.writer.job import WriterOptions


def schedule(
    queue: AsyncCallsQueue,
    folder: Path,
    state: dict[str, Any],
    open_file: Any = open,
    **settings: Any,
) -> None:
    writer = FileSystemWriterAsync(folder, open_file=open_file)
    planned = save_state_dict_async_plan(state, writer, timeout=30, **settings)
    save, preload, arguments = writer.get_save_function_and_args()
    end = [partial(save_state_dict_async_finalize, *planned)]
    queue.schedule_async_request(AsyncRequest(save, tuple(arguments), end, preload_fn=preload))


def sharded(value: float = 0.0) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    full = torch.arange(24.0).reshape(6, 4) + value
    return {
        "sharded": distribute_tensor(full, mesh, [Shard(0)]),
        "replicated": torch.ones(5) * (value + 1),
    }


def finished(queue: AsyncCallsQueue) -> Any:
    return caught(lambda: queue.maybe_finalize_async_calls(blocking=True, timeout=60))


@scenario
def shards(directory: Path, rank: int) -> Any:
    """Shards of two ranks; the coordinator is rank 1; rank 1 changes everything at once."""
    queue = AsyncCallsQueue()
    state = sharded()
    schedule(queue, directory / "shards", state, coordinator_rank=1)
    for tensor in state.values():
        (tensor.to_local() if hasattr(tensor, "to_local") else tensor).zero_()
    told = finished(queue)
    state = sharded(100)
    reader = CachedMetadataFileSystemReader(directory / "shards")
    dcp.load(state, storage_reader=reader)
    queue.close()
    return [told, state["sharded"].to_local().tolist(), state["replicated"].tolist()]


@scenario
def structure(directory: Path, rank: int) -> Any:
    """In the third save rank 1 has one more key: all ranks plan anew, and nothing is missing."""
    queue, cache = AsyncCallsQueue(), CheckpointMetadataCache()
    told = []
    for number in range(4):
        state = sharded(number) | {f"own{rank}": torch.ones(1) * number}
        if number >= 2 and rank == 1:
            state["more"] = torch.ones(2) * number
        folder = directory / f"structure{number}"
        schedule(queue, folder, state, enable_cache=True, metadata_cache=cache)
        end = finished(queue)
        metadata = CachedMetadataFileSystemReader(folder).read_metadata()
        told.append(
            [end, cache.get_metadata_caching_status()[0], sorted(metadata.state_dict_metadata)]
        )
    queue.close()
    return told


@scenario
def other_ranks(directory: Path, rank: int) -> Any:
    """After a save of both ranks each saves alone, with the same plans kept: nothing is missing."""
    queue, cache, told = AsyncCallsQueue(), CheckpointMetadataCache(), []
    alone = [dist.new_group([one]) for one in range(2)][rank]
    state = {f"part{number}": torch.full((9,), float(number)) for number in range(8)}
    kept: dict[str, Any] = {"enable_cache": True, "metadata_cache": cache}
    for name, group in (("both", None), ("both_again", None), (f"alone{rank}", alone)):
        folder = directory / name
        schedule(queue, folder, state, process_group=group, **kept)
        end = caught(lambda group=group: queue.maybe_finalize_async_calls(True, bool(group)))  # type: ignore[misc]
        loaded = {name: torch.zeros(9) for name in state}
        dcp.load(loaded, process_group=group, checkpoint_id=folder)
        same = all(torch.equal(loaded[name], state[name]) for name in state)
        told.append([end, cache.get_metadata_caching_status()[0], same])
    dist.barrier()
    queue.close()
    return told


@scenario
def again(directory: Path, rank: int) -> Any:
    """One folder is written again and again, also twice at once: as after going back."""
    queue, told = AsyncCallsQueue(), []
    folder = directory / "again"
    for values in ((1.0,), (2.0,), (3.0, 4.0)):
        for value in values:
            schedule(queue, folder, sharded(value))
        end = finished(queue)
        dist.barrier()
        state = sharded()
        dcp.load(state, storage_reader=CachedMetadataFileSystemReader(folder))
        files = len(list(folder.glob("*.distcp")))
        dist.barrier()
        told.append([end, state["replicated"][0].item(), files])
    queue.close()
    return told


@scenario
def write_fails(directory: Path, rank: int) -> Any:
    """Rank 1 cannot write: both are told; the next save works."""
    queue = AsyncCallsQueue()

    def full(path: str, mode: str) -> Any:
        raise OSError(28, "No space left on device", path)

    folder = directory / "write_fails"
    schedule(queue, folder, sharded(), open_file=full if rank else open)
    first = finished(queue)
    there = (folder / ".metadata").exists()
    schedule(queue, folder, sharded())
    second = finished(queue)
    dist.barrier()
    files = sorted(path.name.partition(".")[0] for path in folder.glob("*.distcp"))
    queue.close()
    return [first, there, second, files]


@scenario
def planning_fails(directory: Path, rank: int) -> Any:
    """Rank 1 has something that cannot be saved: both are told; the next save works."""
    queue = AsyncCallsQueue()
    folder = directory / "planning_fails"
    state = sharded()
    first = caught(lambda: schedule(queue, folder, state | ({"bad": lambda: 0} if rank else {})))
    schedule(queue, folder, state)
    second = finished(queue)
    queue.close()
    return [first, second]


@scenario
def writer_dies(directory: Path, rank: int) -> Any:
    """The writer process of rank 1 is killed: both are told; the next save works."""
    queue = AsyncCallsQueue()
    if rank == 1:
        core._options = WriterOptions(bandwidth=1.0)  # it is not done before it is killed
    schedule(queue, directory / "writer_dies", sharded())
    if rank == 1:
        os.kill(writer_pid(), signal.SIGKILL)
        core._options = WriterOptions()
    first = finished(queue)
    schedule(queue, directory / "writer_dies", sharded())
    second = finished(queue)
    queue.close()
    return [first, second]


@dataclass(frozen=True)
class OwnPlan(dcp.SavePlan):  # type: ignore[misc]
    own: dict[str, Any] = field(default_factory=dict)


OWN: dict[str, Any] = {"x": {1j}, "shape": torch.Size([2, 3]), "dtype": torch.bfloat16}


class Stranger:
    """No plain data."""


class OwnPlanner(dcp.DefaultSavePlanner):  # type: ignore[misc]
    def __init__(self, own: dict[str, Any] = OWN) -> None:
        super().__init__()
        self.own = own

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        self.plan = OwnPlan(plan.items, planner_data=plan.planner_data, own=self.own)
        return self.plan

    def create_global_plan(self, plans: Any) -> Any:
        assert all(plan.own == OWN for plan in plans)
        return super().create_global_plan(plans)

    def finish_plan(self, plan: Any) -> Any:
        assert (type(plan), plan.own) == (OwnPlan, OWN)
        return super().finish_plan(plan)


class DecentralPlanner(dcp.DefaultSavePlanner):  # type: ignore[misc]
    can_run_decentralized_global_plan = True

    def create_decentralized_global_plan(self, local_plan: Any) -> Any:
        return local_plan


@scenario
def own_planners(directory: Path, rank: int) -> Any:
    """Planners whose plans hold more than torch's, and that need nobody to decide."""
    queue, told = AsyncCallsQueue(), []
    for number in range(2):
        schedule(queue, directory / "own", sharded(number), planner=OwnPlanner())
        told.append(finished(queue))
    stranger = OwnPlanner({"x": Stranger()} if rank else OWN)
    told.append(
        caught(lambda: schedule(queue, directory / "own", sharded(), planner=stranger)),
    )
    mesh = sharded()["sharded"].device_mesh
    cache = CheckpointMetadataCache()
    for number in range(2):
        state = {"sharded": distribute_tensor(torch.arange(4.0) + number, mesh, [Shard(0)])}
        folder = directory / f"decentral{number}"
        settings = {"planner": DecentralPlanner(), "enable_cache": True, "metadata_cache": cache}
        schedule(queue, folder, state, **settings)
        told.append(finished(queue))
        cache.set_cached_global_metadata(CachedMetadataFileSystemReader(folder).read_metadata())
        dcp.load(state, checkpoint_id=folder)
        told += [cache.get_metadata_caching_status(), state["sharded"].to_local().tolist()]
    queue.close()
    return told


@scenario
def rank_dies(directory: Path, rank: int) -> Any:
    """Rank 1 is killed before it finalizes: rank 0 has an error, and soon."""
    queue = AsyncCallsQueue()
    schedule(queue, directory / "rank_dies", sharded())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told = finished(queue)
    queue.close(abort=True)
    return [told, (directory / "rank_dies" / ".metadata").exists()]


if __name__ == "__main__":
    main()
