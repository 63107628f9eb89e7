"""A rank that trains with a replay. Arguments: what to do, and a kind of module.

same KIND    train with a replay and without one: are parameters, buffers and generators alike?
flips KIND   in each of 100 steps a bit of one rank's local gradient flips: who notices, and when?
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.training.gloo_ranks import join, leave
from undaunted.digests.state import digest_of
from undaunted.training import NotReproducibleError, Replay

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, FLIPS = 10, 100


class Network(nn.Module):
    """Has buffers, random numbers, a parameter that is used twice, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(batch)) + torch.tanh(self.first(batch + 1))
        hidden = nn.functional.dropout(self.norm(hidden), 0.2)
        result: torch.Tensor = self.last(hidden)
        return result


def build(kind: str) -> nn.Module:
    torch.manual_seed(5)
    model = Network()
    if kind == "plain":
        return model
    if kind == "sharded":
        from torch.distributed.fsdp import fully_shard

        del model.unused
        fully_shard(model)
        return model
    options: dict[str, Any] = {
        "ddp": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        "static": {"static_graph": True},
        "batches": {},
    }[kind]
    if kind != "ddp":
        del model.unused
    return DistributedDataParallel(model, **options)


def step(model: nn.Module, iteration: int, rank: int, micro: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    for number in range(micro):
        with contextlib.ExitStack() as stack:
            if number < micro - 1:
                stack.enter_context(model.no_sync())  # type: ignore[operator]
            batch = torch.randn(8, 16, generator=generator)
            loss = model(batch).square().mean() * (1 + random.random())
            loss.backward()
    return loss.detach()


def train(kind: str, rank: int, replayed: bool) -> list[str]:
    random.seed(rank)
    model = build(kind)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    replay = Replay(model, every=3)
    micro = 3 if kind == "batches" else 1
    for iteration in range(STEPS):

        def forward_backward(iteration: int = iteration) -> torch.Tensor:
            return step(model, iteration, rank, micro)

        loss = replay(iteration, forward_backward) if replayed else forward_backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [dict(model.named_parameters()), dict(model.named_buffers()), random.getstate()[1]]
    return [digest_of(one) for one in [*state, torch.get_rng_state(), loss]]


def flips(kind: str, rank: int, size: int) -> dict[str, Any]:
    """Tell in how many of the steps all was as it has to be."""
    model = build(kind)
    names = [name for name, _ in model.named_parameters() if "unused" not in name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replay = Replay(model, every=1)
    chance = random.Random(11)
    caught = named = updates = 0
    for iteration in range(1, 1 + FLIPS):
        who, which, pass_ = chance.randrange(size), chance.choice(names), chance.randrange(2)
        spoiled = _once(model, which if who == rank else None, pass_, chance)
        try:
            replay(iteration, lambda i=iteration, s=spoiled: (s(), step(model, i, rank))[1])  # type: ignore[misc]
            optimizer.step()
            updates += 1
        except NotReproducibleError as error:
            caught += 1
            (one,) = error.mismatches
            named += one.rank == who and one.what == (f"gradient of {which}",)
        optimizer.zero_grad()
    return {"caught": caught, "named": named, "updates": updates}


def _once(
    model: nn.Module, name: str | None, at: int, chance: random.Random
) -> Callable[[], object]:
    """Return what, called as a pass begins, has one bit of a gradient flip in one of the passes."""
    place, bit = chance.randrange(1 << 30), chance.randrange(32)
    passes: list[Any] = []

    def flip(gradient: torch.Tensor) -> torch.Tensor:
        wrong = gradient.clone(memory_format=torch.contiguous_format)
        numbers = wrong.view(-1).view(torch.int32)
        numbers[place % len(numbers)] ^= -(1 << 31) if bit == 31 else 1 << bit
        return wrong

    def begins() -> None:
        for handle in passes:
            if handle is not None:
                handle.remove()
        here = name is not None and len(passes) == at
        passes.append(model.get_parameter(name).register_hook(flip) if here and name else None)

    return begins


def main() -> None:
    task, kind = sys.argv[1:]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank, size = join()
    if task == "same":
        leave({"without": train(kind, rank, False), "with": train(kind, rank, True)})
    else:
        leave(flips(kind, rank, size))


if __name__ == "__main__":
    main()
