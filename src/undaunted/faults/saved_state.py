"""Makes the next state bad that a program takes of its model; training goes on with the right one.

Whatever saves a model asks it for its `state_dict`. What a layer puts there is replaced by a copy
in which one number is wrong, until training goes on. The process is killed when the state is taken
again after that: by then the bad checkpoint is complete and the newest.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from undaunted.faults.gradients import largest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def spoil(how: str) -> None:
    """Make the next state bad, and end this process when one is taken after further training.

    Args:
        how: one of ``plan.HOWS``.
    """
    if "torch" not in sys.modules:
        print("undaunted: no state to make bad: torch is not imported", file=sys.stderr)
        return
    _Spoiler(how)


class _Spoiler:
    """Waits for a layer that is trained, then for the states that are taken of it."""

    def __init__(self, how: str) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._how = how
        self._name = ""
        self._is_spoilt = False
        self._goes_on = False  # since a bad state was taken
        self._tied: set[int] | None = None
        self._finding = register_module_forward_pre_hook(self._find)

    def _find(self, module: torch.nn.Module, _args: object) -> None:
        """Take the first layer that itself has a parameter that training changes."""
        import torch

        if self._is_spoilt:
            self._goes_on = True
            return
        if self._name or not torch.is_grad_enabled():
            return
        if self._tied is None:
            self._tied = _tied(module)  # the outermost one runs first
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in self._tied or not parameter.requires_grad:
                continue
            if parameter.is_floating_point() and parameter.numel():
                self._name = name
                module.register_state_dict_post_hook(self._hook())
                return

    def _hook(self) -> Callable[..., None]:
        """Return a function, which copies of the module have as well: methods cannot be marked."""

        def taken(_module: object, state: dict[str, Any], prefix: str, _metadata: object) -> None:
            self._taken(state, prefix)

        return taken

    def _taken(self, state: dict[str, Any], prefix: str) -> None:
        if self._goes_on:
            print("undaunted: killed after a bad state was saved", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        key = prefix + self._name
        if key in state:
            state[key] = _bad(state[key], self._how)
            self._is_spoilt = True


def _tied(model: torch.nn.Module) -> set[int]:
    """Return the parameters that have several names: a program may load the other one."""
    found = Counter(
        id(parameter)
        for layer in model.modules()
        for _, parameter in layer.named_parameters(recurse=False)
    )
    return {parameter for parameter, names in found.items() if names > 1}


def _bad(value: Any, how: str) -> Any:
    """Return a copy in which one number is wrong: of a part of a tensor, where that has any."""
    import torch

    with torch.no_grad():
        wrong = value.detach().clone()
        flat = getattr(wrong, "_local_tensor", wrong).view(-1)
        if not flat.numel():
            return wrong
        largest = largest_of(flat)
        if how == "nan":
            flat[largest] = math.nan
        elif how == "copy":
            words = flat.view(_words(flat.itemsize))
            words[largest] ^= 1 << (8 * flat.itemsize - 2)
        else:
            flat[largest] = -flat[largest]
    return wrong


def _words(size: int) -> torch.dtype:
    import torch

    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
