"""One rank of some that save and load together; run by test_together.py.

    python -m tests.checkpointing.together_program RANK WORLD_SIZE FOLDER SCENARIO...

Prints a line of JSON for each scenario: its name, and what it has returned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
from collections import OrderedDict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor

from undaunted.checkpointing import Checkpointer, CheckpointError, PerRank, load_dcp
from undaunted.checkpointing.format.manifest import decode

TIMEOUT_S = 60.0


class Heard(logging.Handler):
    """Remembers warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Loader:
    """A data loader that each rank has for itself; fresh ones have nothing in their state."""

    def __init__(self, position: int | None = None) -> None:
        self.state: dict[Any, Any] = {}
        if position is not None:
            self.state = {"position": position, 7: {}, "seen": (1, position), "none": None}

    def state_dict(self) -> dict[Any, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.state = state


def failure(action: Any) -> str:
    try:
        action()
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def saved(folder: Path, *states: dict[str, Any], **settings: Any) -> list[str]:
    """What became of saves one after the other by one Checkpointer."""
    with Checkpointer(folder, timeout=TIMEOUT_S, **settings) as checkpoints:
        return [failure(lambda s=s, n=n: checkpoints.save(n, s)) for n, s in enumerate(states)]


def experts(rank: int, folder: Path) -> Any:
    torch.manual_seed(rank)
    return saved(folder, {"experts": nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))})


class Item:
    """An object with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def lists(rank: int, folder: Path) -> Any:
    """Lists that have one entry more on rank 1, of what is saved entry by entry."""
    entries: list[Any] = [torch.ones(1), Item({"a": 1}), {}, [torch.ones(1)], {"a": {1: 2}}]
    states = [{"m": {"all": [one, one][: rank + 1]}} for one in entries]
    states += [{"m": {"all": (Item({"a": 1}), Item({"a": 1}))[: rank + 1]}}]
    states += [{"m": Item({"all": [torch.ones(1), torch.ones(1)][: rank + 1]})}]
    refused = [saved(folder, one)[0] for one in states]
    own = saved(folder, {"m": PerRank([torch.ones(1), torch.ones(1)][: rank + 1])})
    return refused, own + saved(folder, states[0], differing="warn")


def own_on_one_rank(rank: int, folder: Path) -> Any:
    """A PerRank on rank 1, and something else on rank 0; only rank 1 has one besides."""
    others: list[Any] = [{"a": 1}, {}, 5, None, [1], Item({"a": 1}), torch.ones(1)]
    states = [{"m": {"x": PerRank({"a": 1}) if rank else one}} for one in others]
    alone = {"only": PerRank(1)} if rank else {}
    return [saved(folder, one)[0] for one in states], saved(folder, alone)


def experts_of_groups(rank: int, folder: Path) -> Any:
    """DTensors of one name on meshes that do not have the same ranks."""
    torch.manual_seed(rank // 2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("group", "shard"))["shard"]
    part = distribute_tensor(torch.randn(4, 2), mesh, src_data_rank=None)
    return saved(folder, {"same": distribute_tensor(torch.ones(4), mesh), "expert": part})


def loaders(rank: int, folder: Path) -> Any:
    """Objects that are the same at the first save, and differ later."""
    first, later = Loader(5), Loader(5 + rank)
    return saved(folder, {"data": first}, {"data": later}, {"data": first})


def large_and_long(rank: int, folder: Path) -> Any:
    base = torch.arange(100_000.0)
    swapped = torch.cat([base[50_000:], base[:50_000]]) if rank else base
    return [*saved(folder, {"x": swapped}), *saved(folder, {"x": base.t() if rank else base})]


def of_other_kinds(rank: int, folder: Path) -> Any:
    """Tensors that are made of others, and arrays of objects: each the same, then each not."""

    def made(value: float) -> dict[str, Any]:
        values = torch.eye(2) * (1 + value)
        return {
            "packed": TwoTensor(torch.ones(2), torch.ones(2) + value),
            "sparse": values.to_sparse(),
            "quantized": torch.quantize_per_tensor(values, 0.5, 0, torch.qint8),
            "scale": torch.quantize_per_tensor(values * 0, 0.5 + value, 0, torch.qint8),
            "in a tuple": (values.to_sparse_csr(),),
            "slice": slice(int(value), 3),
        }

    torch.serialization.add_safe_globals([TwoTensor])
    outcomes = saved(folder / "all", made(0))
    for name, differing in made(rank).items():
        outcomes += saved(folder / name, {name: differing})
    return outcomes


def equal_in_other_words(rank: int, folder: Path) -> Any:
    """Values that are equal, and whose pickles or texts are not."""
    text = b"abc".decode()
    state = {
        "set": ({"x", "y", "zzz", text}, frozenset({1, 2}))
        if rank
        else ({"abc", "zzz", "y", "x"},) * 1 + (frozenset({2, 1}),),
        "shared": ([text, text],) if rank else ([text, b"abc".decode()],),
        "order": ({"a": 1, "b": [2]} if rank else {"b": [2], "a": 1},),
        "nan": float("nan"),
        "tensor": (
            torch.arange(4.0).view(2, 2).t().contiguous().t() + 0.0
            if rank
            else torch.arange(4.0).view(2, 2),
        ),
        "object": nn.Identity(),
    }
    return saved(folder, state, OrderedDict(reversed(state.items())), state)


def pipeline(rank: int, folder: Path) -> Any:
    """Ranks with names in common with some other ranks only."""
    part = {f"stage {rank // 2}": {"epoch": 3 + rank // 2, "w": torch.ones(2) * (rank // 2)}}
    whole = {"all": 1, **part, "own": PerRank(rank)}
    other = {"all": 1, f"stage {rank // 2}": {**part[f"stage {rank // 2}"], "epoch": rank}}
    return saved(folder, whole, whole, {**other, "own": PerRank(rank + 1)})


def buffers(rank: int, folder: Path) -> Any:
    model = nn.Sequential(nn.BatchNorm1d(3))
    model.register_buffer("seen", torch.full((2,), float(rank)))
    model[0].running_mean.fill_(rank)
    heard = Heard()
    logging.getLogger("undaunted").addHandler(heard)
    of_model = saved(folder, {"model": model}, {"model": model, "more": 1})
    return {
        "outcome": of_model,
        "plain": saved(folder, model[0].state_dict()),
        "heard": heard.lines,
    }


def certified(rank: int, folder: Path) -> Any:
    """Every second save compares. Of the third, fourth and sixth a bit is wrong on rank 1."""
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    for tensor in model.state_dict().values():
        tensor.fill_(1)
    model[1].running_mean.fill_(rank)  # as it may be
    state = {"model": model, "own": PerRank(torch.full((4,), float(rank))), "epoch": 1}
    outcomes = []
    with Checkpointer(folder / "c", keep=None, certify=2, timeout=TIMEOUT_S) as checkpoints:
        for step in range(1, 8):
            wrong = model[0].weight.data.view(torch.int32)[5, 6]
            if rank == 1 and step in (3, 5, 6, 7):
                wrong ^= 1
            outcomes.append(failure(lambda n=step: checkpoints.save(n, state)))
    # Of a part that one rank alone has there are no replicas, although all have the number.
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards = {"w": distribute_tensor(torch.ones(8), mesh, [Shard(0)]), "epoch": 1}
    outcomes += saved(folder / "shards", shards, certify=1)
    dist.barrier()
    paths = sorted(folder.glob("*/step-*/undaunted.json"))
    told = {path.parent.name: decode(path.read_bytes(), "").certified for path in paths}
    return [outcomes, told]


def warned(rank: int, folder: Path) -> Any:
    heard = Heard()
    logging.getLogger("undaunted").addHandler(heard)
    states = [{"x": torch.full((2,), float(rank)), "n": rank + step} for step in range(3)]
    outcomes = saved(folder, *states, differing="warn")
    return {"outcome": outcomes, "heard": heard.lines}


def own_state(rank: int) -> tuple[dict[str, Any], nn.Module, torch.optim.Optimizer, Loader]:
    torch.manual_seed(rank)
    loader, expert = Loader(10 * rank), nn.Linear(200, 200)
    optimizer = torch.optim.AdamW(expert.parameters())
    expert(torch.ones(1, 200)).sum().backward()
    optimizer.step()
    own = {"expert": expert, "optimizer": optimizer, "list": [rank, torch.ones(2) * rank]}
    state = {"data": PerRank(loader), "own": PerRank(own), "number": PerRank(rank)}
    return (
        {**state, "large": PerRank(torch.full((20_000,), float(rank)))},
        expert,
        optimizer,
        loader,
    )


def save_own(rank: int, folder: Path) -> Any:
    state, *_ = own_state(rank)
    return saved(folder.parent / "own", state, state)


def load_own(rank: int, folder: Path) -> Any:
    """What came back in fresh objects; the same for a rank that was there."""
    expected, model, optimizer, loader = own_state(rank)
    fresh, fresh_optimizer = nn.Linear(200, 200), None
    fresh_optimizer = torch.optim.AdamW(fresh.parameters())
    own: dict[str, Any] = {"expert": fresh, "optimizer": fresh_optimizer, "list": []}
    data = Loader()
    number, large = PerRank(-1), torch.full((20_000,), -1.0)
    at = fresh.weight.data_ptr()
    state = {"data": PerRank(data), "own": PerRank(own), "number": number, "large": PerRank(large)}
    heard = Heard()
    logging.getLogger("undaunted").addHandler(heard)
    with Checkpointer(folder.parent / "own", timeout=TIMEOUT_S) as checkpoints:
        step = checkpoints.load(state)
    moments = [
        o.state_dict()["state"].get(0, {}).get("exp_avg") for o in (fresh_optimizer, optimizer)
    ]
    return {
        "step": step,
        "data": data.state == loader.state,
        "expert": torch.equal(fresh.weight, model.weight) and fresh.weight.data_ptr() == at,
        "optimizer": moments[0] is not None and torch.equal(*moments),
        "list": [str(one) for one in own["list"]]
        == [str(one) for one in expected["own"].value["list"]],
        "number": number.value,
        "large": large[0].item(),
        "heard": heard.lines,
    }


def parts_alone(rank: int, folder: Path) -> Any:
    """Ranks that each save by themselves, of a model that is sharded over them."""
    model = fully_shard(nn.Linear(4, 4, bias=False))
    alone = saved(folder / str(rank), {"model": model}, process_group="alone")
    half = folder / f"half-{rank}"
    refused = "torch saves no part"  # in version 2.8
    with contextlib.suppress(CheckpointException):
        dcp.save({"model": model.state_dict()}, checkpoint_id=half, no_dist=True)
        refused = ""
    dist.barrier()
    return [*alone, refused or failure(lambda: load_dcp({"model": model}, folder / "half-0"))]


def packed_shards(rank: int, folder: Path) -> Any:
    """A tensor whose parts are of a class of their own, as states of 8-bit optimizers are."""
    mesh, whole = init_device_mesh("cpu", (dist.get_world_size(),)), torch.arange(4.0).view(4, 1)
    mine = distribute_tensor(whole, mesh, [Shard(0)]).to_local()
    packed = DTensor.from_local(TwoTensor(mine.clone(), mine + 10), mesh, [Shard(0)])
    state: dict[str, Any] = {"w": distribute_tensor(torch.zeros(4, 1), mesh, [Shard(0)])}
    torch.serialization.add_safe_globals([TwoTensor])
    outcome = saved(folder.parent / "packed", {"w": packed}) if dist.get_world_size() == 2 else []
    with Checkpointer(folder.parent / "packed", timeout=TIMEOUT_S) as checkpoints:
        refused = failure(lambda: checkpoints.load(state))
    local = state["w"].to_local()
    parts = [local.a.view(-1).tolist(), local.b.view(-1).tolist()] if not refused else []
    return [*outcome, refused, type(state["w"]).__name__, type(local).__name__, parts]


def with_parts(ranges: list[tuple[int, int]], *, filled: bool) -> Any:
    """A DTensor that says itself which rows it has, as those of Megatron-FSDP do."""
    whole = torch.arange(12.0).view(6, 2)
    parts = [whole[start:end] for start, end in ranges]
    local: Any = torch.cat(parts).clone() if parts else torch.empty(0, 2)
    local = local if filled else local.fill_(-1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shape, stride = whole.shape, whole.stride()
    tensor = DTensor.from_local(
        local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
    )
    local = tensor._local_tensor
    chunks = [ChunkStorageMetadata(torch.Size((a, 0)), torch.Size((b - a, 2))) for a, b in ranges]
    places, at = {}, 0
    for start, end in ranges:
        places[start] = slice(at, at + end - start)
        at += end - start

    def items(name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(local)
        data = [TensorWriteData(one, properties, shape) for one in chunks]
        return [
            WriteItem(MetadataIndex(name, one.chunk.offsets), WriteItemType.SHARD, tensor_data=one)
            for one in data
        ]

    local.__create_chunk_list__ = lambda: chunks
    local.__create_write_items__ = items
    local.__get_tensor_shard__ = lambda index: local[places[index.offset[0]]]
    return tensor


def with_attributes(ranges: list[tuple[int, int]], *, filled: bool) -> Any:
    """An ordinary tensor of which torch 2.14 and newer read in attributes which rows it has."""
    whole = torch.arange(12.0).view(6, 2)
    parts = [whole[start:end] for start, end in ranges]
    local: Any = nn.Parameter(torch.cat(parts) if parts else torch.empty(0, 2))
    if not filled:
        nn.init.constant_(local, -1)
    sizes = [(end - start, 2) for start, end in ranges]
    starts = [sum(size for size, _ in sizes[:at]) for at in range(len(sizes))]
    local.global_shape = (6, 2)
    local.global_offsets = tuple((start, 0) for start, _ in ranges)
    local.local_offsets = tuple((start, 0) for start in starts)
    local.local_sizes = tuple(sizes)
    return local


def own_parts(rank: int, folder: Path) -> Any:
    return loaded_otherwise(rank, folder, with_parts)


def attributes(rank: int, folder: Path) -> Any:
    return loaded_otherwise(rank, folder, with_attributes)


def loaded_otherwise(rank: int, folder: Path, make: Any) -> Any:
    """Whether all comes back, saved with some parts and loaded with others."""
    splits: list[list[list[tuple[int, int]]]] = [
        [[(0, 6)], []],
        [[(0, 1), (2, 4)], [(1, 2), (4, 6)]],
        [[(0, 3)], [(3, 6)]],
    ]
    right = []
    with Checkpointer(folder, timeout=TIMEOUT_S) as checkpoints:
        for step, split in enumerate(splits):
            checkpoints.save(step, {"w": make(split[rank], filled=True)})
            for other in splits:
                state = {"w": make(other[rank], filled=False)}
                checkpoints.load(state, step=step)
                expected = make(other[rank], filled=True)
                right.append(torch.equal(local_of(state["w"]), local_of(expected)))
    return right


def local_of(tensor: Any) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


LAYOUTS: dict[str, dict[str, int]] = {  # by name: sizes of the dimensions of the mesh
    "alone": {},
    "ddp 2": {"ddp": 2},
    "fsdp 2": {"shard": 2},
    "fsdp of columns 2": {"columns": 2},
    "tp 2": {"tp": 2},
    "ddp 4": {"ddp": 4},
    "fsdp 4": {"shard": 4},
    "tp 4": {"tp": 4},
    "hsdp 2 x 2": {"replicate": 2, "shard": 2},
    "fsdp 2 x tp 2": {"shard": 2, "tp": 2},
}


def ranks_of(layout: str) -> int:
    return math.prod(LAYOUTS[layout].values())


def distributed(layout: str, seed: int) -> dict[str, Any]:
    """A model with rows that do not divide evenly, also fewer than ranks, and its optimizer."""
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 12), nn.Linear(12, 7), nn.LayerNorm(7), nn.Linear(7, 3)]
    model: Any = nn.Sequential(*layers)
    sizes = LAYOUTS[layout]
    if "ddp" in sizes:
        model = DistributedDataParallel(model)
    elif sizes:
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if "tp" in sizes:
            plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            parallelize_module(model, mesh["tp"], plan)
        others = tuple(name for name in sizes if name != "tp")
        for module in [*layers, model] if others else []:
            fully_shard(
                module,
                mesh=mesh[others] if len(others) < len(sizes) else mesh,
                shard_placement_fn=in_columns if "columns" in sizes else None,
            )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer}


def in_columns(parameter: nn.Parameter) -> Shard:
    even = parameter.ndim > 1 and parameter.shape[1] % 2 == 0
    return Shard(1 if even else 0)


def train(parts: dict[str, Any]) -> None:
    parts["optimizer"].zero_grad()
    parts["model"](torch.arange(12.0).view(2, 6)).square().sum().backward()
    parts["optimizer"].step()


def to_save(parts: dict[str, Any]) -> dict[str, Any]:
    return {**parts, "model": getattr(parts["model"], "module", parts["model"])}


def whole(parts: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All tensors of a model and its optimizer, not distributed."""
    tensors = dict(to_save(parts)["model"].state_dict())
    for number, of_one in parts["optimizer"].state_dict()["state"].items():
        tensors |= {f"{number}.{name}": value for name, value in of_one.items()}
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}


def in_layout(rank: int, folder: Path, layout: str, *others: str) -> Any:
    """Load what other layouts have saved, then save; what came back in another way."""
    wrong = []
    for number, other in enumerate(others):
        path = folder.parent / "layouts" / other
        expected = torch.load(path / "expected.pt")
        for trained in (False, True)[: 1 + number % 2]:
            parts = distributed(layout, seed=2)
            if trained:
                train(parts)
            with Checkpointer(path, timeout=TIMEOUT_S) as checkpoints:
                checkpoints.load(to_save(parts))
            found = whole(parts)
            if found.keys() != expected.keys():
                wrong.append(f"{other}: {sorted(found.keys() ^ expected.keys())}")
            differ = [n for n in expected if n in found and not torch.equal(found[n], expected[n])]
            wrong += [f"{other}: {name}" for name in differ]
            train(parts)
    parts = distributed(layout, seed=1)
    train(parts)
    path = folder.parent / "layouts" / layout
    wrong += [one for one in saved(path, to_save(parts)) if one]
    tensors = whole(parts)
    if rank == 0:
        torch.save(tensors, path / "expected.pt")
    return wrong


def main(rank: int, world_size: int, root: Path, scenarios: list[str]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{root}/store-{world_size}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    for scenario in scenarios:
        name, *words = scenario.split(",")
        outcome = globals()[name](rank, root / f"{name}-{world_size}", *words)
        print(json.dumps([scenario, outcome]), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
