"""Whether training that is resumed goes on as if nothing had happened."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from undaunted.checkpointing import Checkpointer

# Makes what is trained: by name, among these a model and an optimizer.
Make = Callable[[], dict[str, Any]]
BEFORE, AFTER = 3, 3


def step(parts: dict[str, Any], number: int) -> None:
    """Make one step of training, whose data and random numbers depend on its number only."""
    torch.manual_seed(number)
    model, optimizer = parts["model"], parts["optimizer"]
    inputs = torch.randint(0, 6, (5,)) if isinstance(model[0], nn.Embedding) else torch.randn(5, 6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward(create_graph=parts.get("create_graph", False))
        return loss

    loss = closure()
    optimizer.step(torch.enable_grad()(closure))
    for scheduler in parts.get("schedulers", ()):
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        scheduler.step(loss.item()) if plateau else scheduler.step()


def parameters(parts: dict[str, Any]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in parts["model"].state_dict().values()]


def stateful(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if name != "create_graph"}


def by_torch(old: dict[str, Any], new: dict[str, Any], place: Path) -> None:
    """Resume with torch.save and load_state_dict."""

    def every(parts: dict[str, Any]) -> list[Any]:
        return [parts["model"], parts["optimizer"], *parts.get("schedulers", ())]

    torch.save([part.state_dict() for part in every(old)], place / "state.pt")
    saved = torch.load(place / "state.pt", weights_only=False)
    for part, state in zip(every(new), saved, strict=True):
        part.load_state_dict(state)


def by_checkpointer(old: dict[str, Any], new: dict[str, Any], place: Path) -> None:
    """Resume with a checkpoint."""
    with Checkpointer(place) as checkpoints:
        checkpoints.save(1, stateful(old))
    with Checkpointer(place) as checkpoints:
        assert checkpoints.load(stateful(new)) == 1


def resumed(make: Make, way: Callable[[dict[str, Any], dict[str, Any], Path], None]) -> Any:
    """Train, resume in a fresh process' objects, train again; the parameters at the end."""
    old = made(make)
    for number in range(BEFORE):
        step(old, number)
    new = made(make)
    with tempfile.TemporaryDirectory() as place:
        way(old, new, Path(place))
    for number in range(BEFORE, BEFORE + AFTER):
        step(new, number)
    return parameters(new)


def undisturbed(make: Make) -> list[torch.Tensor]:
    parts = made(make)
    for number in range(BEFORE + AFTER):
        step(parts, number)
    return parameters(parts)


def made(make: Make) -> dict[str, Any]:
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
