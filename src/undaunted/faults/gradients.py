"""Makes the gradients of one update NaN."""

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
