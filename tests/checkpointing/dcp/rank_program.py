"""One rank of two: saves and loads models that are distributed in different ways.

Arguments: rank, folder. Prints ``done`` when everything was as expected.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.checkpointing.dcp.saved import Folder, manifest_of, write
from undaunted.agreement.connect import connect
from undaunted.checkpointing.dcp.loading import load
from undaunted.checkpointing.dcp.saving import Saver
from undaunted.checkpointing.errors import AGREED, DamagedCheckpointError
from undaunted.checkpointing.memory.arena import Arena

WORLD = 2
DEADLINE_S = 250.0
UNEVEN = 7  # rows of the last layer: not a multiple of the world's size


def plain() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, UNEVEN))


def sharded() -> torch.nn.Module:
    model = plain()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def replicated() -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(plain())


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(2):
        torch.manual_seed(step)
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(state: Any) -> Any:
    """The state with whole tensors, to be compared."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {str(k).removeprefix("module."): whole(v) for k, v in state.items()}
    return state


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def states(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": whole(model.state_dict()), "optimizer": whole(optimizer.state_dict())}


def save(folder: Path, state: dict[str, Any], saver: Saver, agreement: Any) -> None:
    planned = saver.plan(state, DEADLINE_S)
    arena = Arena.create("test", planned.arena_bytes())
    staged = planned.stage(arena)
    write(folder, staged, arena)
    arena.close()

    def finish(reports: Any) -> bytes:
        (folder / ".metadata").write_bytes(planned.metadata(reports))
        return b""

    agreement.round("written", staged.report, finish, DEADLINE_S)


def load_it(folder: Path, state: dict[str, Any], agreement: Any, manifest: Any = None) -> None:
    storage: Any = Folder(folder)
    manifest = manifest or manifest_of(folder)
    load(state, storage, manifest, agreement=agreement, threads=2, timeout_s=DEADLINE_S)


def saves_and_loads(name: str, make: Any, root: Path, agreement: Any) -> None:
    """What was saved comes back, into a model that has trained and one that has not."""
    model = make()
    optimizer = optimizer_of(model)
    saver = Saver(agreement)
    save(root / f"{name}-fresh", {"model": model, "optimizer": optimizer}, saver, agreement)
    train(model, optimizer)
    expected = states(model, optimizer)
    save(root / name, {"model": model, "optimizer": optimizer}, saver, agreement)
    if dist.get_rank() == 0:
        torch.save(expected, root / f"{name}.pt")
    other = make()
    fresh = optimizer_of(other)
    load_it(root / name, {"model": other, "optimizer": fresh}, agreement)
    assert same(states(other, fresh), expected), f"{name}: fresh"
    train(other, fresh)
    load_it(root / name, {"model": other, "optimizer": fresh}, agreement)
    assert same(states(other, fresh), expected), f"{name}: trained"
    both = [path.name for path in (root / name).iterdir()]
    assert sorted(both) == [".metadata", "__0_0.distcp", "__1_0.distcp"], both


def loads_what_one_rank_saved(root: Path, agreement: Any) -> None:
    expected = torch.load(root / "single.pt")
    for make in (sharded, replicated):
        model = make()
        optimizer = optimizer_of(model)
        its = model.module if make is replicated else model
        load_it(root / "single", {"model": its, "optimizer": optimizer}, agreement)
        assert same(states(its, optimizer), expected), make.__name__


def damage_on_one_rank_is_known_to_both(root: Path, agreement: Any) -> None:
    """Only rank 1 reads from the file that was changed."""
    manifest = manifest_of(root / "sharded")
    path = root / "sharded" / "__1_0.distcp"
    whole_file = path.read_bytes()
    agreement.round("read", b"", lambda _: b"", DEADLINE_S)
    if dist.get_rank() == 1:
        path.write_bytes(whole_file[:100] + bytes([whole_file[100] ^ 1]) + whole_file[101:])
    agreement.round("damaged", b"", lambda _: b"", DEADLINE_S)
    model = sharded()
    with pytest.raises(DamagedCheckpointError) as caught:
        load_it(root / "sharded", {"model": model}, agreement, manifest)
    assert caught.value.block == 0
    assert caught.value.names
    assert caught.value.path.endswith("__1_0.distcp")
    agreement.round("noticed", b"", lambda _: b"", DEADLINE_S)
    if dist.get_rank() == 1:
        path.write_bytes(whole_file)


def main(rank: int, root: Path) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{root}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    connected = connect(None, DEADLINE_S, AGREED)
    agreement = connected.main
    saves_and_loads("sharded", sharded, root, agreement)
    saves_and_loads("replicated", replicated, root, agreement)
    loads_what_one_rank_saved(root, agreement)
    damage_on_one_rank_is_known_to_both(root, agreement)
    connected.close()
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
