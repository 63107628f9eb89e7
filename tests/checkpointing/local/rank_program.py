"""What the ranks of the jobs do: one function per scenario; it returns what it tells."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from undaunted.checkpointing.local.replication.strategies import LazyCliqueReplicationStrategy

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PATIENT_S, IMPATIENT_S = 60.0, 8.0


def state(iteration: int, rank: int = RANK) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    return {
        "weight": torch.randn(700_000, generator=generator),
        "scalar": torch.tensor(iteration),
        "half": torch.ones(3).half() * rank,
        "step": iteration,
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def manager(root: Path, session: str = "s", replicas: int = 0, **kwargs) -> LocalCheckpointManager:
    strategy = LazyCliqueReplicationStrategy(1, replicas) if replicas else None
    kwargs.setdefault("timeout_s", PATIENT_S)
    return LocalCheckpointManager(root, session, strategy, **kwargs)


def save(local: LocalCheckpointManager, iteration: int) -> None:
    local.save(BasicTensorAwareStateDict(state(iteration)), iteration)


def loaded(root: Path, session: str = "s", **kwargs) -> tuple[int, int, bool]:
    """Latest and loaded iteration, and whether it is this rank's state, of a new manager."""
    local = manager(root, session, **kwargs)
    try:
        latest = local.find_latest()
        got, ckpt_id = local.load()
        assert local.find_latest() == ckpt_id.iteration
        return latest, ckpt_id.iteration, same(got.state_dict, state(ckpt_id.iteration))
    finally:
        local.close()


def spoil(root: Path, iteration: int, rank: int, size: int | None = None) -> None:
    """Flip a byte of tensors in all copies on this node, or cut them short."""
    for path in root.glob(f"*/*/iter_{iteration:07d}_{rank}_local.pt"):
        with path.open("r+b") as file:
            if size is not None:
                file.truncate(size)
                continue
            file.seek(1_000_000)
            byte = file.read(1)[0]
            file.seek(1_000_000)
            file.write(bytes([byte ^ 1]))


def damage(tmp: Path) -> dict[str, Any]:
    """Every kind of loss, one after the other."""
    node, told = tmp / f"node{RANK}", {}
    local = manager(node, replicas=2)
    told["none"] = local.find_latest()
    save(local, 1)
    mine = state(2)
    queue = AsyncCallsQueue()
    request = local.save(BasicTensorAwareStateDict(mine), 2, is_async=True)
    mine["weight"].zero_()
    queue.schedule_async_request(request)
    told["finalized"] = queue.maybe_finalize_async_calls(blocking=True)
    told["files"] = sorted(str(path.relative_to(node)) for path in node.rglob("*.pt"))
    local.close()
    told["whole"] = loaded(node)
    if RANK == 1:
        shutil.rmtree(node)
    dist.barrier()
    told["disk lost"] = loaded(node)
    if RANK == 0:
        spoil(node, 2, 1)
    dist.barrier()
    told["flipped"] = loaded(node)
    if RANK == 0:
        spoil(node, 2, 0, size=5000)
    dist.barrier()
    told["truncated"] = loaded(node)
    local = manager(node, replicas=2)
    local.load()
    save(local, 3)
    local.close()
    if RANK == 0:
        spoil(node, 3, 0)
    dist.barrier()
    told["from peer"] = loaded(node)
    return told


def places(tmp: Path) -> dict[str, Any]:
    """Ranks that changed places, without replicas; a shared folder; stale files; bad content."""
    told: dict[str, Any] = {}
    local = manager(tmp / f"node{RANK}")
    save(local, 1)
    try:
        local.save(BasicTensorAwareStateDict({"x": state if RANK == 1 else 1}), 2)
    except CheckpointError as error:
        told["refused"] = [type(error).__name__, str(error)]
    save(local, 2)
    try:
        save(local, 2)
    except ValueError as error:
        told["again"] = str(error)
    save(local, 3)
    local.close()
    told["kept"] = sorted(path.name for path in (tmp / f"node{RANK}").rglob("*.pt"))
    left = tmp / f"node{RANK}/s/{RANK}/.iter_0000004_0_local.pt.0a.tmp"
    left.write_bytes(b"")
    told["swapped"] = loaded(tmp / f"node{1 - RANK}")
    told["own"] = loaded(tmp / f"node{RANK}")
    told["swept"] = not left.exists()
    if RANK == 1:
        shutil.rmtree(tmp / "node1")
    dist.barrier()
    try:
        loaded(tmp / f"node{RANK}")
    except CheckpointError as error:
        told["gone"] = [type(error).__name__, str(error)]
    local = manager(tmp / "shared", replicas=2)
    try:
        save(local, 1)
    except CheckpointError as error:
        told["shared"] = [type(error).__name__, str(error)]
    local.close()
    ddp = manager(tmp / f"node{RANK}", "ddp", same_on_all_ranks=True)
    ddp.save(BasicTensorAwareStateDict({"w": torch.arange(3)}), 5)
    ddp.close()
    return told


def four_save(tmp: Path) -> None:
    """Each of four ranks has a copy of its neighbour's state."""
    local = manager(tmp / f"node{RANK}", replicas=2)
    for iteration in (1, 2):
        save(local, iteration)
    local.close()


def in_order(rank: int, ranks: int, saved: int) -> range:
    return range(rank * saved // ranks, (rank + 1) * saved // ranks)


def two_load(tmp: Path) -> dict[str, Any]:
    """Two of the four disks are left, with the states of all."""
    told: dict[str, Any] = {}
    local = manager(tmp / f"node{2 * RANK}")
    told["own"] = local.find_latest()
    try:
        local.load()
    except CheckpointError as error:
        told["refused"] = [type(error).__name__, str(error)]
    # Each takes over what the other one's disk has.
    told["other"] = taken_over(local, lambda rank, *_: in_order(1 - rank, 2, 4))
    told["latest"] = local.find_latest(in_order)
    told["parts"] = taken_over(local, in_order)
    spoil(tmp / f"node{2 * RANK}", 2, 3)
    dist.barrier()
    told["damaged"] = taken_over(local, in_order)
    try:
        local.load_parts(lambda rank, *_: [rank])
    except CheckpointError as error:
        told["left"] = [type(error).__name__, str(error)]
    local.close()
    return told


def taken_over(local: LocalCheckpointManager, parts: Any) -> list[Any]:
    """The iteration, the ranks whose states were loaded, and whether they are theirs."""
    states, iteration = local.load_parts(parts)
    whole = all(same(one.state_dict, state(iteration, rank)) for rank, one in states.items())
    return [iteration, list(states), whole]


def one_left(tmp: Path) -> tuple[int, int, bool]:
    """Four ranks have copies of each other; three of them lose their disks."""
    local = manager(tmp / f"node{RANK}", replicas=4)
    save(local, 1)
    local.close()
    if RANK:
        shutil.rmtree(tmp / f"node{RANK}")
    dist.barrier()
    return loaded(tmp / f"node{RANK}")


def _dies(tmp: Path, replicas: int, with_signal: int, in_receiving: bool) -> dict[str, Any]:
    """Rank 1 dies, or stops, while it writes its second checkpoint."""
    local = manager(tmp / f"node{RANK}", replicas=replicas, timeout_s=IMPATIENT_S)
    save(local, 1)
    if RANK == 1:
        write, calls = local._write, []

        def die(memory, size, head, wrote, expected=None):
            if (expected is not None) == in_receiving:
                calls.append(1)
                return write(memory, size, head, lambda _: os.kill(os.getpid(), with_signal), None)
            return write(memory, size, head, wrote, expected)

        local._write = die
    began = time.monotonic()
    try:
        save(local, 2)
    except CheckpointError as error:
        return {
            "error": [type(error).__name__, str(error)],
            "ranks": error.ranks,
            "seconds": time.monotonic() - began,
            "latest": local.latest_iteration,
        }
    return {}


def killed_in_save(tmp: Path) -> dict[str, Any]:
    return _dies(tmp, 0, signal.SIGKILL, in_receiving=False)


def killed_in_replication(tmp: Path) -> dict[str, Any]:
    return _dies(tmp, 2, signal.SIGKILL, in_receiving=False)


def killed_with_copy(tmp: Path) -> dict[str, Any]:
    return _dies(tmp, 2, signal.SIGKILL, in_receiving=True)


def after(tmp: Path) -> dict[str, Any]:
    """What is found after a job that was killed."""
    return {"loaded": loaded(tmp / f"node{RANK}")}


def slow_peer(tmp: Path) -> dict[str, Any]:
    """Rank 1 is too slow for one save; the next one works again."""
    local = manager(tmp / f"node{RANK}", replicas=2, timeout_s=IMPATIENT_S)
    save(local, 1)
    told: dict[str, Any] = {}
    request = local.save(BasicTensorAwareStateDict(state(2)), 2, is_async=True)
    job = request.async_fn
    if RANK == 0:
        job()  # finds nobody
    finalize = request.finalize_fns[0]
    try:
        finalize()
    except CheckpointError as error:
        told["error"] = str(error)
    save(local, 3)
    local.close()
    told["loaded"] = loaded(tmp / f"node{RANK}")
    return told


def main() -> None:
    dist.init_process_group("gloo")
    told = globals()[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(told), flush=True)
    os._exit(0)  # peers may be gone: nothing to be tidied up with them


if __name__ == "__main__":
    main()
