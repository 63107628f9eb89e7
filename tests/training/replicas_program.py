"""A rank whose replica is compared with others. Argument: what to do.

corrupt   100 times one rank gets a bit, a NaN or a zero that the others have not: who is named?
hybrid    the same in a module that is sharded over pairs of ranks, of which there are several
groups    what all ranks hear of differences that do not concern all of them
alike     train, and compare what is alike
sharded   compare what has no replica
uneven    ranks hold tensors of different shapes
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.training.gloo_ranks import join, leave
from undaunted.training import Replicas, ReplicasDifferError

TIMES = 100


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4).to(torch.bfloat16))


def corrupt(model: nn.Module, rank: int, size: int) -> dict[str, Any]:
    """Tell how often the one guilty rank, and only that, was named."""
    replicas = Replicas(model, every=1)
    parameters = dict(model.named_parameters())
    chance = random.Random(7)
    named = 0
    examples = []
    for iteration in range(TIMES):
        who, name = chance.randrange(size), chance.choice([*parameters])
        before = local(parameters[name]).clone()
        spoil(local(parameters[name]), chance, wrong=rank == who)
        try:
            replicas(iteration)
        except ReplicasDifferError as error:
            (one,) = error.differences
            named += (one.guilty, one.names, one.iteration) == ((who,), (name,), iteration)
            examples.append(str(error))
        local(parameters[name]).copy_(before)
    replicas(TIMES)
    return {"named": named, "example": examples[0] if examples else ""}


def local(parameter: Any) -> Any:
    whole = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return whole.detach()


def spoil(tensor: torch.Tensor, chance: random.Random, *, wrong: bool) -> None:
    """Change one number on all ranks, and on the wrong one to something that is nearly the same."""
    kind = chance.choice(["bit", "nan", "zero"])
    place, bit = chance.randrange(1 << 30), chance.randrange(tensor.dtype.itemsize * 8)
    payload = chance.randrange(1, 1 << 6)
    if not tensor.numel():
        raise ValueError("nothing to spoil")
    width = {2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize]
    numbers = tensor.view(-1).view(width)
    at = place % len(numbers)
    top = torch.iinfo(width).min
    if kind == "zero":
        numbers[at] = top if wrong else 0
    elif kind == "nan":
        tensor.view(-1)[at] = float("nan")
        numbers[at] ^= payload if wrong else 0
    elif wrong:
        numbers[at] ^= top if 1 << bit == -top else 1 << bit


def hybrid(rank: int, size: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    fully_shard(model, mesh=mesh)
    replicas = Replicas(model, every=1)
    replicas(0)
    named = []
    for who in range(size):
        parameter = local(next(model.parameters()))
        if rank == who:
            parameter.view(torch.int32).view(-1)[3] ^= 1
        try:
            replicas(who)
            named.append(None)
        except ReplicasDifferError as error:
            (one,) = error.differences
            named.append([list(one.ranks), list(one.guilty)])
        if rank == who:
            parameter.view(torch.int32).view(-1)[3] ^= 1
    return {"named": named}


def groups(rank: int) -> dict[str, Any]:
    """Tell what each rank hears of differences that do not concern all of them."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    three = dist.new_group([0, 1, 2])

    def heard(what: Any, group: Any = None) -> Any:
        try:
            Replicas(what, group=group).check(0)
        except ReplicasDifferError as error:
            return [[list(one.ranks), one.names, one.guilty] for one in error.differences]
        except ValueError as error:
            return str(error)
        return []

    one, other = torch.ones(3), torch.zeros(3)
    model = nn.Linear(2, 2)
    if rank != 1:
        model(torch.ones(1, 2)).sum().backward()
    return {
        "pairs": heard(lambda: {"x": other if rank == 3 else one}, pairs[rank // 2]),
        "three": heard(lambda: {"x": other if rank == 1 else one}, three),
        "empty": heard(lambda: {} if rank == 1 else {"x": one}),
        "gradient": heard(lambda: {"weight": model.weight.grad}),
        "no_gradients": heard(lambda: {"weight": network().get_parameter("0.weight").grad}),
    }


def alike(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(network().float())
    optimizer = torch.optim.AdamW(model.parameters())
    replicas = Replicas(model, every=2)
    gradients = Replicas(
        lambda: {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, every=3
    )
    torch.manual_seed(rank)
    for iteration in range(6):
        model(torch.randn(4, 16)).square().mean().backward()
        gradients(iteration)
        optimizer.step()
        optimizer.zero_grad()
        replicas(iteration)
    return {"done": True}


def refused(model: nn.Module, group: Any = None) -> dict[str, Any]:
    try:
        Replicas(model, group=group).check(0)
    except ValueError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def main() -> None:
    torch.set_num_threads(1)
    rank, size = join()
    task = sys.argv[1]
    if task == "corrupt":
        leave(corrupt(network(), rank, size))
    elif task == "hybrid":
        leave(hybrid(rank, size))
    elif task == "groups":
        leave(groups(rank))
    elif task == "alike":
        leave(alike(rank))
    elif task == "sharded":
        model = network()
        fully_shard(model)
        leave(refused(model))
    else:
        leave(refused(nn.Linear(2, 2 + rank)))


if __name__ == "__main__":
    main()
    assert not dist.is_initialized()
