"""Makes gradients wrong: NaN in one update, or a bit of what a backward pass computes."""

from __future__ import annotations

import math
import sys
from typing import Any


def spoil_next_update() -> None:
    """Fill the gradients of this process's next optimizer step with NaN, before the step."""
    if "torch" not in sys.modules:
        print("undaunted: no gradients to spoil: torch is not imported", file=sys.stderr)
        return
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def spoil(optimizer: Any, _args: object, _kwargs: object) -> None:
        handle.remove()
        _fill(optimizer)

    handle = register_optimizer_step_pre_hook(spoil)


def _fill(optimizer: Any) -> None:
    import torch

    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(math.nan)  # fill_ knows no sparse ones


def flip_a_bit(*, always: bool) -> None:
    """Flip one bit of a gradient that this process computes, before other ranks see it.

    It is the sign of the largest number in the gradient of the first parameter that the next
    forward pass can train. Sparse gradients are left alone.

    Args:
        always: in every backward pass from the next one on; else in the next one only.
    """
    if "torch" not in sys.modules:
        print("undaunted: no gradients to make wrong: torch is not imported", file=sys.stderr)
        return
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    left = [None] * (not always)

    def find(module: torch.nn.Module, _args: object) -> None:
        trained = [one for one in module.parameters() if one.requires_grad]
        if trained and torch.is_grad_enabled():
            handle.remove()
            trained[0].register_hook(flip)

    def flip(gradient: torch.Tensor) -> torch.Tensor:
        if not always and not left:
            return gradient
        left.clear()
        return gradient if gradient.is_sparse else _with_flipped_sign(gradient)

    handle = register_module_forward_pre_hook(find)


def _with_flipped_sign(gradient: Any) -> Any:
    wrong = gradient.detach().clone().contiguous()
    flat = wrong.view(-1)
    largest = largest_of(flat)
    flat[largest] = -flat[largest]
    return wrong


def largest_of(flat: Any) -> Any:
    """Return where the number is that is farthest from 0."""
    return flat.abs().argmax()
