"""Gradients of all micro-batches of a step, added in the order of their numbers.

Floating-point sums depend on their order. Here it is the same for every number of ranks, so that
the gradient is the same to the last bit. The sum goes from rank to rank: this is for audits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.nn import Parameter


class Gradients:
    """Gradients of this rank's micro-batches of one step, each for itself."""

    def __init__(self) -> None:
        """Begin without a step."""
        self._before: list[torch.Tensor | None] | None = None
        self._taken: list[list[torch.Tensor | None]] = []

    def begin(self, parameters: Sequence[Parameter]) -> None:
        """Before a forward pass: lay aside what the parameters have from before the step."""
        if self._before is None:
            self._before = _take(parameters)

    def take(self, parameters: Sequence[Parameter], *, counts: bool) -> None:
        """After a backward pass: take the micro-batch's gradients from the parameters."""
        grads = _take(parameters)
        if counts:
            self._taken.append(grads)

    def add_up(self, parameters: Sequence[Parameter], group: Any) -> None:
        """Give the parameters the sum over the step; all ranks together.

        Args:
            parameters: the same on all ranks.
            group: of the ranks; None where there is one rank.
        """
        before, taken = self._before or [None] * len(parameters), self._taken
        self.forget()
        for at, parameter in enumerate(parameters):
            parts = [grads[at] for grads in taken]
            if _on_any_rank(any(one is not None for one in parts), parameter, group):
                total = _chained(parts, parameter, group)
                old = before[at]
                parameter.grad = total if old is None else old + total
            else:
                parameter.grad = before[at]

    def forget(self) -> None:
        """Drop a step that is not done to its end."""
        self._before, self._taken = None, []


def _take(parameters: Sequence[Parameter]) -> list[torch.Tensor | None]:
    grads = [one.grad for one in parameters]
    for one in parameters:
        one.grad = None
    return grads


def _chained(
    parts: Sequence[torch.Tensor | None], parameter: Parameter, group: Any
) -> torch.Tensor:
    """Return the sum of all ranks' parts, of which the first rank's come first."""
    total = torch.zeros_like(parameter, requires_grad=False)
    rank, world_size = (
        (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    )
    if rank:
        dist.recv(total, group=group, group_src=rank - 1)
    for part in parts:
        if part is not None:
            total += part
    if rank < world_size - 1:
        dist.send(total, group=group, group_dst=rank + 1)
    if world_size > 1:
        dist.broadcast(total, group=group, group_src=world_size - 1)
    return total


def _on_any_rank(has_any: bool, parameter: torch.Tensor, group: Any) -> bool:
    if group is None:
        return has_any
    told = torch.tensor(int(has_any), device=parameter.device)
    dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
    return bool(told)
